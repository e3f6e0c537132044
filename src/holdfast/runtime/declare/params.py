"""A function's parameters, and how the arguments of a call are bound to them.

They are those of its signature; or those of a `ParamSchema`, for what was declared without one (`schema=`).
Binding is on the path of every call, so it is quick for plain signatures and exact for all others.

Annotations are resolved each by itself, with their `Annotated` metadata: a name that exists only for type checkers makes one
annotation unusable and not the others. What an annotation names may be local to the function (or class) whose body is
being executed: then it is found in that frame.

Not here: the value that describes parameters (`core/params.py`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import values
from holdfast.core.params import OMITTED, REQUIRED, Parameter, ParameterKind, ParamSchema
from holdfast.errors import InvalidInput

HIDDEN: Final = ("idempotency_key", "tx")
"""Parameters that the runtime fills: not part of a call's arguments, nor of a model's tool schema."""


class Params(Struct, frozen=True):
    """A function's parameters, and how to bind a call's arguments to them quickly."""

    schema: ParamSchema
    """What a caller gives: without the hidden ones."""
    signature: inspect.Signature | None
    """None if they were declared by a schema."""
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    hidden: frozenset[str]
    simple: bool
    types: Mapping[str, Any]
    all_names: frozenset[str]
    plain_names: bool
    """Whether all of them are ASCII."""
    exactly: int
    """How many arguments by position are all there are; -1 if some cannot be given so."""
    constrained: tuple[str, ...] = ()
    """Those whose annotations demand more than a type; checked before a call."""
    omittable: frozenset[str] = frozenset()
    """Those that a call may leave out although they have no default."""
    unresolved: Mapping[str, str] = field(default_factory=dict)
    """Annotations that could not be resolved, and why."""

    @classmethod
    def from_function(cls, fn: Callable[..., Any], *, skip_first: bool = False) -> Params:
        """The parameters of a function's signature."""
        signature = inspect.signature(fn)
        parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
        signature = signature.replace(parameters=parameters)
        kinds = {p.kind for p in parameters}
        names = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        given = [p for p in parameters if p.name not in HIDDEN]
        found = annotations_of(fn)
        types = _types(found, parameters)
        shown = tuple(_described(p, types.get(p.name, Any)) for p in given)
        return cls(
            schema=ParamSchema(shown, types.get("return", Any)),
            signature=signature,
            names=names,
            defaults={p.name: p.default for p in parameters if p.default is not p.empty},
            hidden=frozenset(p.name for p in parameters if p.name in HIDDEN),
            simple=kinds
            <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY},
            types=types,
            all_names=frozenset(p.name for p in parameters),
            plain_names=all(p.name.isascii() for p in parameters),
            exactly=len(names) if len(names) == len(parameters) else -1,
            constrained=_constrained(shown),
            omittable=frozenset(p.name for p in parameters if p.name in HIDDEN),
            unresolved={
                n: w
                for n, w in found.unresolved.items()
                if n in (*(p.name for p in given), "return")
            },
        )

    @classmethod
    def from_schema(cls, schema: object, fn: Callable[..., Any]) -> Params:
        """The parameters that a `ParamSchema` or a JSON Schema declares. The function is called with them by name; if its own
        signature has a hidden parameter, that is filled too."""
        if isinstance(schema, Mapping):
            schema = ParamSchema.from_json_schema(schema)
        if not isinstance(schema, ParamSchema):
            raise InvalidInput(f"schema= takes a ParamSchema or a JSON Schema, not {schema!r}")
        schema = replace(schema, parameters=tuple(p for p in schema.parameters if p.kind != "more"))
        for p in schema.parameters:
            if p.name in HIDDEN or p.kind != "named":
                raise InvalidInput(f"schema= declares what callers give by name, not {p}")
        own = inspect.signature(fn).parameters
        hidden = {n: own[n].default for n in HIDDEN if n in own}
        defaults = {p.name: p.default for p in schema.parameters if p.has_default}
        names = tuple(p.name for p in schema.parameters)
        return cls(
            schema=schema,
            signature=None,
            names=names,
            defaults={
                **defaults,
                **{n: d for n, d in hidden.items() if d is not inspect.Parameter.empty},
            },
            hidden=frozenset(hidden),
            simple=True,
            types={**{p.name: p.type for p in schema.parameters}, "return": schema.result},
            all_names=frozenset((*names, *hidden)),
            plain_names=all(map(str.isascii, names)),
            exactly=-1 if hidden else len(names),
            constrained=_constrained(schema.parameters),
            omittable=frozenset(
                (*hidden, *(p.name for p in schema.parameters if p.default is OMITTED))
            ),
        )

    def check_declared(self, name: str) -> None:
        """InvalidInput for an annotation that has no effect here, and for a constraint in the wrong place."""
        wrong = misplaced(self.signature.parameters.values()) if self.signature is not None else ""
        if wrong:
            raise InvalidInput(
                f"{name}: the default of {wrong} is a Field, which is not a value; write "
                f"{wrong}: Annotated[…, Field(…)]"
            )
        for parameter, why in self.unresolved.items():
            what = "its result" if parameter == "return" else f"parameter {parameter}"
            raise InvalidInput(
                f"{name}: the annotation of {what} cannot be resolved ({why}); define or import what it "
                "names before the function, and not only under TYPE_CHECKING"
            )

    @property
    def needs_key(self) -> bool:
        """Whether it takes an `idempotency_key` that has no default."""
        return "idempotency_key" in self.hidden and "idempotency_key" not in self.defaults

    def wrong_names(self, arguments: Iterable[str]) -> str:
        """What is wrong with the names of arguments; empty if nothing is."""
        names, known = set(arguments), {p.name for p in self.schema.parameters}
        wrong = [f"{n!r} is not a parameter" for n in sorted(names - known)]
        wrong += [
            f"{p.name!r} is missing"
            for p in self.schema.parameters
            if p.is_required and p.name not in names
        ]
        return "; ".join(wrong)

    def collected(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name, with those that `**more` takes under its own name, as `bind` gives them."""
        more = next((p.name for p in self.schema.parameters if p.kind == "more"), None)
        known = {p.name for p in self.schema.parameters}
        if more is None or arguments.keys() <= known:
            return arguments
        others = {name: value for name, value in arguments.items() if name not in known}
        kept = {name: value for name, value in arguments.items() if name in known}
        return {**kept, more: {**kept.get(more, {}), **others}}

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.schema.parameters))})"

    def by_name(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, to be called with what `bind` gives: every parameter by its name."""
        if self.simple:
            return fn

        @functools.wraps(fn)
        def called(*first: Any, **bound: Any) -> Any:
            args, kwargs = self.split(bound)
            return fn(*first, *args, **kwargs)

        return called

    def split(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by name as positional and keyword ones again."""
        if self.simple or self.signature is None:
            return (), dict(bound)
        filled = inspect.BoundArguments(self.signature, OrderedDict(bound))
        return filled.args, filled.kwargs

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, with defaults filled in; TypeError as Python would raise it."""
        names = self.names
        if not kwargs and len(args) == self.exactly:
            return dict(zip(names, args, strict=True))
        if self.simple and len(args) <= len(names):
            # dict.update takes pairs from zip in C; this is on the path of every call.
            bound = dict(self.defaults)
            bound.update(zip(names, args, strict=False))
            given_twice = False
            if kwargs:
                given_twice = not kwargs.keys().isdisjoint(names[: len(args)])
                bound.update(kwargs)
            complete = bound.keys() == self.all_names or (
                bound.keys() <= self.all_names and self.all_names - bound.keys() <= self.omittable
            )
            if complete and not given_twice:
                return bound
        if self.signature is None:
            raise TypeError(self._wrong_arguments(args, kwargs))
        optional = {
            name: p.replace(default=None) if name in self.hidden and p.default is p.empty else p
            for name, p in self.signature.parameters.items()
        }
        params = self.signature.replace(parameters=_defaults_last(optional.values()))
        exact = params.bind(*args, **kwargs)
        exact.apply_defaults()
        return dict(exact.arguments)

    def _wrong_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Why a call does not fit parameters that were declared by a schema."""
        if len(args) > len(self.names):
            return "too many positional arguments"
        twice = [name for name in self.names[: len(args)] if name in kwargs]
        if twice:
            return f"multiple values for argument {twice[0]!r}"
        return self.wrong_names([*self.names[: len(args)], *kwargs])


def _described(p: inspect.Parameter, declared: Any) -> Parameter:
    kind: ParameterKind = "named"
    if p.kind is p.VAR_POSITIONAL:
        kind = "rest"
    elif p.kind is p.VAR_KEYWORD:
        kind = "more"
    elif p.kind is p.POSITIONAL_ONLY:
        kind = "positional"
    default = REQUIRED if p.default is p.empty else p.default
    return Parameter(p.name, declared, default, description(declared), kind=kind)


def _constrained(parameters: Iterable[Parameter]) -> tuple[str, ...]:
    return tuple(p.name for p in parameters if values.is_constrained(p.type))


def _defaults_last(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """Hidden parameters may come before others that have no default; make them keyword-only."""
    found = list(parameters)
    return [p for p in found if p.name not in HIDDEN] + [
        p.replace(kind=p.KEYWORD_ONLY) for p in found if p.name in HIDDEN
    ]


def _types(annotations: Annotations, parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """Declared types by name; of `*rest` and `**more` the types of what they collect."""
    types = dict(annotations.types)
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            types[p.name] = list[types.get(p.name, Any)]  # type: ignore[misc]
        elif p.kind is p.VAR_KEYWORD:
            types[p.name] = dict[str, types.get(p.name, Any)]  # type: ignore[misc]
    return types


# ── annotations as types ─────────────────────────────────────────────────────────────────────


class Annotations(Struct, frozen=True):
    """Types by the names of the parameters (and "return"); and why others could not be resolved."""

    types: dict[str, Any]
    unresolved: dict[str, str]


def annotations_of(fn: Callable[..., Any]) -> Annotations:
    """The annotations of a function. The type of its result is without metadata: only input is checked."""
    inner = inspect.unwrap(fn)
    names = getattr(inner, "__globals__", {})
    found, unresolved = {}, {}
    local: dict[str, Any] | None = None
    for name, annotation in getattr(fn, "__annotations__", {}).items():
        if local is None:
            local = _local_names(inner, names)
        try:
            found[name] = _resolved(name, annotation, names, local)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            unresolved[name] = (
                f"{annotation if isinstance(annotation, str) else repr(annotation)!r}: {error}"
            )
    if any(map(_needs_pydantic, found.values())):
        with contextlib.suppress(ImportError):  # then the codec reports what is missing
            importlib.import_module("pydantic")
    return Annotations(found, unresolved)


def _resolved(name: str, annotation: Any, names: dict[str, Any], local: dict[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {name: annotation}
    return typing.get_type_hints(holder, names, local, include_extras=name != "return")[name]


def _local_names(fn: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """What the bodies around the function define: those that are executing, and what it closes over."""
    found: dict[str, Any] = {}
    for frame in _enclosing(getattr(fn, "__qualname__", ""), names):
        found = {**frame.f_locals, **found}  # the innermost wins
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None) or ()
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found | {p.__name__: p for p in getattr(fn, "__type_params__", ())}


def _enclosing(qualname: str, names: Mapping[str, Any]) -> Iterator[Any]:
    """The frames in whose bodies the function is defined, innermost first."""
    parts = qualname.split(".")
    outer = {".".join(parts[:n]) for n in range(1, len(parts))}
    frame = sys._getframe(1) if outer else None
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_qualname in outer:
            yield frame
        frame = frame.f_back


def _needs_pydantic(declared: Any) -> bool:
    return "pydantic" not in sys.modules and values.has_pydantic_metadata(declared)


def description(declared: Any) -> str:
    """The description of a parameter in its `Annotated` metadata: a text, a `Doc`, or a description in `Meta` or `Field`."""
    if typing.get_origin(declared) is not typing.Annotated:
        return ""
    return next(filter(None, map(_text, declared.__metadata__)), "")


def _text(metadata: Any) -> str:
    if isinstance(metadata, str):
        return metadata.strip()
    for name in ("description", "documentation"):
        said = getattr(metadata, name, None)
        if isinstance(said, str) and said:
            return said
    return ""


def misplaced(parameters: Iterable[inspect.Parameter]) -> str:
    """The first parameter whose default is a pydantic `Field`, which is not a value."""
    for p in parameters:
        if type(p.default).__module__ == "pydantic.fields":
            return p.name
    return ""
