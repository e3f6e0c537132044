"""What a run is waiting for, as data. Sentences about it are made in `holdfast.words.waiting`."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

WaitingKind = Literal[
    "approval",
    "answer",
    "signal",
    "timer",
    "retry",
    "rate",
    "room",
    "child",
    "decision",
    "key",
    "resume",
    "quarantine",
    "override",
    "code",
    "person",
    "owner",
    "worker",
    "other",
]
"""What must happen before the run continues:

approval, answer, signal: people or programs send it;  timer, retry, rate: a time comes;  room: fewer runs or calls of
this name are under way;  child: a child run ends;  decision: a person resolves a call in doubt;  key: another run
finishes a call with the same idempotency key;  resume: a person resumes it;  quarantine, override: the same, of a run
that was set aside, or that a check refuses;  code: its code is put right;  person: a person fixes what `reason` says;
owner: the process that executes it ends or releases it;  worker: any worker claims it;  other: only a text is known.
"""


class WaitingFor(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One thing that a run is waiting for. Times are microseconds since 1970."""

    kind: str
    """One of `WaitingKind`; a newer Holdfast may know others."""
    name: str = ""
    """The tool, signal, question, agent or process that it is about."""
    since: int | None = None
    until: int | None = None
    """When it ends by itself."""
    request_id: str = ""
    """How people name the request when they decide."""
    step: int = 0
    tool: str = ""
    """The tool whose call needs an approval."""
    run_id: str = ""
    """The child run, or the run that holds an idempotency key."""
    names: tuple[str, ...] = ()
    """Of a signal: any of these."""
    options: tuple[str, ...] = ()
    """Of a question: what may be answered."""
    limit: int = 0
    reason: str = ""
    how: str = ""
    """How to continue, if that does not follow from the kind."""
    child: tuple["WaitingFor", ...] = ()
    """What the child run is waiting for."""


FOR_PEOPLE: Final = frozenset(
    {"approval", "answer", "decision", "resume", "quarantine", "override", "person"}
)
"""The kinds that a person has to do something about."""


def kinds_of(waits: Iterable[WaitingFor]) -> str:
    """The kinds of these, as they are stored in the row of a run."""
    return " ".join(dict.fromkeys(x.kind for x in waits))


def is_for_people(waiting_kinds: str) -> bool:
    """Whether a run is waiting for something that a person has to do, by the kinds in its row."""
    return not FOR_PEOPLE.isdisjoint(waiting_kinds.split())


def is_in_doubt(waiting_kinds: str) -> bool:
    """Whether a run is waiting for a decision about a call in doubt, by the kinds in its row."""
    return "decision" in waiting_kinds.split()
