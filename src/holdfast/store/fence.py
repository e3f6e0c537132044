"""The rule of the fence, in one place for all stores: which appends must not be written, and why.

Pure: a store finds out, inside its transaction, where each log ends, and asks here.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.errors import Conflict, LeaseLost, NotFound, Woken
from holdfast.store.base import Append, RowChange


class LogPosition(NamedTuple):
    """Where a run's log ends inside the transaction that is about to append to it."""

    epoch: int
    head: int
    hash: bytes = b""
    key: int = 0
    """The store's own name for the run."""
    woken: int = 0
    """How often the run was woken."""


_new: Final = tuple.__new__
"""Makes a LogPosition; its own constructor is written in Python."""


def refusals(
    batch: Sequence[Append],
    positions: dict[str, LogPosition],
    claim_key: Callable[[Append], Exception | None] | None = None,
) -> tuple[list[Exception | None], dict[str, LogPosition]]:
    """Which appends of a batch must not be written, and why; None for the others. And where the logs
    stand that the others make longer, when they are written.

    The epoch must be the run's current one, the log must end where the caller believes, and a run that is
    suspended must not have been woken since. One refusal fails only its own append (and later ones of the
    same run, which were built on it). `claim_key` is asked to take the key of an append that passes so far
    and has one; its refusal counts like the others.
    """
    ends: dict[str, LogPosition] = {}
    now = positions.copy()  # where the logs end after what was accepted before
    refused: list[Exception | None] = []
    wakes: dict[str, int] = {}  # by appends of this batch that come before
    for work in batch:
        run_id = work.run_id
        at = now.get(run_id)
        if at is None:
            refused.append(NotFound(f"no run {run_id!r}"))
            continue
        epoch, head, end, key, woken = at
        if work.epoch is not None and work.epoch != epoch:
            refused.append(LeaseLost(run_id, work.epoch, epoch))
        elif work.after != head or (work.before and end and work.before != end):
            refused.append(Conflict(run_id, work.after, head))  # not chained to what is there
        elif work.change is not None and not _may_settle(work.change, woken + wakes.get(run_id, 0)):
            refused.append(Woken(run_id))
        elif work.claims_key and claim_key and (error := claim_key(work)):
            refused.append(error)
        else:
            if work.change is not None:
                own = (run_id,) if work.change.wake else ()
                for woken_id in (*own, *work.change.wakes):
                    wakes[woken_id] = wakes.get(woken_id, 0) + 1
            if work.records:
                seq, _, _, _, _, hash_ = work.records[-1]
                now[run_id] = ends[run_id] = _new(LogPosition, (epoch, seq, hash_, key, woken))
            refused.append(None)
    return refused, ends


def _may_settle(change: RowChange, woken: int) -> bool:
    return change.woken is None or change.woken == woken
