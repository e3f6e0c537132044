"""`Holdfast` and `AsyncHoldfast` cannot drift apart: the same methods, with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast import AsyncHandle, AsyncHoldfast, Handle, Holdfast

PAIRS = [(Holdfast, AsyncHoldfast), (Handle, AsyncHandle)]
ONLY_ASYNC = {"sync"}
MORE_PARAMETERS = {"worker": ["own_loop"]}


def methods(cls: type) -> dict[str, Any]:
    """The public methods and properties of a class."""
    return {
        name: member.fget if isinstance(member, property) else member
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize(("plain", "awaited"), PAIRS)
def test_both_have_the_same_methods(plain: type, awaited: type) -> None:
    """A new method of one belongs in the other: `async def name(self, …): return await self._read(Holdfast.name, …)`."""
    assert set(methods(plain)) == set(methods(awaited)) - ONLY_ASYNC


@pytest.mark.parametrize(
    ("name", "plain", "awaited"),
    [
        (f"{a.__name__}.{name}", method, methods(b).get(name))
        for a, b in PAIRS
        for name, method in methods(a).items()
    ],
)
def test_a_method_has_the_same_parameters_in_both(name: str, plain: Any, awaited: Any) -> None:
    more = MORE_PARAMETERS.get(name.partition(".")[2], [])

    assert parameters(plain) == [p for p in parameters(awaited) if p[0] not in more]


@pytest.mark.parametrize("cls", [AsyncHoldfast, AsyncHandle])
def test_every_method_is_written_out_and_documented(cls: type) -> None:
    assert not hasattr(cls, "__getattr__")
    assert [] == [name for name, method in methods(cls).items() if not method.__doc__]


@pytest.mark.parametrize("cls", [AsyncHoldfast, AsyncHandle])
def test_every_method_is_awaited_or_iterated(cls: type) -> None:
    """Only `worker` (nothing happens before it is awaited), `stream` and `sync` are plain."""
    plain = {
        name
        for name, method in methods(cls).items()
        if not inspect.iscoroutinefunction(method) and not inspect.isasyncgenfunction(method)
    }

    assert plain <= {"worker", "stream", "sync"}


def test_a_method_that_does_not_exist_is_an_attribute_error(tmp_path: Any) -> None:
    with pytest.raises(AttributeError, match="aprove"):
        AsyncHoldfast(tmp_path / "h.db").aprove  # type: ignore[attr-defined] # noqa: B018
