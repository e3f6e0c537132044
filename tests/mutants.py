"""`python tests/mutants.py`: plant each bug that the suite must find, and show that it does.

A suite that passes on broken code proves nothing. Each mutant below is one classic mistake of a state
layer, made in a copy of the source; the named tests are run against the copy and must fail. A mutant
that survives, or whose text no longer occurs in the source, makes this script fail.

With `--fuzz`, those of branches and children are shown to the fuzzer instead (`python -m fuzz` in `tests/`).
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
PLAIN = ("--tb=native", "-p", "no:cacheprovider")
"""Options of pytest. Its own traceback of a very deep error can crash the parser of Python 3.11."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """One mutant: where, what, and which tests must notice.

    `where` is a file and a function in it, as `runtime/call/flow.py::_make` or `store/fence.py::Fence.check`; in SQL
    a named statement or function. Only text inside that function is replaced, so code elsewhere may change.
    """

    name: str
    where: str
    before: str
    after: str
    tests: tuple[str, ...]
    together: tuple[str, ...] = ()
    """Mutants that are planted with it: a promise that is kept in several places is broken only in all of them."""

    @property
    def file(self) -> str:
        return self.where.partition("::")[0]

    def planted(self, text: str) -> str:
        """The text of its file with the bug in it; LookupError if it does not fit exactly once."""
        begin, end = extent(text, self.where)
        inside = text[begin:end]
        if (count := inside.count(self.before)) != 1:
            raise LookupError(f"{self.name}: its text occurs {count} times in {self.where}")
        return text[:begin] + inside.replace(self.before, self.after) + text[end:]


def extent(text: str, where: str) -> tuple[int, int]:
    """Where in the text of its file a function begins and ends; LookupError if it is not there."""
    file, _, function = where.partition("::")
    if not function:
        return 0, len(text)
    found = _sql_extent(text, function) if file.endswith(".sql") else _python_extent(text, function)
    if found is None:
        raise LookupError(f"there is no {function} in {file}")
    return found


def _python_extent(text: str, qualified_name: str) -> tuple[int, int] | None:
    node: ast.AST = ast.parse(text)
    for name in qualified_name.split("."):
        inner = (x for x in ast.walk(node) if isinstance(x, FUNCTIONS) and x.name == name)
        node = next(inner, ast.Pass())
    if not isinstance(node, FUNCTIONS) or node.end_lineno is None:
        return None
    lines = text.splitlines(keepends=True)
    return len("".join(lines[: node.lineno - 1])), len("".join(lines[: node.end_lineno]))


def _sql_extent(text: str, name: str) -> tuple[int, int] | None:
    """A statement that begins with `-- name: …` and ends at the next, or a function that ends with `$$;`."""
    begins = rf"-- name: {name}\n.*?(?=^-- name: |\Z)|CREATE FUNCTION holdfast\.{name}\(.*?^\$\$;"
    found = re.search(rf"^(?:{begins})", text, re.MULTILINE | re.DOTALL)
    return None if found is None else found.span()


KILLS = "tests/runtime/test_kill_everywhere.py::test_a_run_killed_at_any_boundary_ends_as_if_nothing_had_happened"
BRANCHES = "tests/runtime/test_branches.py"

MUTANTS = (
    Mutant(
        "no intent is committed",
        "runtime/declare/call_spec.py::CallSpec.__post_init__",
        '"has_intent": self.effect.has_intent',
        '"has_intent": False',
        (f"{KILLS}[careful]",),
    ),
    Mutant(
        "the receipt comes before the effect",
        "runtime/call/attempt.py::_attempt",
        "    started_at = session.store.now()\n    session.check_lease()\n",
        "    started_at = session.store.now()\n    session.check_lease()\n"
        "    if spec.has_intent:\n"
        "        early = e.CallSucceeded(branch=request.branch.path, index=request.index, step=step,\n"
        "                                name=spec.name, result=e.NULL, attempt=number)\n"
        "        yield from commit(session, [early])\n",
        (f"{KILLS}[chain]",),
    ),
    Mutant(
        "the effect begins without a look at the lease",
        "runtime/log/session.py::Session.check_lease",
        "if self.lease_ends <= elapsed():",
        "if False:",
        ("tests/runtime/test_zombie.py",),
    ),
    Mutant(
        "a worker that lost its lease reads what the next one records",
        "runtime/log/reader.py::LogReader.refresh",
        "if newest > self._epoch:",
        "if False:",
        ("tests/runtime/test_zombie.py",),
    ),
    Mutant(
        "the end of an event loop is a cancellation by the code",
        "runtime/call/line_task.py::LineTask.cancel",
        "if not self.lines.loop.is_running():",
        "if False:",
        ("tests/runtime/test_cancelled_callers.py",),
    ),
    Mutant(
        "the timeout of asyncio.wait is not recorded",
        "runtime/lines/line.py::Line._classify",
        "if name in _LIMITED and isinstance(awaited, asyncio.Future):",
        "if False:",
        ("tests/runtime/test_branches.py",),
    ),
    Mutant(
        "asyncio.as_completed starts branches in random order",
        "runtime/call/task_factory.py::_BranchingFactory.__call__",
        "if starts_in_any_order():",
        "if False:",
        ("tests/runtime/test_branches.py",),
    ),
    Mutant(
        "a branch that the code has added passes for one that it had started",
        "core/journal.py::Extent.has_started",
        "return not self.reaches(branch, index) or self.forks.get((branch, index), 0) >= number",
        "return True",
        ("tests/runtime/test_divergence.py", "-k", "added"),
    ),
    Mutant(
        "a task that was started before the crash passes for one that was added",
        "runtime/log/branches.py::Branch.take",
        "self.forked, self.forks = self.forks, 0",
        "self.forked, self.forks = 0, 0",
        ("tests/runtime/test_divergence.py", "-k", "started"),
    ),
    Mutant(
        "accepting new steps accepts calls that were changed, too",
        "core/journal.py::Journal.expects",
        "            x.name == name and (not self.accepted or x.first_seq < self.accepted)\n",
        "            False\n",
        ("tests/runtime/test_divergence.py", "-k", "accept"),
    ),
    Mutant(
        "a call that the code cancelled is answered when it is replayed",
        "core/entry.py::Entry.is_cut_off",
        "return bool(self.failures) and self.failures[-1].cut and self.failed_finally",
        "return False",
        ("tests/runtime/test_cancelled_calls.py",),
    ),
    Mutant(
        "a wait that the code gave up is over in time when it is replayed",
        "runtime/call/waits.py::_give_up",
        "wait_ended(at, entry, CUT, above)",
        'wait_ended(at, entry, "time")',
        ("tests/runtime/test_cancelled_calls.py", "-k", "gave_up"),
    ),
    Mutant(
        "a run that is ended from outside looks as if its code had cut its calls off",
        "runtime/log/session.py::Session.is_ending",
        "return self.is_unwinding or self.stop_signal is not None",
        "return False",
        ("tests/runtime/test_cancelled_calls.py", "-k", "outside"),
    ),
    Mutant(
        "the fence is not checked where the append is committed",
        "store/fence.py::refusals",
        "if own != epoch and own is not None:",
        "if False:",
        ("tests/store/test_conformance.py", "-k", "sqlite"),
    ),
    Mutant(
        "the epoch starts over after a release",
        "store/sql/sqlite/queries.sql::release",
        "claims = max(0, claims - :forgiven)",
        "claims = max(0, claims - :forgiven), epoch = 0",
        ("tests/store/test_conformance.py", "-k", "sqlite"),
    ),
    Mutant(
        "synchronous=NORMAL",
        "store/sqlite/file.py::_set_durable",
        'db.pragma("synchronous", synchronous)',
        'db.pragma("synchronous", "NORMAL")',
        (
            "tests/store/test_sqlite_power_loss.py",
            "tests/store/test_sqlite_faults.py",
            "-k",
            "power or durability",
        ),
    ),
    Mutant(
        "acknowledged before it is committed",
        "runtime/call/driver.py::persist",
        "            batch.ticket.wait()\n",
        "            threading.Timer(0.005, batch.ticket.wait).start()\n",
        (f"{KILLS}[chain]",),
    ),
    Mutant(
        "an unknown commit is sent again as if it had not happened",
        "store/postgres/appends.py::Appends._write_fitting",
        "self.are_stored(db, sending) if unsure else [False] * len(sending)",
        "[False] * len(sending)",
        ("tests/store/test_postgres_faults.py", "-k", "answer_is_lost"),
    ),
    Mutant(
        "an approval is not bound to the bytes that were shown",
        "runtime/call/approval.py::ask_approval",
        "if shown != (request.digest, request.digest, spec.version):",
        "if False:",
        ("tests/runtime/test_people.py",),
    ),
    Mutant(
        "an approval is not used up by the call it allowed",
        "runtime/call/intent.py::record_intent",
        "        approval=approval,\n",
        "        approval=None,\n",
        (f"{KILLS}[gated]",),
    ),
    Mutant(
        "a snapshot is trusted over the log",
        "store/brief.py::_from_snapshot",
        "at[0].hash == kept.hash",
        "at[0].hash",
        ("tests/test_views.py",),
    ),
    Mutant(
        "a bad event is skipped",
        "core/log.py::verify",
        'raise LogDamaged(run_id, expected, "its bytes do not match its hash")',
        "continue",
        ("tests/core/test_log.py",),
    ),
    Mutant(
        "a claim is not counted",
        "store/sql/sqlite/queries.sql::claim",
        "THEN 1 ELSE claims + 1 END",
        "THEN 1 ELSE claims END",
        ("tests/store/test_conformance.py", "-k", "sqlite"),
    ),
    Mutant(
        "a worker forgets its work when the store fails once",
        "runtime/exec/worker.py::Worker.run",
        "self._pause_after(error)",
        "break",
        ("tests/runtime/test_worker.py",),
    ),
    Mutant(
        "a rejected call is made once the code no longer asks",
        "runtime/call/flow.py::_make",
        "    if gated or (entry is not None and entry.wait is not None):",
        "    if gated:",
        ("tests/runtime/test_removed_gate.py",),
    ),
    Mutant(
        "an approval of the other run's call counts in a fork",
        "runtime/call/match.py::intent_of_this_run",
        "    if session.journal.life.lineage.is_inherited(entry.intent_seq):",
        "    if False:",
        ("tests/runtime/test_forks.py",),
    ),
    Mutant(
        "a fork compares what it recorded itself as if it had inherited it",
        "core/ancestors.py::ForkAncestry.is_inherited",
        "return 0 < seq <= self.inherited",
        "return bool(self.ancestors)",
        ("tests/runtime/test_forks.py",),
    ),
    Mutant(
        "the key is made of what the model said",
        "runtime/call/intent.py::record_intent",
        'f"{session.run_id}:{step}:{spec.name}:{digest}"\n    before',
        'f"{session.run_id}:{spec.name}:{digest}"\n    before',
        (f"{KILLS}[chain]",),
    ),
    Mutant(
        "the undo of a child run is treated as a call that may have happened",
        "runtime/call/recover.py::settle_doubt",
        "spec.effect.is_in_child or",
        "spec.effect is Effect.CHILD or",
        ("tests/runtime/test_undo.py", "-k", "however_often"),
    ),
    Mutant(
        "what another branch has read since does not count when a batch is built",
        "runtime/log/writer.py::LogWriter.commit",
        "batch.condition(session)",
        "pass",
        ("tests/runtime/test_branches.py", "-k", "no_call_starts_after and sqlite"),
    ),
    Mutant(
        "a check overrides what a person has decided",
        "runtime/call/recover.py::_refuse_if_resolved",
        "entry.resolved is not known",
        "False",
        ("tests/runtime/test_branches.py", "-k", "doubt_is_looked_into and sqlite"),
    ),
    Mutant(
        "the gate is not asked when an intent is sealed",
        "runtime/call/intent.py::_may_start",
        "if not request.undoes:",
        "if False:",
        (BRANCHES, "-k", "has_read_that_the_run_is_cancelled and sqlite"),
    ),
    Mutant(
        "a call that a person has settled is made again",
        "runtime/call/intent.py::_may_start",
        "entry is not None and entry.final",
        "False",
        ("tests/runtime/test_branches.py", "-k", "right_before_a_call and sqlite"),
    ),
    Mutant(
        "key_ttl is ignored",
        "runtime/call/recover.py::settle_doubt",
        "if intent.key_until is None or session.store.now() < intent.key_until:",
        "if True:",
        ("tests/runtime/test_effects.py",),
    ),
    Mutant(
        "on PostgreSQL the fence is not checked where the append is committed",
        "store/sql/postgres/0001_first.sql::append_events",
        "IF v_key IS NULL OR (p_fences[1] >= 0 AND p_fences[1] <> v_epoch) THEN",
        "IF v_key IS NULL THEN",
        ("tests/store/test_conformance.py", "-k", "postgres"),
    ),
    Mutant(
        "a lease that has expired is renewed",
        "store/sql/sqlite/queries.sql::renew",
        "status = 'running' AND due_at > :now RETURNING 1;",
        "status = 'running' RETURNING 1;",
        ("tests/store/test_conformance.py", "-k", "sqlite"),
    ),
    Mutant(
        "on PostgreSQL a lease that has expired is renewed",
        "store/sql/postgres/queries.sql::renew",
        "WHERE r.key = held.key AND r.due_at > c.now\n",
        "WHERE r.key = held.key\n",
        ("tests/store/test_conformance.py", "-k", "postgres"),
    ),
    Mutant(
        "a run is claimed although another worker holds it",
        "store/sql/sqlite/queries.sql::claim",
        "OR (+status = 'running' AND +due_at <= :now))",
        "OR +status = 'running')",
        ("tests/fleet/test_race.py", "-k", "not postgresql"),
    ),
    Mutant(
        "on PostgreSQL a run is claimed although another worker holds it",
        "store/sql/postgres/queries.sql::claim",
        "OR (r.status = 'running' AND r.due_at <= c.now))",
        "OR r.status = 'running')",
        ("tests/fleet/test_race.py", "-k", "postgresql"),
    ),
    Mutant(
        "on PostgreSQL due runs are chosen and taken without a lock between",
        "store/sql/postgres/queries.sql::claim_due",
        "    FOR NO KEY UPDATE OF d SKIP LOCKED\n",
        "",
        ("tests/fleet/test_race.py", "-k", "postgresql"),
    ),
    Mutant(
        "leases go by the worker's own clock",
        "store/postgres/store.py::PostgresStore._fixed_now",
        "return None if self._clock is None else self._clock()",
        "return time.time_ns() // 1000",
        ("tests/fleet/test_clocks.py",),
    ),
    Mutant(
        "times in the log are those of the worker's own clock",
        "store/postgres/store.py::PostgresStore._open_queues",
        "self.now = self._route.clock.now if self._clock is None else self._clock",
        "self.now = lambda: __import__('time').time_ns() // 1000",
        ("tests/fleet/test_clocks.py",),
    ),
    Mutant(
        "a SQLite store goes by a clock that Python code can fake",
        "store/base.py::system_clock",
        "return _clock_ns(_REALTIME) // 1000",
        "return time.time_ns() // 1000",
        ("tests/fleet/test_clocks.py", "-k", "sqlite"),
    ),
    Mutant(
        "a worker that was told to stop counts against the run",
        "store/sql/sqlite/queries.sql::release",
        "claims = max(0, claims - :forgiven)",
        "claims = max(0, claims - 0 * :forgiven)",
        ("tests/fleet/test_leases.py", "-k", "sqlite"),
    ),
    Mutant(
        "leases are not renewed while the code blocks",
        "runtime/log/lease.py::LeaseKeeper._serve",
        "every = self.lease_seconds / 3\n",
        "every = self.lease_seconds * 30\n",
        ("tests/fleet/test_takeover.py", "-k", "sqlite"),
    ),
    Mutant(
        "a loop goes on from a snapshot that does not fit its log",
        "runtime/call/checkpoints.py::restore",
        "(at[0].seq, at[0].hash) == (kept.seq, kept.hash)",
        "at[0].seq == kept.seq",
        ("tests/agents/test_loop.py",),
    ),
    Mutant(
        "a loop takes a patch from outside in again after each iteration",
        "core/fold_knowledge.py::_iteration_ended",
        "        draft.open.queued.pop(taken, None)\n",
        "        pass\n",
        ("tests/agents/test_loop.py",),
    ),
    Mutant(
        "what the model answered is not recorded",
        "agents/llm.py::LLMAgent._question",
        "declared = step(name=self._step_name, retry=self._retry, outside=outside)",
        "declared: Any = lambda fn: fn",
        (
            "tests/agents/test_llm_kill.py",
            "-m",
            "not nightly",
            "-k",
            "replies_differently_each_time",
        ),
    ),
    Mutant(
        "under a coarser checkpoint strategy an effect begins before its intent is committed",
        "runtime/call/intent.py::record_intent",
        "    try:\n        yield from commit(\n            session,\n            [intent],\n",
        "    if not session.setting.checkpoint.at_step:\n"
        "        session.hold(intent, blobs)\n"
        "        return intent\n"
        "    try:\n        yield from commit(\n            session,\n            [intent],\n",
        ("tests/agents/test_checkpoints.py", "-k", "intent or model_agent"),
    ),
    Mutant(
        "a tool call may be separated from its answer",
        "core/dialogue.py::turns",
        "        if message.tool_calls:\n"
        "            found.append(_exchange(message, _answers(given[i + 1 :]), ids))\n"
        "        elif message.role != Role.TOOL and",
        "        if message.tool_calls:\n"
        "            asked, *said = _exchange(message, _answers(given[i + 1 :]), ids).messages\n"
        "            found += [MessageGroup((asked,)), *(MessageGroup((answer,)) for answer in said)]\n"
        "        elif message.role != Role.TOOL and",
        ("tests/agents/test_dialogue.py",),
    ),
    Mutant(
        "the context ends with the first thing that does not fit",
        "core/context.py::_Packer.fits",
        "        if self.used + size > self.limit:\n",
        "        if self.used + size > self.limit:\n            self.limit = self.used\n",
        ("tests/agents/test_context.py",),
    ),
    Mutant(
        "a stream that breaks off is taken for the whole answer",
        "agents/models/openai.py::OpenAIStream.reply",
        "if not self._finish:",
        "if False:",
        ("tests/agents/test_providers.py", "-k", "tried_again_by_the_log"),
    ),
    Mutant(
        "a decision is written after another event than the one it was based on",
        "store/outside.py::update_run",
        "            before=head.hash,\n",
        "",
        ("tests/runtime/test_decisions.py",),
    ),
    Mutant(
        "a run that ended while somebody decided is written to",
        "store/outside.py::update_run",
        "        records = reads(store, run_id)\n        row = store.get(run_id)",
        "        row = store.get(run_id)\n        records = reads(store, run_id)",
        ("tests/runtime/test_decisions.py",),
    ),
    Mutant(
        "a signal is received as often as it is sent",
        "control/requests.py::signal.decide",
        "WAKE, blobs, key)",
        "WAKE, blobs)",
        ("tests/runtime/test_decisions.py",),
    ),
    Mutant(
        "a parent takes the end of its child's execution for a decision of its code",
        "runtime/call/async_driver.py::_classify",
        "or branch is None or branch.session is not session",
        "",
        ("tests/runtime/test_cancelled_calls.py", "tests/runtime/test_cancelled_callers.py"),
    ),
    Mutant(
        "a call in doubt is not resolved while the run is executed",
        "control/requests.py::resolve.decide",
        "is_executing = is_held(row, store.now())",
        'is_executing = False; refuse_held(store, row, "")',
        ("tests/runtime/test_branches.py",),
    ),
    Mutant(
        "a call in progress is resolved as if it were in doubt",
        "control/requests.py::_doubtful",
        "if not is_executing:",
        "if True:",
        ("tests/runtime/test_branches.py", "-k", "call_in_progress_cannot_be_resolved"),
    ),
    Mutant(
        "a request that began long ago is overlooked",
        "core/fold.py::Draft.open_since",
        "begun = [wait.since for wait in self.open.waits.values()]",
        "begun = list[int]()",
        ("tests/store/test_still_open.py",),
    ),
    Mutant(
        "a worker goes on with a run that is too old",
        "runtime/exec/sessions.py::Sessions.open",
        "if claimed.unchecked:",
        "if False:",
        ("tests/runtime/test_worker.py",),
    ),
    Mutant(
        "a run is suspended although it was woken since its children were looked at",
        "runtime/call/suspend.py::suspend",
        "woken=woken,\n",
        "woken=None,\n",
        (BRANCHES, "-k", "child_that_ends"),
    ),
    Mutant(
        "what another thread sees of the children counts for a suspension",
        "runtime/log/lineage.py::AwaitedChildren.look",
        "return self.ended(), woken",
        "return self.ended(), self.count_wake_ups()",
        (BRANCHES, "-k", "while_the_watcher_looks"),
    ),
    Mutant(
        "the store suspends a run although it was woken since",
        "store/fence.py::_may_settle",
        "return change.woken is None or change.woken == woken",
        "return True",
        ("tests/store/test_conformance.py", "-k", "sqlite and suspended"),
    ),
    Mutant(
        "a store remembers how often a run was woken, although another run has woken it since",
        "store/sqlite/appends.py::Appends._change",
        "self._connections.ends.pop(changed_id, None)",
        "pass",
        ("tests/store/test_conformance.py", "-k", "sqlite and woke_after"),
    ),
    Mutant(
        "on PostgreSQL a run is suspended although it was woken since",
        "store/sql/postgres/queries.sql::settle",
        "WHERE r.id = s.id AND (s.woken IS NULL OR s.woken = r.woken)\n",
        "WHERE r.id = s.id\n",
        ("tests/store/test_conformance.py", "-k", "postgres and suspended"),
    ),
    Mutant(
        "a wake does not count while the run is running",
        "store/sql/sqlite/queries.sql::wake_by_id",
        "SET woken = woken + 1,",
        "SET woken = woken + (status <> 'running'),",
        ("tests/store/test_conformance.py", "-k", "sqlite and wake"),
    ),
    Mutant(
        "on PostgreSQL a wake does not count while the run is running",
        "store/sql/postgres/queries.sql::wake",
        "SET woken = r.woken + 1,",
        "SET woken = r.woken + (r.status <> 'running')::int,",
        ("tests/store/test_conformance.py", "-k", "postgres and wake"),
    ),
    Mutant(
        "on PostgreSQL a run is suspended in the transaction that wakes it",
        "store/postgres/appends.py::_going_together",
        "            woken.update(change.wakes)\n",
        "",
        ("tests/store/test_conformance.py", "-k", "postgres and same_batch"),
    ),
    Mutant(
        "a run is suspended although one of its waits is over",
        "core/waits.py::OpenWait.is_over",
        "        if self.until is not None and now >= self.until:\n",
        "        if journal is not None:\n"
        "            return False\n"
        "        if self.until is not None and now >= self.until:\n",
        (BRANCHES, "-k", "signal_that_comes"),
    ),
    Mutant(
        "a run that has unwound is suspended although one of its waits is over",
        "runtime/call/suspend.py::suspend",
        "is_over = any(",
        "is_over = False and any(",
        (BRANCHES, "-k", "signal_that_comes"),
    ),
    Mutant(
        "a suspended run is due by the timer of one branch only",
        "runtime/call/suspend.py::_wake_times",
        "return [signal.wake_at, *(wait.until for wait in session.waits.values())]",
        "return [signal.wake_at]",
        (BRANCHES, "-k", "timer"),
    ),
    Mutant(
        "the code is unwound before the suspension is committed",
        "runtime/lines/supervisor.py::Supervisor.supervise",
        "                signal = await suspend()\n",
        "                await self.unwind(next(iter(self._session.suspensions.values())))\n"
        "                signal = await suspend()\n",
        (BRANCHES, "-k", "unwound"),
    ),
    Mutant(
        "a suspension is a cancellation to the code",
        "runtime/lines/line.py::Line.throw",
        "and self.lines.suspension is not None:",
        "and self.lines.suspension is self:",
        (BRANCHES, "-k", "siblings"),
    ),
    Mutant(
        "the end of a task is taken for known before others have heard of it",
        "runtime/lines/line.py::Line._end",
        "END_HOPS",
        "CALL_HOPS",
        (BRANCHES, "-k", "given_up_ends and sqlite"),
    ),
    Mutant(
        "refused batches are sent again in reverse order",
        "runtime/log/writer.py::LogWriter._rebuild_if_due",
        "        for batch in list(self._queue):\n            self._send(batch)\n",
        "        for batch in reversed(list(self._queue)):\n            self._send(batch)\n",
        ("tests/runtime/test_writer.py",),
    ),
    Mutant(
        "refused batches are sent again while others are on their way",
        "runtime/log/writer.py::LogWriter._rebuild_if_due",
        "if not self._must_rebuild or self.sent():",
        "if not self._must_rebuild:",
        ("tests/runtime/test_writer.py",),
    ),
    Mutant(
        "what was noted before a refused batch is forgotten",
        "runtime/log/writer.py::LogWriter._fail",
        "            heir.buffered = [*batch.buffered, *heir.buffered]\n",
        "",
        ("tests/runtime/test_writer.py",),
    ),
    Mutant(
        "recorded outcomes are handed over in any order",
        "runtime/lines/turns.py::Turns.take_recorded",
        "if self._lines.is_in_order and not is_cut:",
        "if not is_cut:",
        (BRANCHES, "-k", "race"),
    ),
    Mutant(
        "a new call begins before recorded outcomes are handed over",
        "runtime/lines/turns.py::Turns.begin",
        "if self._lines.is_in_order:",
        "if self is not None:",
        (BRANCHES, "-k", "nothing_new"),
    ),
    Mutant(
        "one signal ends the waits of two branches",
        "runtime/log/session.py::Session.end_waits",
        "self.journal.take_signal(ended.source)",
        "pass",
        (BRANCHES, "-k", "one_signal"),
    ),
    Mutant(
        "a child needs no approval that its parent requires",
        "core/policy.py::Policy.narrow",
        "approve=self.approve | child.approve,",
        "approve=child.approve,",
        ("tests/runtime/test_children.py", "-k", "approval and not postgres"),
    ),
    Mutant(
        "a child has its whole budget whatever its parent has left",
        "core/policy.py::Policy.narrow",
        "_least(left.get(name), child.budget.get(name)) or 0.0",
        "child.budget.get(name, left.get(name, 0.0))",
        ("tests/runtime/test_children.py", "-k", "not postgres"),
    ),
    Mutant(
        "a value outside the log is not compared with its hash",
        "store/artifacts.py::read_artifact",
        "if data is not None and digest(data) == hash:",
        "if data is not None:",
        ("tests/store/test_damage.py", "-k", "sqlite"),
    ),
    Mutant(
        "a store whose file was replaced is written to",
        "store/sqlite/connections.py::Presence.check_identity",
        "if (file_stat.st_dev, file_stat.st_ino) != self._main:",
        "if False:",
        ("tests/store/test_sqlite_replaced.py",),
    ),
    Mutant(
        "a call that was given up ends on replay before its turn",
        "runtime/lines/turns.py::Turns._wait",
        "                    turn.given_up = cancelled\n",
        "                    raise\n",
        ("tests/runtime/test_branches.py", "-k", "given_up_ends and sqlite"),
    ),
    Mutant(
        "what the code saw after it gave something up is not shown on replay",
        "runtime/call/match.py::replay",
        "            request.session.view.show(entry.seq)\n",
        "",
        ("tests/runtime/test_branches.py", "-k", "gave_something and sqlite"),
    ),
    Mutant(
        "a run ends although a task of it is left",
        "runtime/lines/supervisor.py::Supervisor._has_ended",
        "if failed or all(task.done() for task in self._lines.tasks):",
        "if True:",
        ("tests/runtime/test_branches.py", "-k", "task_that_still and sqlite"),
    ),
    Mutant(
        "a run that lost its lease stays where its code awaits something",
        "runtime/lines/supervisor.py::Supervisor._has_ended",
        "if self._session.lost is not None:",
        "if False:",
        ("tests/fuzz/test_found.py", "-k", "lost_its_lease_ends and sqlite"),
    ),
    Mutant(
        "whether a commit is due is asked without the lock of the run",
        "runtime/log/view.py::AgentView.pending",
        "with self._mutex:  # other branches write at the same time",
        "if True:",
        ("tests/runtime/test_branches.py", "-k", "under_the_lock"),
    ),
    Mutant(
        "a task group leaves before its tasks when the run is suspended",
        "runtime/lines/line.py::Line.throw",
        "raised if _name_of(self._innermost) in _GROUPS else self.lines.suspension",
        "self.lines.suspension",
        ("tests/runtime/test_branches.py", "-k", "nothing_is_logged and sqlite"),
    ),
    Mutant(
        "a request that is not the recorded one is taken for it",
        "core/match.py::match",
        "elif entry is not None and not request.is_recorded_in(entry, 0, lineage):",
        "elif False:",
        ("tests/core/test_match.py",),
    ),
    Mutant(
        "code that takes another path after a retried call differs",
        "core/match.py::match",
        "    if beyond is not None:",
        "    if False:",
        ("tests/core/test_match.py", "tests/runtime/test_retries.py"),
    ),
    Mutant(
        "what one branch reads does not wake another",
        "runtime/log/session.py::Session._look_at_waits",
        "self.lines is not None",
        "False",
        ("tests/runtime/test_branches.py", "-k", "another_branch_has_read and sqlite"),
    ),
    Mutant(
        "code that does not cancel again is waited for",
        "runtime/lines/unasked.py::UnaskedOutcomes._cut_within_us",
        "age if 0 <= age < limit else limit",
        "limit",
        ("tests/runtime/test_cancelled_calls.py", "-k", "again_diverges", "--timeout=60"),
    ),
    Mutant(
        "a process that stood still takes its own code for other code",
        "runtime/lines/unasked.py::UnaskedOutcomes._diverge_after",
        "lambda: self._lines.after_patience(self._diverge, last)",
        "self._diverge",
        ("tests/runtime/test_cancelled_calls.py", "-k", "stood_still"),
    ),
    Mutant(
        "a timer of the code has no more time than its call had",
        "runtime/lines/unasked.py::UnaskedOutcomes._cut_within_us",
        "return max(waited, age if 0 <= age < limit else limit)",
        "return waited",
        ("tests/runtime/test_cancelled_calls.py", "-k", "as_late_as_it_did"),
    ),
    Mutant(
        "a run is suspended although a line of it has been woken",
        "runtime/call/suspend.py::_continues",
        "not lines.supervisor.is_quiet\n        or ",
        "",
        ("tests/runtime/test_branches.py", "-k", "about_to_be_suspended_is_not and sqlite"),
    ),
    Mutant(
        "a worker that stops is recorded as a cancellation by the code",
        "runtime/call/async_driver.py::_cut_or_cancelled",
        "session.is_ending or ",
        "",
        (
            "tests/runtime/test_cancelled_callers.py",
            "-k",
            "not_recorded_as_a_cancellation and sqlite",
        ),
    ),
    Mutant(
        "a late run that waits for a decision is due",
        "runtime/call/suspend.py::suspend",
        "() if session.ending else ends(session)",
        "ends(session)",
        ("tests/fuzz/test_found.py", "-k", "before_it_is_undone_is_not_due"),
    ),
    Mutant(
        "no check is asked before a run is undone",
        "runtime/exec/undo.py::_ask_check",
        "spec.effect != Effect.CHECKED",
        "spec.effect == Effect.CHECKED",
        ("tests/fuzz/test_found.py", "-k", "asks_the_check"),
    ),
    Mutant(
        "a run lost while it is suspended to be undone ends with a signal of the runtime",
        "runtime/exec/execute.py::_ended_otherwise",
        "    except Abandon as abandon:\n",
        "    except () as abandon:\n",
        ("tests/fuzz/test_found.py", "-k", "suspended_to_be_undone"),
    ),
    Mutant(
        "a call is not done because its last attempt did not begin",
        "runtime/call/flow.py::_begin",
        "cut.began = entry is not None and bool(entry.attempts)",
        "cut.began = entry is not None and entry.open_attempt",
        ("tests/fuzz/test_found.py", "-k", "before_its_run_failed and sqlite"),
    ),
    Mutant(
        "what a lone line did in branches later is a divergence before its timeout has fired again",
        "runtime/call/match.py::check_all_replayed",
        "lines.is_in_order",
        "len(lines.members) <= 1",
        ("tests/fuzz/test_found.py", "-k", "branches_follow and sqlite"),
    ),
    Mutant(
        "the result of an only line comes after that of a line that began meanwhile",
        "runtime/lines/turns.py::Turns.first_outcome",
        "self.outcomes.insert(0, turn)",
        "self.outcomes.append(turn)",
        ("tests/runtime/test_branches.py", "-k", "begins_meanwhile and sqlite"),
    ),
    Mutant(
        "a plain step that blocks is not cut at its run's deadline",
        "runtime/call/enter.py::enter",
        "and not current.session.journal.life.may_stop_calls",
        "",
        ("tests/runtime/test_run_limits.py", "-k", "blocking_step_is_cut", "--timeout=30"),
    ),
    Mutant(
        "the result of an only line is handed over although another line runs by then",
        "runtime/call/step_async.py::make_step_async",
        "if lines.needs_order or not is_alone:",
        "if False:",
        ("tests/runtime/test_branches.py", "-k", "passed_a_gather and sqlite"),
    ),
    Mutant(
        "a timeout takes effect before the result of an only line that was recorded before it",
        "runtime/lines/turns.py::Turns.advance",
        "if self._lines.is_lone_outcome_due:",
        "if False:",
        ("tests/runtime/test_branches.py", "-k", "only_line and sqlite"),
    ),
    Mutant(
        "a cancellation that comes while the result of an only line is recorded is lost",
        "runtime/call/step_async.py::make_step_async",
        "deliver_later(cancelled)",
        "pass",
        ("tests/runtime/test_branches.py", "-k", "only_line and sqlite"),
    ),
    Mutant(
        "a cancellation that a call swallows is lost",
        "runtime/call/async_driver.py::invoke_call",
        "if is_swallowed and cancellations() > before:",
        "if False:",
        ("tests/fuzz/test_found.py", "-k", "swallows and sqlite"),
    ),
    Mutant(
        "a recorded timeout of a lone line is not waited for",
        "runtime/lines/lines.py::Lines.is_in_order",
        "if self.session.journal.timeouts:",
        "if False:",
        ("tests/fuzz/test_found.py", "-k", "recorded_before_an_outcome and sqlite"),
    ),
    Mutant(
        "a timeout of the code hides that its run ends here",
        "runtime/call/line_task.py::LineTask.uncancel",
        "left + 1 if self.lines.session.is_unwinding else left",
        "left",
        ("tests/fuzz/test_found.py", "-k", "caller_is_cancelled and sqlite"),
        ("calls begin although the run ends here",),
    ),
    Mutant(
        "calls begin although the run ends here",
        "runtime/lines/lines.py::Lines.enter_call",
        "(self.is_over or self.session.is_unwinding)",
        "self.is_over",
        ("tests/fuzz/test_found.py", "-k", "caller_is_cancelled and sqlite"),
        ("a timeout of the code hides that its run ends here",),
    ),
    Mutant(
        "a timeout that fires before its call may begin is forgotten",
        "runtime/lines/line.py::Line.send",
        "lines.needs_order and lines.has_fired",
        "False",
        ("tests/fuzz/test_found.py", "-k", "may_not_begin_yet and sqlite", "--timeout=30"),
    ),
    Mutant(
        "a timeout that has fired has no effect when the run ends here",
        "runtime/lines/supervisor.py::Supervisor.end",
        "            self._lines.end_timeouts()\n",
        "",
        ("tests/runtime/test_zombie.py", "-k", "without_effect", "--timeout=30"),
    ),
    Mutant(
        "code that has yet to hear of a branch's end is blocked",
        "runtime/lines/lines.py::Lines.time_out",
        "self.settle(END_HOPS)",
        "self.settle(0)",
        ("tests/fuzz/test_found.py", "-k", "while_a_branch_ends and sqlite"),
    ),
    Mutant(
        "what a check found out is not handed over in the order of the log",
        "runtime/call/recover.py::ask_check",
        "blobs=blobs, is_outcome=True)",
        "blobs=blobs)",
        ("tests/fuzz/test_found.py", "-k", "check_is_recorded"),
    ),
    Mutant(
        "a lost race is run again although the code went on",
        "core/journal.py::Extent.goes_on",
        "if count is not None and any(",
        "if False and any(",
        ("tests/fuzz/test_found.py", "-k", "lost_race and sqlite"),
    ),
    Mutant(
        "a call is made again although the run was cancelled while its check ran",
        "runtime/call/flow.py::_make",
        "            entry = find(request).entry\n            gate_again(request)\n",
        "            entry = find(request).entry\n",
        ("tests/fuzz/test_found.py", "-k", "is_prepared and sqlite"),
        together=("the gate is not asked when an intent is sealed",),
    ),
    Mutant(
        "an approved call is made although the run was cancelled",
        "runtime/call/flow.py::_make",
        "gated)\n            gate_again(request)\n",
        "gated)\n",
        ("tests/fuzz/test_found.py", "-k", "is_prepared and sqlite"),
    ),
    Mutant(
        "what a nested task gave up long ago is tried again",
        "core/journal.py::Extent.goes_on",
        "        while path:\n",
        "        for _ in range(bool(path)):\n",
        ("tests/runtime/test_branches.py", "-k", "nested_task and sqlite", "--timeout=20"),
    ),
    Mutant(
        "a timeout of the code cancels at any time",
        "runtime/call/line_task.py::LineTask.cancel",
        "current_branch() is not None",
        "current_branch() is None",
        ("tests/runtime/test_branches.py", "-k", "timeout and sqlite"),
    ),
    Mutant(
        "a loop that is being undone forgets why it failed",
        "agents/loop.py::_Loop._comes_again",
        "return is_first and journal.life.undoing and journal.life.undo is None",
        "return False",
        ("tests/runtime/test_undo.py", "-k", "dies_while"),
    ),
    Mutant(
        "a loop stops in an iteration whose calls are all in tasks",
        "agents/loop.py::_Loop._comes_again",
        " or journal.unasked()",
        "",
        ("tests/agents/test_loop.py", "-k", "began_in_tasks"),
    ),
    Mutant(
        "the calls of earlier iterations cannot be undone",
        "runtime/exec/undo.py::_register_calls",
        "if names <= session.specs.keys() or calls_of is None:",
        "if True:",
        ("tests/runtime/test_undo.py", "-k", "cannot_name"),
    ),
    Mutant(
        "a cancellation does not reach the children of a run",
        "store/cancel.py::cancel_children",
        "for child in open_children(store, run_id):",
        "for child in ():",
        ("tests/runtime/test_children.py", "-k", "cancelled and not postgres"),
    ),
    Mutant(
        "a child may continue after the deadline of its parent",
        "core/policy.py::Policy.narrow",
        "deadline_at=_least(self.deadline_at, child.deadline_at)",
        "deadline_at=child.deadline_at",
        ("tests/runtime/test_children.py", "-k", "deadline and not postgres"),
    ),
    Mutant(
        "nothing that ends a run reaches its children",
        "runtime/call/gate.py::gate",
        "if session.lineage.parent is not None:",
        "if False:",
        ("tests/runtime/test_children.py", "-k", "not postgres"),
        (
            "a cancellation does not reach the children of a run",
            "a child may continue after the deadline of its parent",
            "a child has its whole budget whatever its parent has left",
        ),
    ),
    Mutant(
        "a caller that is cancelled while its run is claimed leaves the lease",
        "runtime/exec/threads.py::uninterrupted",
        "if work.exception() is None and dispose is not None:",
        "if False:",
        ("tests/runtime/test_cancelled_callers.py", "-k", "sqlite"),
    ),
    Mutant(
        "a caller is told that a run waits for what has come already",
        "runtime/exec/tree.py::Tree.due_root",
        "return root if",
        "return None if",
        (BRANCHES, "-k", "does_not_hear and sqlite"),
    ),
    Mutant(
        "a caller that waits for a run does not execute its suspended child",
        "runtime/exec/tree.py::Tree._may_execute",
        "return self._is_due(row) and",
        "return False and",
        ("tests/runtime/test_tree.py", "--timeout=60"),
    ),
    Mutant(
        "a cancellation that comes while a receipt is being committed is lost",
        "runtime/call/async_driver.py::deliver_later",
        "line.cancel_due = True",
        "line.cancel_due = False",
        ("tests/runtime/test_cancelled_calls.py", "-k", "result_is_recorded"),
    ),
    Mutant(
        "mcp: a task of any agent is reached",
        "mcp/reach.py::reachable",
        "not who.reaches(row.agent) or ",
        "",
        ("tests/mcp_server/test_reach.py",),
    ),
    Mutant(
        "mcp: the agent in a URI is not compared with the task's",
        "mcp/reach.py::reachable",
        " or agent not in (None, row.agent)",
        "",
        ("tests/mcp_server/test_reach.py",),
    ),
    Mutant(
        "mcp: what cannot be reached is watched",
        "mcp/subscriptions.py::Subscriptions._interest",
        "        reachable(self._store, who, address.task, address.agent)\n",
        "",
        ("tests/mcp_server/test_subscriptions.py",),
    ),
    Mutant(
        "mcp: a subscriber's version is ignored",
        "mcp/subscriptions.py::Subscriptions._interest",
        "if address.after is not None:",
        "if False:",
        ("tests/mcp_server/test_subscriptions.py",),
    ),
    Mutant(
        "mcp: an agent resumes what a person paused",
        "mcp/operations.py::resume",
        '("paused", "quarantined")',
        '("quarantined",)',
        ("tests/mcp_server/test_reach.py",),
    ),
    Mutant(
        "mcp: any scheme of authorization is accepted",
        "mcp/http.py::bearer_token",
        'token.strip() if scheme.lower() == "bearer" else ""',
        "token.strip()",
        ("tests/mcp_server/test_http.py::test_no_method_or_path_answers_without_a_token",),
    ),
    Mutant(
        "mcp: another credential ends a session's subscriptions",
        "mcp/http.py::_connection_of",
        "{caller.credential} ",
        "",
        (
            "tests/mcp_server/test_http.py::test_another_credential_cannot_end_the_subscriptions_of_a_session",
        ),
    ),
    Mutant(
        "an answer that is sent again answers the next question",
        "control/requests.py::answer",
        "blobs, claimed)",
        "blobs)",
        ("tests/mcp_server/test_tools.py",),
    ),
    Mutant(
        "a process that slept past its lease records an intent",
        "runtime/call/intent.py::record_intent",
        "session.check_lease()",
        "pass",
        ("tests/fleet/test_suspended_machine.py",),
    ),
    Mutant(
        "a constraint behind a NewType is not seen",
        "core/values/declared_types.py::_types_inside",
        '("__supertype__", "__value__")',
        '("__value__",)',
        ("tests/runtime/test_annotations.py",),
    ),
    Mutant(
        "a masked password is taken for the password",
        "cli/common.py::_with_password",
        "not has_masked_password(url)",
        "True",
        ("tests/cli/test_store_passwords.py",),
    ),
    Mutant(
        "a patch is written over a newer version",
        "control/patches.py::patch",
        "state.seq != expected",
        "state.seq < expected",
        ("tests/mcp_server/test_tools.py",),
    ),
    Mutant(
        "a patch that is sent again is recorded again",
        "control/patches.py::patch",
        "RunUpdate([event], key=claimed)",
        "RunUpdate([event])",
        ("tests/mcp_server/test_tools.py",),
    ),
    Mutant(
        "web: a role is not checked",
        "web/auth.py::require",
        "    roles.check_allowed(who.name, who.role, verb)\n",
        "",
        ("tests/web/test_access.py::test_a_role_without_permission_is_refused_for_every_request",),
    ),
    Mutant(
        "web: a read-only server lets changes pass",
        "web/auth.py::require",
        "if server_of(request).read_only and verb not in READS:",
        "if False:",
        ("tests/web/test_access.py::test_a_read_only_server_refuses_every_change",),
    ),
    Mutant(
        "web: a form needs no CSRF token",
        "web/guard.py::_has_csrf",
        "or not who.is_ambient",
        "or who.is_ambient",
        ("tests/web/test_signing_in.py::test_a_form_without_the_sessions_token_is_refused",),
    ),
    Mutant(
        "web: any peer may name a user",
        "web/auth.py::_by_proxy",
        " or peer[0] not in proxy.addresses",
        "",
        ("tests/web/test_signing_in.py::test_the_header_of_a_proxy_is_used_only_from_its_address",),
    ),
    Mutant(
        "web: a session outlives its credential",
        "web/auth.py::_by_session",
        "if credential is None or credential.digest != session.credential:",
        "if credential is None:",
        (
            "tests/web/test_signing_in.py::test_a_session_ends_with_its_credential_and_has_the_credentials_current_role",
        ),
    ),
    Mutant(
        "web: a link signs in twice",
        "web/sessions.py::WebSessions.follow",
        "self._links.pop(",
        "self._links.get(",
        ("tests/web/test_signing_in.py::test_sessions_and_links_expire_and_links_work_once",),
    ),
    Mutant(
        "web: pages of other sites are answered",
        "web/guard.py::_same_origin",
        "found.netloc.lower() == host.lower()",
        "bool(found.netloc)",
        ("tests/web/test_access.py::test_foreign_hosts_and_origins_are_refused",),
    ),
    Mutant(
        "web: an idempotency key belongs to everybody",
        "web/api/handlers.py::_id_for",
        "{name}",
        "",
        ("tests/web/test_api.py::test_idempotency_keys_belong_to_a_credential_and_a_request",),
    ),
)

FUZZED = {
    # a decision that arrives while another branch is working
    "a run is suspended although one of its waits is over": "decision_while_working",
    "a run that has unwound is suspended although one of its waits is over": "decision_while_working",
    "one signal ends the waits of two branches": "",
    "what one branch reads does not wake another": "timer_and_own --patience=60",
    # a child that ends while its parent is running or is being suspended
    "a run is suspended although it was woken since its children were looked at": "question_and_child",
    "the store suspends a run although it was woken since": "question_and_child",
    "on PostgreSQL a run is suspended although it was woken since": "question_and_child",
    "a wake does not count while the run is running": "question_and_child",
    "on PostgreSQL a wake does not count while the run is running": "question_and_child",
    # what comes at the moment of a suspension
    "a run is suspended although a line of it has been woken": "timer_and_own",
    "the code is unwound before the suspension is committed": "decision_at_suspension",
    # a suspension that the code sees as a cancellation
    "a suspension is a cancellation to the code": "group_with_child",
    # limits and cancellation of a parent
    "nothing that ends a run reaches its children": "limited_parent",
    # approval by risk
    "a child needs no approval that its parent requires": "gated_parent",
    # refused appends: false alarms, and their order
    "refused batches are sent again while others are on their way": "branches_and_patches",
    "refused batches are sent again in reverse order": "branches_and_patches",
    "what was noted before a refused batch is forgotten": "paused_branches",
    # races
    "recorded outcomes are handed over in any order": "race_after_join",
    "a call that the code cancelled is answered when it is replayed": "timeout_in_commit",
    # leases
    "a caller that is cancelled while its run is claimed leaves the lease": "",
    "the end of an event loop is a cancellation by the code": "",
    "the fence is not checked where the append is committed": "",
    "a run that lost its lease stays where its code awaits something": "frozen_while_awaiting",
    # a caller that waits for a run with children
    "a caller that waits for a run does not execute its suspended child": "waiting_child",
    # timers of several branches
    "a suspended run is due by the timer of one branch only": "timer_and_signal",
    # a cancellation while something is being committed
    "a cancellation that comes while a receipt is being committed is lost": "timeout_in_commit",
    # a timeout of the code fires while an end is on its way to it
    "code that has yet to hear of a branch's end is blocked": "timeout_at_join",
    "a timeout that fires before its call may begin is forgotten": "timeout_before_call",
    "a timeout that has fired has no effect when the run ends here": "timeout_before_call",
    "the timeout of asyncio.wait is not recorded": "more_of_asyncio",
    # a caller that is cancelled while the code gives up a call
    "calls begin although the run ends here": "child_given_up",
    "a parent takes the end of its child's execution for a decision of its code": "child_given_up --store=postgres",
    # a limit ends a run that is to be undone
    "a late run that waits for a decision is due": "late_and_undone",
    # what a line of the code awaits or gives up, and when it is replayed
    "a new call begins before recorded outcomes are handed over": "race_after_join",
    "a call that was given up ends on replay before its turn": "slow_clean_up",
    "a cancellation that a call swallows is lost": "swallowed_timeout",
    "a recorded timeout of a lone line is not waited for": "swallowed_timeout",
    "a run ends although a task of it is left": "task_left",
    # a person resumes a failed run
    "a lost race is run again although the code went on": "resumed_after_races",
    "what a nested task gave up long ago is tried again": "resumed_after_races",
    "code that takes another path after a retried call differs": "resumed_after_failure",
    # a failed run is undone
    "no check is asked before a run is undone": "late_and_undone",
    "a loop that is being undone forgets why it failed": "failing_loop",
    "the calls of earlier iterations cannot be undone": "failing_loop",
    # limits of a parent that is suspended while its child works
    "a child has its whole budget whatever its parent has left": "waiting_child_of_limited",
    "a cancellation does not reach the children of a run": "waiting_child_of_limited",
    "a child may continue after the deadline of its parent": "waiting_child_of_limited",
}
"""Mutants that take out a fix for branches or children. The fuzzer should notice each, when it is given programs of the
shape (and the options) next to its name (empty: of all shapes). Not here are those that need changed code, which it never has; and
"on PostgreSQL a run is suspended in the transaction that wakes it": the same transaction makes that run due again; and "what
another thread sees of the children counts for a suspension": its moment is so short that it was met once in some 35,000 kills."""
BATCHES = 30
"""Within so many batches."""


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[str]:
    """A folder with a copy of the package that has the bug."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as folder:
        copy = Path(folder) / "holdfast"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for one in (mutant, *(x for x in MUTANTS if x.name in mutant.together)):
            path = copy / one.file
            try:
                path.write_text(one.planted(path.read_text("utf-8")), "utf-8")
            except LookupError as error:
                sys.exit(f"{error}; fit the mutant to the source")
        yield folder


def killed_by(mutant: Mutant) -> str:
    """The first test that noticed, or an empty string."""
    with planted(mutant) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", *PLAIN, *mutant.tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return ""
    failed = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED tests", "ERROR tests"))
    ]
    if done.returncode != 1 or not failed:
        sys.exit(
            f"{mutant.name}: pytest did not run (exit {done.returncode})\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
        )
    return failed[0].split(" - ")[0].split("::")[-1]


def fuzzed_by(mutant: Mutant) -> str:
    """The first batch of the fuzzer that noticed, and what; or an empty string."""
    store = "postgres" if "postgres" in mutant.where else "sqlite"
    words = ["--store", store, "--seed", "1", "--batches", str(BATCHES), "--jobs", "2", "--stop"]
    words += ["--shape", *shape.split()] if (shape := FUZZED[mutant.name]) else []
    with planted(mutant) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "fuzz", *words],
            cwd=ROOT / "tests",
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    batches = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    found = next((n for n, line in enumerate(batches, 1) if line.endswith("}")), None)
    if found is None and done.returncode == 1 and not batches:
        return f"the fuzzer's first batch: {done.stderr.splitlines()[-1]}"
    return "" if found is None else f"batch {found}: {batches[found - 1].partition('{')[2][:-1]}"


def main() -> None:
    by_fuzzer = "--fuzz" in sys.argv
    wanted = [word for word in sys.argv[1:] if word != "--fuzz"]
    survivors = []
    chosen = [mutant for mutant in MUTANTS if not by_fuzzer or mutant.name in FUZZED]
    for mutant in chosen:
        if wanted and not any(word in mutant.name for word in wanted):
            continue
        began = time.monotonic()
        killer = fuzzed_by(mutant) if by_fuzzer else killed_by(mutant)
        said = f"killed by {killer}" if killer else "SURVIVED"
        sys.stdout.write(f"{mutant.name:58} {said}  ({time.monotonic() - began:.0f} s)\n")
        sys.stdout.flush()
        survivors += [] if killer else [mutant.name]
    count = "some" if wanted else len(chosen)
    sys.stdout.write(f"{count} mutants, {len(survivors)} survived\n")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
