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
from typing import Any, Final

from holdfast.core import events as e
from holdfast.errors import StoreError, Suspend
from holdfast.runtime.commit import commit_again
from holdfast.runtime.context import CURRENT, Inside
from holdfast.runtime.drivers import (
    cut_while_committing,
    drive,
    drive_async,
    invoke,
    invoke_async,
    told,
)
from holdfast.runtime.effects import Asked, Flow, Invoke, Refused
from holdfast.runtime.flow import check_all_replayed, first_failed, receipt_of
from holdfast.runtime.gate import gate
from holdfast.runtime.session import Session

_BEFORE: Final = f"before commit {e.CallSucceeded.kind}"
_AFTER: Final = f"after commit {e.CallSucceeded.kind}"


def goes_straight(asked: Asked) -> bool:
    """Whether this call, which the log does not hold, is its body and a receipt that is written at once."""
    return asked.spec.is_plain and asked.branch.session.takes_plain_steps


def _begin(asked: Asked, session: Session) -> int:
    """Nothing stands against the call; when it begins."""
    if session.journal.entries:
        check_all_replayed(asked.branch, asked)
    gate(session)
    started = session.store.now()
    session.check_lease()
    return started


def _inside(asked: Asked, session: Session) -> Inside:
    spec = asked.spec
    return Inside(spec.name, spec.effect, session.run_id)


def _watched(asked: Asked, session: Session) -> Invoke:
    """The body as an effect: for a test that puts another in its place, or stops the process there."""
    spec = asked.spec
    return Invoke(session, spec.body, asked.bound, _inside(asked, session), spec.is_async)


def _refused(asked: Asked, refused: Refused) -> Flow:
    yield from commit_again(refused, e.CallSucceeded.kind, evidence=asked)
    asked.session.journal.forget(asked.branch.path, asked.index)


# ── blocking ─────────────────────────────────────────────────────────────────────────────────


def make(asked: Asked) -> Any:
    """Make the call; its result."""
    session = asked.branch.session
    is_watched = session.is_watched
    try:
        started = _begin(asked, session)
        try:
            if is_watched:
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
        if is_watched:
            session.point(_BEFORE)
        pending, wait = session.submitted_receipt(receipt, blobs, session.store.submit)
        try:
            wait()
        except StoreError as error:
            drive(_refused(asked, Refused(pending, error)))
            return result
        if is_watched:
            session.point(_AFTER)
        session.committed(pending)
        return result
    except Suspend as signal:
        asked.branch.suspend(signal)
        raise


# ── awaiting ─────────────────────────────────────────────────────────────────────────────────


async def make_async(asked: Asked) -> Any:
    """The same for a step that is awaited."""
    session = asked.branch.session
    is_watched = session.is_watched
    started = _begin(asked, session)
    try:
        if is_watched:
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
    if is_watched:
        session.point(_BEFORE)
    pending, durable = session.submitted_receipt(receipt, blobs, session.store.append_async)
    try:
        try:
            await durable
        except StoreError as error:
            raise Refused(pending, error) from error
        except asyncio.CancelledError as cut:
            cut_while_committing(pending, durable, cut)
    except Refused as refused:
        await drive_async(_refused(asked, refused))
        return result
    if is_watched:
        session.point(_AFTER)
    session.committed(pending)
    return result
