"""A new step, straight through: gate, body, receipt. Nearly all that nearly every run does.

The flow (`flow.py`) can do all that a call may need, and pays for it with a generator for each stage and
an effect for each act. A step without intent, approval, limit or timeout needs none of that, so it is
written out here: the same stages, in the same order, with the same boundaries. What does not go straight
(a body that raises, an append that is refused) is handed to the flow at that point.

There are two of the functions that touch the world, one that blocks and one that awaits; what they have
in common stands before them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from holdfast.core import events as e
from holdfast.core.replay import Entry
from holdfast.errors import Suspend
from holdfast.runtime.commit import commit_again, gate
from holdfast.runtime.context import CURRENT, Inside
from holdfast.runtime.drivers import (
    drive,
    drive_async,
    invoke,
    invoke_async,
    persist,
    persist_async,
    told,
)
from holdfast.runtime.effects import Asked, Flow, Invoke, Refused
from holdfast.runtime.flow import check_all_replayed, first_failed, receipt_of
from holdfast.runtime.session import Session

_LABEL: Final = e.CallSucceeded.kind


def goes_straight(asked: Asked, entry: Entry | None) -> bool:
    """Whether this call is new, and no more than its body and a receipt that is written at once."""
    session, spec = asked.branch.session, asked.spec
    return (
        entry is None
        and spec.is_plain
        and session.commits_each_step
        and spec.risk not in session.setting.approve
    )


def _begin(asked: Asked) -> tuple[Session, int]:
    """Nothing stands against the call; its session, and when it begins."""
    branch = asked.branch
    session = branch.session
    check_all_replayed(branch, asked)
    gate(session)
    started = session.store.now()
    session.check_lease()
    return session, started


def _inside(asked: Asked, session: Session) -> Inside:
    return Inside(asked.spec.name, asked.spec.effect, session.run_id)


def _watched(asked: Asked, session: Session) -> Invoke:
    """The body as an effect: for a test that puts another in its place, or stops the process there."""
    spec = asked.spec
    return Invoke(session, spec.body, asked.bound, _inside(asked, session), spec.is_async)


def _refused(asked: Asked, refused: Refused) -> Flow:
    yield from commit_again(refused, _LABEL, evidence=asked)
    asked.session.journal.forget(asked.branch.path, asked.index)


# ── blocking ─────────────────────────────────────────────────────────────────────────────────


def make(asked: Asked) -> Any:
    """Make the call; its result."""
    try:
        session, started = _begin(asked)
        try:
            if session.is_watched:
                raw = invoke(_watched(asked, session))
            else:
                token = CURRENT.set(_inside(asked, session))
                try:
                    raw = asked.spec.body(**asked.bound)
                finally:
                    CURRENT.reset(token)
        except Exception as error:  # noqa: BLE001 - the step's own failure, whatever it is
            return drive(first_failed(asked, error, started))
        result, receipt, blobs = receipt_of(asked, raw, 1, 0, started)
        try:
            pending = persist(session, partial(session.build_receipt, receipt, blobs), _LABEL)
        except Refused as refused:
            drive(_refused(asked, refused))
        else:
            session.committed(pending)
        return result
    except Suspend as signal:
        asked.branch.suspend(signal)
        raise


# ── awaiting ─────────────────────────────────────────────────────────────────────────────────


async def make_async(asked: Asked) -> Any:
    """The same for a step that is awaited."""
    session, started = _begin(asked)
    try:
        if session.is_watched:
            raw = await invoke_async(_watched(asked, session))
        else:
            token = CURRENT.set(_inside(asked, session))
            try:
                raw = await asked.spec.body(**asked.bound)
            finally:
                CURRENT.reset(token)
    except asyncio.CancelledError as cancelled:
        failed = told(session, cancelled)
        if failed is cancelled:
            raise
        return await drive_async(first_failed(asked, failed, started))
    except Exception as error:  # noqa: BLE001 - the step's own failure, whatever it is
        return await drive_async(first_failed(asked, error, started))
    result, receipt, blobs = receipt_of(asked, raw, 1, 0, started)
    try:
        pending = await persist_async(
            session, partial(session.build_receipt, receipt, blobs), _LABEL
        )
    except Refused as refused:
        await drive_async(_refused(asked, refused))
    else:
        session.committed(pending)
    return result
