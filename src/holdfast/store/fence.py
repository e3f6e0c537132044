"""The rule of the fence, in one place for all stores: which appends must not be written, and why.

Pure: a store finds out, inside its transaction, where each log ends, and asks here.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.errors import Conflict, LeaseLost, NotFound, Woken
from holdfast.store.base import Append, RowChange


class LogPosition(Struct, frozen=True, gc=False):
    """Where a run's log ends inside the transaction that is about to append to it."""

    epoch: int
    head: int
    hash: bytes = b""
    key: int = 0
    """The store's own name for the run."""
    woken: int = 0
    """How often the run was woken."""


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
        epoch, own, change = at.epoch, work.epoch, work.change
        if own != epoch and own is not None:
            refused.append(LeaseLost(run_id, own, epoch))
        elif work.after != at.head or (work.before != at.hash and work.before and at.hash):
            refused.append(Conflict(run_id, work.after, at.head))  # not chained to what is there
        elif change is not None and not _may_settle(change, at.woken + wakes.get(run_id, 0)):
            refused.append(Woken(run_id))
        elif work.claims_key and claim_key and (error := claim_key(work)):
            refused.append(error)
        else:
            if change is not None:
                itself = (run_id,) if change.wake else ()
                for woken_id in (*itself, *change.wakes):
                    wakes[woken_id] = wakes.get(woken_id, 0) + 1
            if work.records:
                last = work.records[-1]
                now[run_id] = ends[run_id] = LogPosition(epoch, last[0], last[5], at.key, at.woken)
            refused.append(None)
    return refused, ends


def _may_settle(change: RowChange, woken: int) -> bool:
    return change.woken is None or change.woken == woken
