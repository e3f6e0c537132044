"""Tools that are only sketched, as in a test that mocks them: each plain and async, with the same body."""

from typing import Any

from holdfast import AsyncRun, Run, agent, tool


@tool
def nothing(to: str, idempotency_key: str = "") -> str: ...  # type: ignore[empty-body]


@tool
async def nothing_async(to: str, idempotency_key: str = "") -> str: ...  # type: ignore[empty-body]


@tool
def constant(to: str, idempotency_key: str = "") -> str:
    """A docstring."""
    return "sent"


@tool
async def constant_async(to: str, idempotency_key: str = "") -> str:
    """A docstring."""
    return "sent"


@tool
def unwritten(to: str, idempotency_key: str = "") -> str:
    raise NotImplementedError


@tool
async def unwritten_async(to: str, idempotency_key: str = "") -> str:
    raise NotImplementedError


@tool
def ignores(to: str, idempotency_key: str = "") -> str:
    return f"sent to {to}"


@tool
async def ignores_async(to: str, idempotency_key: str = "") -> str:
    return f"sent to {to}"


@tool
def keyless(to: str) -> str:
    return "sent"


@tool
async def keyless_async(to: str) -> str:
    return "sent"


@agent
def sending(run: Run, stub: str, to: str) -> str:
    sent: str = STUBS[stub](to)
    return sent


@agent
async def sending_async(run: AsyncRun, stub: str, to: str) -> str:
    sent: str = await STUBS[stub](to)
    return sent


STUBS: dict[str, Any] = {
    name: value for name, value in dict(globals()).items() if getattr(value, "__holdfast__", None)
}
