"""How waits, and the signals and decisions that end them, change a run's state."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.core import events as e
from holdfast.core.draft import DraftState, Handlers
from holdfast.core.state import ReceivedSignal, Waiting


def _wait_began(draft: DraftState, x: e.WaitBegan) -> None:
    draft.open.waits[x.branch, x.index] = Waiting(
        index=x.index,
        wait=x.wait,
        name=x.name,
        since=draft.updated_at,
        branch=x.branch,
        until=x.until,
        show=x.show,
        options=x.options,
        digest=x.digest,
        tool=x.tool,
        tool_version=x.tool_version,
        of=x.of,
    )


def _wait_ended(draft: DraftState, x: e.WaitEnded) -> None:
    draft.open.waits.pop((x.branch, x.index), None)
    draft.open.signals.pop(x.source, None)


def _signal(draft: DraftState, x: e.SignalReceived) -> None:
    draft.open.signals[draft.seq] = ReceivedSignal(x.id, x.name, x.value, draft.seq)


def _approval(draft: DraftState, x: e.ApprovalDecided) -> None:
    _mark_decided(draft, x.branch, x.index)
    draft.add_line("approval", x.by, x.why, "approved" if x.approved else "rejected")


def _answer(draft: DraftState, x: e.AnswerGiven) -> None:
    _mark_decided(draft, x.branch, x.index)
    draft.add_line("answer", x.by, x.why, "answered")


def _mark_decided(draft: DraftState, branch: str, index: int) -> None:
    wait = draft.open.waits.get((branch, index))
    if wait is not None:
        draft.open.waits[branch, index] = msgspec.structs.replace(wait, decided=True)


WAITS: Final[Handlers] = {
    e.WaitBegan: _wait_began,
    e.WaitEnded: _wait_ended,
    e.SignalReceived: _signal,
    e.ApprovalDecided: _approval,
    e.AnswerGiven: _answer,
}
