"""Match what the code asks for with what the log contains at its place.

One pure function for calls, waits and the ends of iterations. A request is one of

- `Recorded`: the same request, with an outcome: the outcome is given to the code, nothing is executed;
- `Open`: the same request, started but without an outcome: what then depends on what the tool declares;
- `New`: the log contains nothing at this place;
- `Moved`: the code rightly asks for something else here, and continues at another place: match again there;
- `Differs`: the log contains something else here, and the run stops before anything new happens.

The code may rightly ask for something else in two cases: a run that failed is resumed and takes another path
(`Retries`), or a person has *accepted new steps*. Then what was recorded before binds by name and occurrence, and
what the code asks for that has no namesake in it is *inserted*, in a branch of its own.

Not here: reading the log page by page, and moving a branch (`runtime/call/match.py`).
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import Raw, Struct

from holdfast.core.ancestors import ForkAncestry
from holdfast.core.branch_path import BranchPath
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Value
from holdfast.core.journal import Journal
from holdfast.core.values import decode


class RequestBranch(Protocol):
    """The branch that a request is made in."""

    @property
    def path(self) -> str: ...


class Request(Protocol):
    """What the code asks for: a call, the first of some waits, or the end of an iteration."""

    @property
    def branch(self) -> RequestBranch: ...

    @property
    def index(self) -> int:
        """Its position in the branch; of several waits that of the first."""

    @property
    def count(self) -> int:
        """How many places it takes."""

    @property
    def name(self) -> str:
        """The name of the call or wait."""

    @property
    def is_insertable(self) -> bool:
        """Whether it may be recorded before something else, when new steps are accepted."""

    def is_recorded_in(self, entry: Entry, number: int, lineage: ForkAncestry) -> bool:
        """Whether this entry is of the same request: of the one with this number, if it is for several waits."""


class Recorded(Struct, frozen=True, gc=False):
    """The log contains the request and its outcome. (Of several waits: the first.)"""

    place: Place
    entry: Entry


class Open(Struct, frozen=True, gc=False):
    """The log contains that the request was made, and no outcome."""

    place: Place
    entry: Entry


class New(Struct, frozen=True, gc=False):
    """The log contains nothing here."""

    entry: None = None


class Moved(Struct, frozen=True, gc=False):
    """The code continues at another place."""

    place: Place
    is_inserted: bool = False
    """It adds a request before what is recorded here; otherwise it has left a path that does not bind it any more."""


class Differs(Struct, frozen=True, gc=False):
    """The log contains something else."""

    place: Place
    entry: Entry | None
    """What it contains; None: there is nothing, where a branch or another wait should be."""
    adds: bool
    """Whether the code only adds to what is recorded: a person may accept that."""


Match = Recorded | Open | New | Moved | Differs
NEW: Final = New()


def match(journal: Journal, request: Request) -> Match:
    """Find a request in the log, as far as it has been read. Nothing is changed."""
    path, index, lineage = request.branch.path, request.index, journal.life.lineage
    if journal.retries.abandoned_calls:
        earlier = journal.retries.done_before(path, lambda x: request.is_recorded_in(x, 0, lineage))
        if earlier is not None:
            return Recorded((path, earlier[0]), earlier[1])
    place, entries = (path, index), journal.entries
    entry = entries.get(place)
    if request.count > 1:
        wrong = _first_wrong_wait(journal, request)
    elif entry is not None and not request.is_recorded_in(entry, 0, lineage):
        wrong = index
    else:
        wrong = None
    if wrong is None:
        if entry is None:
            return NEW if not path else _new(journal, request, path, index)
        is_final = entry.done is not None or entry.final
        return Recorded(place, entry) if is_final else Open(place, entry)
    beyond = journal.retries.place_beyond(path, index, entries)
    if beyond is not None:
        return Moved((path, beyond))
    if request.is_insertable and journal.accepts(path, index):
        return Moved((BranchPath(path).insertion(index), 0), is_inserted=True)
    place = (path, wrong)
    return Differs(place, entries.get(place), not journal.expects(request.name))


def _new(journal: Journal, request: Request, path: str, index: int) -> New | Differs:
    """Nothing is recorded at this place. Its branch must not be one that the code has added among what is recorded,
    unless a person has accepted new steps.

    Even then, code that leaves out, reorders or changes recorded calls does not only add to them: it
    may not ask for more of what it has yet to ask for.
    """
    branch = BranchPath(path)
    if index and not branch.is_insertion:
        return NEW
    while (at := branch.started_at) is not None:
        above = branch.parent
        if branch.is_insertion or not journal.extent.has_started(above, at, branch.number):
            adds = not journal.expects(request.name)
            if not (adds and journal.accepts(above, at)):
                return Differs((above, at), journal.entry(above, at), adds)
        branch = above
    return NEW


def _first_wrong_wait(journal: Journal, request: Request) -> int | None:
    """The first position at which the log contains something else; half of a choice is something else, too."""
    path, first = request.branch.path, request.index
    indexes = range(first, first + request.count)
    entries = [journal.entries.get((path, index)) for index in indexes]
    is_known = any(entries)
    for number, (index, entry) in enumerate(zip(indexes, entries, strict=True)):
        if entry is None:
            if is_known:
                return index
        elif not request.is_recorded_in(entry, number, journal.life.lineage):
            return index
    return None


# ── whether a request is the recorded one ────────────────────────────────────────────────────


class CallIdentity(Protocol):
    """What a call is compared by."""

    @property
    def name(self) -> str: ...
    @property
    def args(self) -> bytes: ...
    @property
    def digest(self) -> str: ...
    def read(self, value: Value) -> bytes:
        """The JSON bytes of a recorded value, which may be kept outside the log."""


def is_same_call(call: CallIdentity, entry: Entry, number: int, lineage: ForkAncestry) -> bool:  # noqa: ARG001 (a method of requests)
    """Whether this call is recorded here: by its name and its arguments."""
    name = call.name
    done = entry.done
    if done is not None and entry.wait is None and entry.name == name:
        kept = done.args
        if kept is not None and kept.json == Raw(call.args):
            return True
    if entry.is_wait or entry.iteration is not None or (entry.name and entry.name != name):
        return False
    recorded = entry.args_digest
    if not recorded or recorded == call.digest:
        return True
    if not lineage.is_inherited(entry.seq):
        return False
    if entry.args is None:
        return recorded in lineage.possible_digests(call.args)
    return lineage.is_same_value(decode(call.read(entry.args)), decode(call.args))


def is_same_wait(wait: str, name: str, entry: Entry, lineage: ForkAncestry) -> bool:
    """Whether the code waited here, for this."""
    recorded = entry.wait
    if recorded is None or recorded.tool or recorded.wait != wait:
        return False
    return recorded.name == name or (
        lineage.is_inherited(entry.seq) and lineage.is_same_text(recorded.name, name)
    )
