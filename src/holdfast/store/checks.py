"""Validation of arguments, the same for every store, before anything happens.

Databases differ in what they accept, and a value that one of them rejects would fail every other
append in its batch. So all stores refuse the same things.

Not here: what a run's log refuses because of its state (`fence.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.log import Record, check_run_id
from holdfast.errors import InvalidInput
from holdfast.store.base import (
    PRIORITIES,
    UNCLAIMABLE_STATUSES,
    Append,
    ClaimFilter,
    Creation,
    Filter,
    RegisteredAgent,
    RowChange,
)


def check_text(what: str, text: str) -> str:
    """The text itself, or InvalidInput: NUL and lone surrogates are not kept alike everywhere."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be text, not {text!r}")
    if "\0" in text:
        raise InvalidInput(f"{what} {text!r} contains a NUL character; remove it")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"{what} {text!r} is not valid UTF-8: it contains a lone surrogate. "
                "Decode the bytes it came from with errors='replace'"
            ) from None
    return text


def check_new_run(creation: Creation) -> None:
    """InvalidInput if a store must not create this."""
    run, records = creation.run, creation.records
    check_run_id(run.id)
    check_text("agent", run.agent)
    check_text("input digest", run.input_digest)
    check_text("code version", run.code_version)
    check_text("parent", run.parent)
    check_text("worker", creation.worker)
    for key, _ in creation.keys:
        check_text("idempotency key", key)
    check_priority(run.priority)
    if not run.agent:
        raise InvalidInput(f"run {run.id!r} has no agent")
    if not records:
        raise InvalidInput(
            f"run {run.id!r} has no first record; a log starts with the run's creation"
        )
    _check_order(run.id, -1, records)


def check_registered(agent: RegisteredAgent) -> RegisteredAgent:
    """The agent itself, or InvalidInput for text that no run can have."""
    check_text("agent", agent.name)
    check_text("code version", agent.code_version)
    if not agent.name:
        raise InvalidInput("an agent needs a name that is not empty")
    return agent


def check_priority(priority: object) -> int:
    """The priority itself, or InvalidInput."""
    if (
        isinstance(priority, int)
        and not isinstance(priority, bool)
        and PRIORITIES.start <= priority < PRIORITIES.stop
    ):
        return priority
    raise InvalidInput(
        f"priority must be a whole number from {PRIORITIES.start} to {PRIORITIES.stop - 1}, not "
        f"{priority!r}; each point counts as a minute of waiting"
    )


def check_claim_filters(filters: Sequence[ClaimFilter]) -> Sequence[ClaimFilter]:
    """What a worker asks for, or InvalidInput for text that no run can have."""
    for one in filters:
        check_text("agent", one.agent)
        check_text("code version", one.code_version)
    return filters


def check_append(work: Append) -> None:
    """InvalidInput if a store must not write this, whatever the state of the run."""
    check_text("run id", work.run_id)
    check_text("idempotency key", work.claims_key)
    if work.epoch is not None and work.epoch < 0:
        raise InvalidInput(f"{work.epoch} is not an epoch; None is for an event from outside")
    if work.claims_key and not work.records:
        raise InvalidInput(f"key {work.claims_key!r} is claimed without a record")
    _check_order(work.run_id, work.after, work.records)
    if work.change is not None:
        _check_change(work.change)


def _check_order(run_id: str, after: int, records: Sequence[Record]) -> None:
    for seq, record in enumerate(records, after + 1):
        if record.seq != seq:
            raise InvalidInput(f"run {run_id!r}: record {record.seq}, but {seq} is next")


def _check_change(change: RowChange) -> None:
    check_text("waiting_for", change.waiting_for)
    check_text("waiting_kinds", change.waiting_kinds)
    for run_id in change.wakes:
        check_text("run id", run_id)
    status, due_at = change.status, change.due_at
    if due_at is not None and not 0 <= due_at < 2**63:
        raise InvalidInput(f"due_at {due_at} is not a time in microseconds")
    if status in (None, "waiting"):
        return
    if status == "pending":
        if due_at is None and not change.wake:
            raise InvalidInput("a pending run needs a due time, or no worker would claim it")
    elif status not in UNCLAIMABLE_STATUSES:
        raise InvalidInput(f"a run cannot end as {status!r}")
    elif due_at is not None:
        raise InvalidInput(f"a run that is {status} is never due")


def check_whole(what: str, number: object, *, least: int = -(2**63)) -> int:
    """The number itself, or InvalidInput: databases keep whole numbers of 64 bits."""
    if isinstance(number, int) and not isinstance(number, bool) and least <= number < 2**63:
        return number
    raise InvalidInput(f"{what} must be a whole number, not {number!r}")


def check_filter(filter: Filter) -> None:
    """InvalidInput for text that no run can have."""
    check_text("status", filter.status)
    check_text("agent", filter.agent)
    check_text("parent", filter.parent)
