"""What is checked before a run is resumed: its status, its age, the version of its code.

Each check that fails reports which it was and how to override it. The chain of the log is not checked here but
where the log is read, and cannot be overridden.

A run's age counts from when it was last heard of: written to, woken, or due by itself (a timer is not late
because it is long). A run that was never started has no age: it is not resumed, but started.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.core import events as e
from holdfast.core import log
from holdfast.core.policy import MICROSECONDS
from holdfast.errors import InvalidInput, NotResumable, Remedy
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.store.base import TERMINAL_STATUSES, RunRow, Store
from holdfast.store.cancel import children
from holdfast.store.pages import the_end
from holdfast.store.process import is_held

CHECKS: Final = ("age", "version")
"""What is checked before a resume and may be overridden."""


def check(
    store: Store,
    row: RunRow,
    spec: AgentSpec,
    override: Sequence[str] = (),
    *,
    reopens: bool = False,
) -> None:
    """Whether a run, whose row was not claimed yet, may be resumed; else NotResumable.

    `reopens` says that a failed one will be, so that it is checked too; otherwise its failure is reported.
    """
    if isinstance(override, str) or not isinstance(override, Sequence):
        raise InvalidInput(
            f"override takes a list of checks, for example override=['age'], not {override!r}"
        )
    unknown = [name for name in override if name not in CHECKS]
    if unknown:
        raise InvalidInput(
            f"{unknown[0]!r} is not a check; checks that can be overridden are {', '.join(CHECKS)}"
        )
    ended = row.status in TERMINAL_STATUSES and not (reopens and row.status == "failed")
    if ended or is_held(row, store.now()):
        return  # then its end is reported, or which process executes it
    if "age" not in override and row.epoch > 0:
        _check_age(store, row.id, spec, [row.updated_at, row.due_at])
    versions = (spec.version, *spec.continues)
    known = bool(row.code_version and spec.version)
    if "version" not in override and known and row.code_version not in versions:
        what = f"it was started with version {row.code_version!r} of {spec.name}, this is {spec.version!r}"
        raise NotResumable(row.id, "version", what, *_remedies(row.id, "version"))


def check_claimed(
    store: Store, row: RunRow, spec: AgentSpec, due_at: Iterable[int | None] = ()
) -> None:
    """The same for one that a worker has claimed: only of a status and version that it may resume.

    A claim overwrites when the row was last written, but the log has it. `due_at` is when the run's time
    is up, whatever it is waiting for.
    """
    last = the_end(store, row.id)[0]
    event = log.read_event(row.id, last)
    wake_at = event.wake_at if isinstance(event, e.RunSuspended) else None
    # The end of one wakes its parent.
    ends = [child.updated_at for child in children(store, row.id)]
    heard = [last.time, wake_at, *due_at, *ends]
    _check_age(store, row.id, spec, heard)


def _check_age(store: Store, run_id: str, spec: AgentSpec, heard_at: Iterable[int | None]) -> None:
    now, max_age = store.now(), spec.checkpoint.max_age_us
    age = now - max(at for at in heard_at if at is not None and at <= now)
    if max_age is not None and age > max_age:
        what = (
            f"its last activity was {age // MICROSECONDS:,} s ago, and its agent has "
            f"max_age={spec.checkpoint.max_age:g}"
        )
        raise NotResumable(run_id, "age", what, *_remedies(run_id, "age"))


def _remedies(run_id: str, check: str) -> tuple[Remedy, Remedy]:
    call = f"hf.resume({run_id!r}, override=[{check!r}])"
    override = Remedy("to override", call, ("resume", "FILE", run_id, "--override", check))
    return override, Remedy("to start over", f"hf.rerun({run_id!r})", ("rerun", "FILE", run_id))
