"""Enter, for declared functions that are awaited (see `enter.py`).

A module of its own, because only async agents need it and `asyncio`.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

from holdfast.errors import CallFailed
from holdfast.runtime.call.async_driver import drive_async
from holdfast.runtime.call.flow import answer
from holdfast.runtime.call.match import find, recorded
from holdfast.runtime.call.outside import call_outside
from holdfast.runtime.call.request import child_call, request_call
from holdfast.runtime.call.step import is_plain_step
from holdfast.runtime.call.step_async import make_step_async
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.log.branches import CURRENT, Branch


async def enter_async(
    spec: CallSpec | AgentSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a declared function from wherever we are. Its place is taken when it is awaited."""
    current = CURRENT.get()
    if type(spec) is not AgentSpec and spec.is_method:
        spec, args = spec.of_instance(args)
    if type(current) is not Branch:
        return await call_outside(current, spec, args, kwargs)
    if type(spec) is AgentSpec:
        spec = child_call(spec, current)
    request = request_call(current, spec, spec.params.bind(args, kwargs))
    entry = find(request).entry
    lines, line = current.session.lines, None
    if (
        entry is not None
        and entry.done is not None
        and not entry.done.unavailable
        and (lines is None or lines.is_in_order)
    ):
        return recorded(request, entry)  # as the flow would: nothing has to be put in order
    if lines is not None and lines.thread == get_ident():
        line = lines.enter_call(request.branch.path, request.index)
    try:
        is_plain = spec.is_plain and is_plain_step(request, entry)
        if is_plain and lines is not None and line is not None:
            return await make_step_async(request, lines, line)
        return await drive_async(answer(request, entry), request)
    except CallFailed:
        current.line.call_failed = True  # that of the code, wherever the call is recorded
        raise
    finally:
        if line is not None:
            line.leave_call()
