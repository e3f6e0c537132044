"""An async step that plain code calls and does not await is not executed. That must not be mistaken for success.

While a sync agent runs, the coroutines that its calls make are remembered; one that was never started when the agent
returns, or when it fails because of it, is an error that says what to do.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final

from holdfast.errors import InvalidInput, NotStorable

_Made = list[tuple[str, Coroutine[Any, Any, Any]]]
_MADE: Final[ContextVar[_Made | None]] = ContextVar("holdfast_coroutines", default=None)


def remember(name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
    """A coroutine was made by a call; if plain code made it, it must not be forgotten."""
    made = _MADE.get()
    if made is not None:
        made[:] = [(n, c) for n, c in made if _is_new(c)]
        made.append((name, coroutine))


def checked(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A sync agent's function that fails if it leaves a call that was not awaited."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        made: _Made = []
        token = _MADE.set(made)
        try:
            result = fn(*args, **kwargs)
        except NotStorable as error:  # perhaps it was stored, or passed on
            raise _forgotten(made) or error from None
        finally:
            _MADE.reset(token)
        forgotten = _forgotten(made)
        if forgotten is not None:
            raise forgotten
        return result

    return run


def _forgotten(made: _Made) -> InvalidInput | None:
    names = [name for name, coroutine in made if _is_new(coroutine)]
    for _, coroutine in made:
        coroutine.close()  # else Python warns about it
    if not names:
        return None
    return InvalidInput(
        f"{names[0]} is async and was not awaited, so it was not executed; make the agent `async def` with "
        f"`run: AsyncRun`, and write `await {names[0]}(…)`"
    )


def _is_new(coroutine: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
