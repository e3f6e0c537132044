"""A model that types a run's state: the fields of a dataclass, msgspec Struct or pydantic model.

Only the fields are used: how each is encoded, checked and read back, and what it is if never set.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.core import values
from holdfast.core.values import Codec
from holdfast.errors import InvalidInput, NotStorable

if TYPE_CHECKING:  # loaded where there is a dataclass
    import dataclasses


class StateField(Struct, frozen=True):
    """One declared field."""

    codec: Codec
    default: Any = None
    check: Callable[[Any], object] | None = None
    """What the model demands beyond the type; raises ValueError."""

    def read(self, value: Any) -> Any:
        """A plain value from the log as the declared type; NotStorable if it does not fit."""
        found = self.codec.decode(values.encode(value))
        if self.check is not None:
            try:
                self.check(found)
            except ValueError as error:
                raise NotStorable(f"the model refuses it: {error}") from None
        return found


def fields_of(model: Any) -> dict[str, StateField]:
    """The fields of a model, or InvalidInput for anything else."""
    if model is None:
        return {}
    if values.is_pydantic_model(model):
        return _pydantic_fields(model)
    if not (isinstance(model, type) and (values.is_dataclass(model) or _is_struct(model))):
        raise InvalidInput(
            f"@agent(state=…) takes a dataclass, a msgspec Struct or a pydantic model, not {model!r}"
        )
    hints = typing.get_type_hints(model, include_extras=True)
    if values.is_dataclass(model):
        from dataclasses import fields

        return {
            f.name: StateField(Codec(hints[f.name]), _dataclass_default(f)) for f in fields(model)
        }
    struct: Any = model
    required = len(struct.__struct_fields__) - len(struct.__struct_defaults__)
    names = struct.__struct_fields__[required:]
    defaults = dict(zip(names, struct.__struct_defaults__, strict=True))
    return {
        name: StateField(Codec(hints[name]), _plain_default(defaults.get(name)))
        for name in struct.__struct_fields__
    }


def _is_struct(model: type) -> bool:
    return hasattr(model, "__struct_fields__")


def _pydantic_fields(model: Any) -> dict[str, StateField]:
    hints = typing.get_type_hints(model)

    def checks(name: str) -> Callable[[Any], object]:
        validator = model.__pydantic_validator__
        return lambda value: validator.validate_assignment(model.model_construct(), name, value)

    return {
        name: StateField(
            Codec(hints[name]),
            _plain_default(field.get_default(call_default_factory=True)),
            checks(name),
        )
        for name, field in model.model_fields.items()
    }


def _dataclass_default(f: dataclasses.Field[Any]) -> Any:
    from dataclasses import MISSING

    if f.default is not MISSING:
        return f.default
    return f.default_factory() if f.default_factory is not MISSING else None


def _plain_default(value: Any) -> Any:
    """A default that is a marker of its library (undefined, a factory) counts as None."""
    if type(value).__module__.split(".")[0] in ("pydantic_core", "msgspec"):
        factory = getattr(value, "factory", None)
        return factory() if factory else None
    return value
