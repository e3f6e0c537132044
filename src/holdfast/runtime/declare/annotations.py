"""The annotations of a function as types, each resolved by itself, with their `Annotated` metadata.

A name that exists only for type checkers makes one annotation unusable and not the others. What an annotation names may
be local to the function (or class) whose body is being executed: then it is found in that frame.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.core import values


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
    for name, written in getattr(fn, "__annotations__", {}).items():
        if local is None:
            local = _local_names(inner, names)
        try:
            found[name] = _resolved(name, written, names, local)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            unresolved[name] = (
                f"{written if isinstance(written, str) else repr(written)!r}: {error}"
            )
    if any(map(_needs_pydantic, found.values())):
        with contextlib.suppress(ImportError):  # then the codec reports what is missing
            importlib.import_module("pydantic")
    return Annotations(found, unresolved)


def _resolved(name: str, written: Any, names: dict[str, Any], local: dict[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {name: written}
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
