"""Match: what the log has recorded of a request, and the recorded outcome given to the code.

How they are compared is `core/match.py`; here the log is read as far as needed, and the branch moves.
Not here: what becomes of a call that has an intent and no receipt (`recover.py`).
"""

from __future__ import annotations

from typing import Any

from holdfast.core import events as e
from holdfast.core.branch_path import BranchPath
from holdfast.core.entry import Entry
from holdfast.core.match import NEW, Differs, Moved, New, Open, Recorded, match
from holdfast.errors import NotStorable
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.operations import Flow, Replay
from holdfast.runtime.call.receipt import failure, note_duration, result_lost
from holdfast.runtime.call.recover import cancel_child, doubt
from holdfast.runtime.call.request import CallRequest, CodeRequest
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.session import Session, recorded_text


def replay(request: CallRequest, entry: Entry) -> Flow[Any]:
    """The recorded outcome, when it is its turn."""
    if entry.settled_as("done"):
        yield from _refuse_misfit(request, entry)
    if entry.is_cut_off and request.session.lines is not None:
        given_up = None
        if request.spec.is_child and request.session.only_replay is None:
            # The process may have died after it recorded this and before it cancelled the child.
            given_up = yield from cancel_child(request, entry.step)
        try:
            yield Replay(request.session, [request.place], is_cut=True, given_up=given_up)
        finally:
            request.session.view.show(entry.seq)
            request.session.journal.forget(*request.place)
    else:
        yield Replay(request.session, [request.place])
    return recorded(request, entry)


def recorded(request: CallRequest, entry: Entry) -> Any:
    """The outcome that the log contains: returned or raised, nothing executed."""
    branch, done = request.branch, entry.done
    session = branch.session
    if done is not None and done.buffered:
        # It was written later than it was given to the code.
        session.view.count_unshown(done, entry.seq)
    else:
        session.view.show(entry.seq)
    session.journal.forget(branch.path, request.index)
    resolved = entry.resolved
    if done is not None and (resolved is None or resolved.how != "done"):
        if done.unavailable:
            raise result_lost(request, done.unavailable, done.step)
        note_duration(request.spec.name, done.duration_us)
        result = done.result
        return request.spec.result.decode(
            result.json if not result.blob else session.unwrap(result)
        )
    if resolved is not None and resolved.how == "done":
        return request.spec.result.decode(session.unwrap(resolved.result or e.NULL))
    error = resolved.error if resolved is not None and resolved.error else entry.failures[-1].error
    raise failure(request.spec.name, error, entry.attempts, entry.step)


def check_all_replayed(branch: Branch, attempted: object) -> None:
    """Before anything new: what other branches did, the code must have asked for again.

    Only where no other branch can still be on its way: in the main one, when it is alone.
    """
    journal = branch.session.journal
    if not journal.entries:
        return
    branch, lines = branch.line, branch.session.lines
    if not branch.path and (lines is None or lines.is_in_order):
        for (path, index), entry in journal.unasked():
            if not BranchPath(path).is_main:
                recorded = recorded_text(entry, branch.session.unwrap)
                raise branch.session.diverged((path, index), recorded, str(attempted))


def find(request: CodeRequest) -> Recorded | Open | New:
    """What the log contains of a request, which moves to another place if it may; Diverged if that is something else."""
    branch = request.branch
    session = branch.session
    log, journal = session.log, session.journal
    if log.knows_all and not (journal.entries or branch.path or journal.retries.abandoned_calls):
        return NEW  # as `match` finds; of most steps there is nothing to look for
    while True:
        if request.count > 1 and not log.knows_all:
            for index in range(request.index, request.index + request.count):
                log.entry(branch.path, index)
        found = match(journal, request)
        if isinstance(found, Recorded) and (log.knows_all or not _may_be_retried(found.entry)):
            if found.place[1] != request.index:  # finished on a path that the code has left
                journal.retries.use(found.place)
                branch.give_back(request.index)
                request.index = found.place[1]
            return found
        if not log.knows_all:
            # What follows may change it.
            if isinstance(found, Differs | Moved):
                log.read_all()
            else:
                log.entry(branch.path, request.index)
        elif isinstance(found, Differs):
            raise session.diverged(
                found.place, _recorded_text(request, found), str(request), adds=found.adds
            )
        elif not isinstance(found, Moved):
            return found
        elif found.is_inserted:
            branch.give_back(request.index)
            request.branch = branch = branch.inserted_at(found.place[0])
            request.index, request.forks = branch.take(request.count), 0
        else:
            journal.retries.leave(branch.path, journal.entries)
            request.index = found.place[1]
            branch.index = request.index + request.count


def _may_be_retried(entry: Entry) -> bool:
    return entry.done is None and entry.failed_finally


def _recorded_text(request: CodeRequest, difference: Differs) -> str:
    if difference.entry is not None:
        return recorded_text(difference.entry, request.session.unwrap)
    return "nothing" if difference.place[0] == request.branch.path else "no branch here"


def intent_of_this_run(session: Session, entry: Entry) -> e.CallStarted | None:
    """The recorded intent, unless a fork inherited it: that one's key and approval are another run's."""
    if session.journal.life.lineage.is_inherited(entry.intent_seq):
        return None
    return entry.intent


def _refuse_misfit(request: CallRequest, entry: Entry) -> Flow[None]:
    """A person may have given a result that the tool could never give: then the doubt stands again."""
    assert entry.resolved is not None
    try:
        request.spec.result.decode(request.session.unwrap(entry.resolved.result or e.NULL))
    except NotStorable as error:
        gate(request.session)
        because = (
            f"the result that {entry.resolved.by or 'somebody'} gave does not fit: {error.reason}"
        )
        because += f" (at {error.path})"
        yield from doubt(request, entry.step, entry.attempts, because, known=entry.resolved)
