"""Match: what the log has recorded of a call, and the recorded outcome given to the code.

A call is found by its place and compared by name and arguments. Something else at its place: `Diverged`.
Not here: what becomes of a call that has an intent and no receipt (`recover.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Raw

from holdfast.core import events as e
from holdfast.core.branch_path import BranchPath
from holdfast.core.effect import Effect
from holdfast.core.entry import Entry
from holdfast.core.values import decode
from holdfast.errors import (
    NotStorable,
)
from holdfast.runtime.call import durations
from holdfast.runtime.call.cancelled import cancel_child
from holdfast.runtime.call.gate import gate
from holdfast.runtime.call.operations import (
    CallRequest,
    Flow,
    Replay,
)
from holdfast.runtime.call.recover import doubt
from holdfast.runtime.call.results import (
    failure,
    result_lost,
)
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.session import Session


def replay(request: CallRequest, entry: Entry) -> Flow[Any]:
    """The recorded outcome, when it is its turn."""
    if entry.settled_as("done"):
        yield from _refuse_misfit(request, entry)
    if entry.is_cut_off and request.session.lines is not None:
        given_up = None
        if request.spec.effect == Effect.CHILD and request.session.only_replay is None:
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
    if done is not None and not entry.settled_as("done"):
        if done.unavailable:
            raise result_lost(request, done.unavailable, done.step)
        durations.note(request.spec.name, done.duration_us)
        result = done.result
        return request.spec.result.decode(
            result.json if not result.blob else session.unwrap(result)
        )
    resolved = entry.resolved
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
    if not branch.path and (lines is None or lines.is_alone):
        for (path, index), entry in journal.unasked():
            if not BranchPath(path).is_main:
                recorded = branch.session.shown(entry)
                raise branch.session.diverged((path, index), recorded, str(attempted))


def match_call(request: CallRequest) -> Entry | None:
    """What the log contains at this place; Diverged if it is something else."""
    branch = request.branch
    session = branch.session
    left = None
    if session.journal.retries.left:
        left = session.journal.retries.done_before(branch.path, partial(_is_same, request))
    if left is not None:
        branch.give_back(request.index)
        request.index = left[0]
        return left[1]
    entries = session.journal.entries
    held = entries.get((branch.path, request.index)) if entries else None
    if not session.log.knows_all and (held is None or held.done is None):
        held = session.log.entry(branch.path, request.index)
    if held is None:
        if branch.parent is not None and (branch.is_aside or not request.index):
            check_added(branch, request.spec.name, request)
        return None
    if _is_same(request, held):
        return held
    beside = session.journal.leave(branch.path, request.index)
    if beside is not None:
        request.index, branch.index = beside, beside + 1
        return match_call(request)
    if not session.journal.accepts(branch.path, request.index):
        adds = not session.log.expects(request.spec.name)
        raise session.diverged(request.place, session.shown(held), str(request), adds=adds)
    branch.give_back(request.index)
    request.branch = branch.aside(request.index)
    request.index, request.forks = request.branch.take(), 0
    return match_call(request)


def check_added(branch: Branch, name: str, attempted: object) -> None:
    """Before the first thing that is new in a branch: the branch itself must not be one that the code
    has added among what is recorded, unless a person has accepted new steps.

    Even then, code that leaves out, reorders or changes recorded calls does not only add to them: it
    may not ask for more of what it has yet to ask for.
    """
    session, line = branch.session, branch
    while line.parent is not None:
        path, index, journal = line.parent.path, line.started_at, session.journal
        if line.is_aside or not journal.extent.has_started(path, index, line.number):
            adds = not session.log.expects(name)
            if not (adds and journal.accepts(path, index)):
                held = journal.entry(path, index)
                recorded = "no branch here" if held is None else session.shown(held)
                raise session.diverged((path, index), recorded, str(attempted), adds=adds)
        line = line.parent


def _is_same(request: CallRequest, entry: Entry) -> bool:
    done = entry.done
    if done is not None and entry.wait is None and entry.name == request.spec.name:
        kept = done.args
        if kept is not None and kept.json == Raw(request.args):
            return True
    other = entry.is_wait or entry.iteration is not None
    if other or (entry.name and entry.name != request.spec.name):
        return False
    recorded = entry.args_digest
    if not recorded or recorded == request.digest:
        return True
    return request.session.journal.is_inherited(entry) and _is_same_for_fork(request, entry)


def _is_same_for_fork(request: CallRequest, entry: Entry) -> bool:
    """Whether an inherited call differs from this one only in the run's id."""
    session = request.session
    lineage, args = session.journal.life.lineage, entry.args
    if args is None:
        return entry.args_digest in lineage.possible_digests(request.args)
    return lineage.is_same_value(decode(session.unwrap(args)), decode(request.args))


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
        yield from doubt(request, entry.step, entry.attempts, because)
