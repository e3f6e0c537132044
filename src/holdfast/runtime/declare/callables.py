"""What can be declared: functions, methods, partials and callable objects, each as a function with a name.

Anything else (a class, a generator, something under `@classmethod`) is refused where it is declared, with the reason.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from holdfast.errors import InvalidInput


def as_function(fn: Any, decorator: str, name: str | None = None) -> Callable[..., Any]:
    """The function that was decorated, or one that calls it; InvalidInput if that is not possible."""
    _check_kind(fn, decorator)
    inner = _inner(fn)
    shown = name or getattr(fn, "__name__", None) or getattr(inner, "__name__", None)
    if not hasattr(fn, "__name__") and inner.__name__ == "__call__" and name is None:
        raise InvalidInput(f"{decorator}: a {type(fn).__name__} has no name; set one with name=")
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidInput(
            f"{decorator}: {shown} is a generator, whose body does not run when it is called; return a list"
        )
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):
        raise InvalidInput(
            f"{decorator}: the parameters of {shown} cannot be determined; call it in your own function"
        ) from None
    return fn if inspect.isfunction(fn) else _wrapped(fn, inner, signature)


def _check_kind(fn: Any, decorator: str) -> None:
    if isinstance(fn, classmethod | staticmethod):
        kind = type(fn).__name__
        raise InvalidInput(f"{decorator}: put @{kind} above {decorator}, not below it")
    if isinstance(fn, type):
        raise InvalidInput(
            f"{decorator} takes a function; {fn.__name__} is a class: decorate its methods, or a function "
            "that uses it"
        )
    if not callable(fn):
        raise InvalidInput(f"{decorator} takes a function, not {fn!r}")


def _inner(fn: Any) -> Any:
    """The function inside partials, bound methods and callable objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.ismethod(fn):
        return fn.__func__
    is_object = not hasattr(fn, "__name__") and not hasattr(fn, "__wrapped__")
    return type(fn).__call__ if is_object else inspect.unwrap(fn)


def _wrapped(fn: Any, inner: Any, signature: inspect.Signature) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(inner):

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await fn(*args, **kwargs)

        made: Any = awaited
    else:

        def called(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        made = called
    functools.update_wrapper(made, inner)
    made.__annotations__ = dict(getattr(inner, "__annotations__", {}))
    made.__signature__ = signature
    function: Callable[..., Any] = made
    return function


def takes_self(fn: Callable[..., Any]) -> bool:
    """Whether it is a method, by the name of its first parameter."""
    first = next(iter(inspect.signature(fn).parameters), "")
    return first in ("self", "cls")
