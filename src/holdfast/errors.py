"""Every error and control-flow signal of Holdfast, as one tree. Each message says what to do next.

HoldfastError                        something Holdfast refuses or cannot do
├── InvalidInput                     a value, name or option is wrong; nothing has happened yet
│   ├── NotStorable                  a value cannot be kept in the log (carries the path to it)
│   ├── InputConflict                this id already belongs to a run with another input
│   ├── InvalidPatch                 an operation of a JSON Patch cannot be applied (says which one)
│   ├── InvalidTransition            a phase cannot follow the present one
│   ├── ContextTooLong               what a model must be shown does not fit
│   └── UnknownStage                 a stage that the agent did not declare
├── NotFound                         no such run, call, approval or artifact
│   └── NoSuchRun                    the store has no run of this id
├── AccessDenied                     no valid credential, or its role does not allow it
├── NotNow                           the run's status does not allow it
│   ├── NotResumable                 a check before a resume failed (says which, and how to override it)
│   └── AlreadyDecided               another decision came first
├── RunFailed                        the run ended with an error (carries the failure)
│   ├── DeadlineExceeded             it ran out of time
│   ├── BudgetExceeded               it ran out of budget
│   ├── IterationsExceeded           a loop reached max_iterations
│   └── RunCancelled                 it was cancelled
├── RunWaiting                       the run is waiting; says what for, and how to continue
│   └── RunBusy                      another worker is executing it
├── AgentFailed                      a loop's state says that its goal cannot be reached
├── CallFailed                       a recorded failure of a step or tool, raised again on replay
│   ├── CallTimeout                  it did not answer in time
│   └── Rejected                     a person rejected it
├── InDoubt                          raised by a tool: the call may or may not have happened
├── ModelError                       a model's provider did not answer with a reply
│   ├── ModelUnavailable             busy, down, too slow or interrupted: a retry may help
│   ├── ModelRefused                 the request or the key is wrong: a retry will not help
│   │   └── ModelDeclined            the model refused to answer, or a filter blocked the answer
│   └── ModelIncomplete              the reply is not complete; nothing of it was used
│       ├── ModelCutOff              it was truncated by its length limit
│       ├── ModelContextFull         the dialogue fills the model's context window
│       └── ModelEmpty               it had neither text nor tool calls
├── OutOfTurns                       a model did not finish within its turns
├── StoreError                       the store
│   ├── Conflict                     the log has grown since it was read
│   ├── LeaseLost                    another worker owns the run now
│   ├── KeyTaken                     a caller's own idempotency key belongs to another call
│   ├── StorageFull                  no space left; nothing was written
│   ├── StoreUnavailable             the database does not answer, or its answer was lost
│   │   ├── StoreRefused             it refuses the connection: a retry will not help
│   │   ├── StoreBroken              this process must not use it any more; a new one may
│   │   │   └── StoreReplaced        its files were deleted, renamed or replaced while they were open
│   │   └── StoreDamaged             the database itself is damaged: restore it from a backup
│   ├── ReadOnlyStore                the database may be read, not written
│   ├── UnsafeStore                  its settings could lose an acknowledged event
│   └── SchemaMismatch               written by a newer Holdfast, or not ours
├── Diverged                         the code makes a call that differs from the recorded one
├── LogDamaged                       a run's log does not verify (names the run and the event)
│   ├── ArtifactDamaged              a value stored outside its event is missing or damaged (names it)
│   ├── UnknownEvent                 an event of a kind or version this Holdfast does not know
│   └── LogRegressed                 the store has lost acknowledged events
├── NotMocked                        a tool or model has no mock and would be executed for real
└── NotDurable                       durability would silently be off

NotRecorded (UserWarning)            a plain call, perhaps in a thread that an agent started by itself

Unwind (BaseException)               not errors: they unwind an agent, and `except Exception` does not catch them
├── Suspend                          the run is suspended until something arrives
├── Stop                             the run ends here: deadline, budget or cancellation
└── Abandon                          this worker must stop executing the run (carries the error)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.waiting import WaitingFor


class HoldfastError(Exception):
    """Base of everything that Holdfast refuses or cannot do."""


# ── wrong input ──────────────────────────────────────────────────────────────────────────────


class InvalidInput(HoldfastError, ValueError):
    """A value, a name or an option is wrong. Nothing has happened."""


class NotStorable(InvalidInput):
    """A value cannot be kept in the log. `path` leads to it, as in `$.hits[0].score`."""

    def __init__(self, reason: str, *, what: str = "value", path: tuple[str, ...] = ()) -> None:
        self.reason = reason
        self.what = what
        self._steps = path
        super().__init__(reason)

    @property
    def path(self) -> str:
        """Where the offending value is, from the root `$`."""
        return "$" + "".join(self._steps)

    def below(self, step: str) -> NotStorable:
        """The same error, seen from one level further out."""
        self._steps = (step, *self._steps)
        return self

    def of(self, what: str) -> NotStorable:
        """The same error, saying whose value it is."""
        self.what = what
        return self

    def __str__(self) -> str:
        return f"{self.what} cannot be stored: at {self.path}, {self.reason}"


class InputConflict(InvalidInput):
    """This run id already belongs to a run with another agent or another input."""

    def __init__(self, run_id: str, what: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"run {run_id!r} exists with a different {what}; nothing was executed. "
            "Use a new id for a new run, or pass the same input to resume this one."
        )


class InvalidPatch(InvalidInput):
    """An operation of a JSON Patch cannot be applied; none of them was."""

    def __init__(self, number: int, op: str, path: str, reason: str) -> None:
        self.number, self.op, self.path, self.reason = number, op, path, reason
        which = f"operation {number + 1}" + (f" ({op} {path!r})" if op or path else "")
        super().__init__(f"the patch cannot be applied: {which}: {reason}. Nothing was changed")


class InvalidTransition(InvalidInput):
    """A phase cannot follow the present one."""

    def __init__(self, current: str, target: str, allowed: Sequence[str]) -> None:
        self.current, self.target, self.allowed = current, target, tuple(allowed)
        ways = ", ".join(allowed) if allowed else "none, it is final"
        super().__init__(
            f"cannot change from {current} to {target}; allowed from {current}: {ways}"
        )


class ContextTooLong(InvalidInput):
    """What a model must be shown (system, the user's goal, the last turns) does not fit."""

    def __init__(self, max_tokens: int, needed: int, longest: str, longest_tokens: int) -> None:
        self.max_tokens, self.needed = max_tokens, needed
        super().__init__(
            f"the part of the dialogue that is always shown needs about {needed:,} tokens, but the limit is "
            f"{max_tokens:,}; its longest part is {longest} with {longest_tokens:,}. Raise the "
            "limit, shorten tool results, or keep fewer turns (keep_last)"
        )


class UnknownStage(InvalidInput):
    """A stage that the agent did not declare."""

    def __init__(self, stage: str, declared: Sequence[str]) -> None:
        self.stage, self.declared = stage, tuple(declared)
        known = ", ".join(declared) if declared else "none; declare them with @agent(stages=(…))"
        super().__init__(f"stage {stage!r} is not declared; declared stages: {known}")


# ── people and runs ──────────────────────────────────────────────────────────────────────────


class NotFound(HoldfastError, LookupError):
    """No such run, call, approval or artifact."""


class NoSuchRun(NotFound):
    """The store has no run of this id."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"no run {run_id!r} in this store; hf.runs() lists its runs")

    def for_command_line(self, command: str) -> None:
        """Let it name the command that lists the runs of this store."""
        self.args = (f"no run {self.run_id!r} in this store; `{command}` lists its runs",)


class AccessDenied(HoldfastError):
    """A server got no valid credential, or one whose role does not allow this. Nothing has happened."""


class Remedy(NamedTuple):
    """What can be done about a refusal: `purpose` in words, as a Python call, and as words of the command line."""

    purpose: str
    call: str
    words: tuple[str, ...]


class NotNow(HoldfastError):
    """The run's status does not allow this. `remedies` are what can be done instead."""

    remedies: tuple[Remedy, ...] = ()

    def __init__(self, what: str, *remedies: Remedy) -> None:
        self.what, self.remedies = what, remedies
        super().__init__(self.text(lambda remedy: remedy.call))

    def text(self, formatted: Callable[[Remedy], str]) -> str:
        """The whole message, with each remedy as `formatted` returns it: as a call or as a command."""
        return "\n".join([self.what, *(f"  {x.purpose}: {formatted(x)}" for x in self.remedies)])


class NotResumable(NotNow):
    """A check before a resume failed. `check` is age, status or version."""

    def __init__(self, run_id: str, check: str, why: str, *remedies: Remedy) -> None:
        self.run_id, self.check = run_id, check
        self.reason = f"the {check} check failed: {why}"
        super().__init__(f"run {run_id!r} was not resumed: {self.reason}", *remedies)


class AlreadyDecided(NotNow):
    """Another decision came first."""


class RunFailed(HoldfastError):
    """The run ended with an error. `hf.resume(id)` tries again from the failed step."""

    def __init__(
        self, run_id: str, error_type: str, message: str, *, reason: str = "error", root: str = ""
    ) -> None:
        self.run_id, self.error_type, self.message, self.reason = (
            run_id,
            error_type,
            message,
            reason,
        )
        self.root = root or run_id
        """The run whose limits hold for this one: itself, or the run at the top of its tree."""
        self.store = ""
        """The option that names the run's store in commands; empty if it is the default one."""
        super().__init__(self._text())

    def in_store(self, option: str) -> None:
        """Let the commands in its text name the store."""
        self.store = option
        self.args = (self._text(),)

    def _show(self) -> str:
        return " ".join(filter(None, ("holdfast show", self.run_id, self.store)))

    def _text(self) -> str:
        return (
            f"run {self.run_id!r} failed: {self.error_type}: {self.message}\n"
            f"  see why:   {self._show()}\n"
            f"  try again: hf.resume({self.run_id!r}) continues from the failed step"
        )


class DeadlineExceeded(RunFailed):
    """The run's deadline passed before it ended."""

    def _text(self) -> str:
        return (
            f"run {self.run_id!r} failed: {self.message}\n"
            f"  see why:   {self._show()}\n"
            f"  continue:  hf.resume({self.root!r}, deadline=60) gives it another 60 seconds"
        )


class BudgetExceeded(RunFailed):
    """The run used up its budget."""

    def _text(self) -> str:
        return (
            f"run {self.run_id!r} failed: {self.message}\n"
            f"  see why:   {self._show()}\n"
            f"  continue:  hf.resume({self.root!r}, budget=Budget(…)) with a higher limit; what it has used still counts"
        )


class IterationsExceeded(RunFailed):
    """A loop was not done within `max_iterations`."""

    def _text(self) -> str:
        return (
            f"run {self.run_id!r} failed: {self.message}\n"
            f"  see why:   {self._show()}\n"
            f"  continue:  raise max_iterations, then hf.resume({self.run_id!r}); its last state is kept"
        )


class RunCancelled(RunFailed):
    """The run was cancelled."""

    def _text(self) -> str:
        return (
            f"run {self.run_id!r} was {self.message}\n"
            f"  see more:  {self._show()}\n"
            f"  try again: hf.rerun({self.run_id!r}) starts over, with the state kept"
        )


class RunWaiting(HoldfastError):
    """The run is waiting and cannot continue here. It costs a row until what it is waiting for has arrived."""

    def __init__(
        self, run_id: str, waiting_for: str, how: str, *, waits: Sequence[WaitingFor] = ()
    ) -> None:
        self.run_id, self.waiting_for, self.how = run_id, waiting_for, how
        self.waits: tuple[WaitingFor, ...] = tuple(waits)
        """The same as data, of which the first to come counts; empty if only the text is known."""
        super().__init__(f"run {run_id!r} is waiting for {waiting_for}\n  to continue: {how}")


class RunBusy(RunWaiting):
    """Another worker is executing the run."""


class CallFailed(HoldfastError):
    """A step or tool failed. The same error is raised at the same place on every replay.

    It replaces the tool's own exception, which is never rebuilt from the log by name.
    """

    may_have_happened = False
    """Whether the outcome of an attempt is unknown. Only a tool with a key fails so: call it again with its key."""

    def __init__(
        self, name: str, error_type: str, message: str, *, attempts: int = 1, step: int = 0
    ) -> None:
        self.name, self.error_type, self.message, self.attempts = (
            name,
            error_type,
            message,
            attempts,
        )
        self.step = step
        self.also: tuple[int, ...] = ()
        """Other steps that failed next to this one, in other branches."""
        tries = "" if attempts == 1 else f" after {attempts} attempts"
        super().__init__(f"{name} failed{tries}: {error_type}: {message}")


class CallTimeout(CallFailed, TimeoutError):
    """A step or tool did not answer in time."""


class Rejected(CallFailed):
    """A person rejected a call that needed approval."""


class InDoubt(HoldfastError):
    """Raise it in a tool that cannot know whether its effect happened, for example after a lost response.

    The tool's declaration decides what follows: its check is called, or the run is suspended until a person decides.
    """


class AgentFailed(HoldfastError):
    """A loop's state went to ERROR: its goal cannot be reached."""


class ModelError(HoldfastError):
    """A model's provider did not return a reply. `status` is the HTTP status, if there was one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelUnavailable(ModelError):
    """Busy, down, too slow or interrupted. `retry_after` is how many seconds the provider asks us to wait."""

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(message, status=status)


class ModelRefused(ModelError):
    """The request or the API key is wrong, or the account lacks permission: a retry does not help."""


class ModelDeclined(ModelRefused):
    """The model refused to answer (`category` "refused"), or a filter blocked the answer ("filtered").

    `usage` is what the provider charged for it.
    """

    def __init__(
        self,
        message: str,
        *,
        category: str = "refused",
        finish: str = "",
        text: str = "",
        usage: object = None,
    ) -> None:
        self.category, self.finish, self.text, self.usage = category, finish, text, usage
        super().__init__(message)


class ModelIncomplete(ModelError):
    """The reply is not complete: nothing of it was used, and none of its tools was called.

    `finish` is the reason that the provider gave, `text` what the model had said, `usage` what was charged.
    """

    def __init__(
        self, message: str, *, finish: str = "", text: str = "", usage: object = None
    ) -> None:
        self.finish, self.text, self.usage = finish, text, usage
        super().__init__(message)


class ModelCutOff(ModelIncomplete):
    """The reply was truncated by its length limit: raise max_output_tokens and resume the run."""


class ModelContextFull(ModelIncomplete):
    """The dialogue fills the model's context window: lower max_context_tokens and resume the run."""


class ModelEmpty(ModelIncomplete):
    """The answer had neither text nor tool calls: resume the run to ask again."""


class OutOfTurns(HoldfastError):
    """A model did not finish within its turns."""

    def __init__(self, agent: str, max_turns: int) -> None:
        self.agent, self.max_turns = agent, max_turns
        super().__init__(
            f"{agent} did not finish within {max_turns} turns. Everything it did is in the log: "
            "check whether it repeats itself; if it needs more turns, raise max_turns and resume the run"
        )


class NotMocked(HoldfastError):
    """A tool or model has no mock, where only mocks may be called. It was not executed."""

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        super().__init__(
            f"{name} has no mock, so nothing was executed. "
            f'Add one: {where}={{"{name}": {{"returns": …}}}}'
        )


class NotDurable(HoldfastError):
    """Durability would silently be off here."""


# ── the store ────────────────────────────────────────────────────────────────────────────────


class StoreError(HoldfastError):
    """Base of all errors of the store."""


class Conflict(StoreError):
    """The run's log has grown since it was read; read on and decide again."""

    def __init__(self, run_id: str, expected: int, head: int) -> None:
        self.run_id, self.expected, self.head = run_id, expected, head
        super().__init__(
            f"run {run_id!r} has changed: expected its log to end at event {expected}, but it ends at {head}; "
            "read it again, then decide"
        )


class Woken(StoreError):
    """The run was woken since its worker looked at what it is waiting for: it is not suspended."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id!r} was woken and is not suspended; check its waits again")


class LeaseLost(StoreError):
    """Another worker owns the run now; this one must stop."""

    def __init__(self, run_id: str, epoch: int, current: int) -> None:
        self.run_id, self.epoch, self.current = run_id, epoch, current
        super().__init__(
            f"run {run_id!r}: written under epoch {epoch}, but {current} is current; "
            "another worker has claimed the run, nothing was written"
        )


class KeyTaken(StoreError):
    """A caller's own idempotency key already belongs to another call."""

    def __init__(self, key: str, run_id: str, seq: int) -> None:
        self.key, self.run_id, self.seq = key, run_id, seq
        super().__init__(f"idempotency key {key!r} belongs to run {run_id!r} (event {seq})")


class StorageFull(StoreError):
    """No space left. Nothing was written, and the run can be resumed once there is space."""


class StoreUnavailable(StoreError):
    """The database does not answer, or its answer was lost."""


class StoreRefused(StoreUnavailable):
    """The server refuses the connection: a wrong password, no such database. A retry will not help."""


class StoreBroken(StoreUnavailable):
    """This process must not use the store any more (the disk failed); a new process may."""


class StoreReplaced(StoreBroken):
    """The store's files were deleted, renamed or replaced while this process had them open."""


class StoreDamaged(StoreUnavailable):
    """The database itself is damaged; what still verifies can be exported, the rest needs a backup."""


class ReadOnlyStore(StoreError):
    """The database may be read, not written."""


class UnsafeStore(StoreError):
    """The database's settings could lose an acknowledged event."""


class SchemaMismatch(StoreError):
    """The database was written by a newer Holdfast, or is not ours."""


class LogDamaged(HoldfastError):
    """A run's log does not verify. That run stops; others do not."""

    says = (
        "run {run_id!r} is damaged at event {seq}: {what}. "
        "The run is stopped; other runs are not affected. Restore its log from a backup "
        "(this check cannot be overridden)"
    )

    def __init__(self, run_id: str, seq: int, what: str) -> None:
        self.run_id, self.seq, self.what = run_id, seq, what
        super().__init__(self.says.format(run_id=run_id, seq=seq, what=what))


class ArtifactDamaged(LogDamaged):
    """A value stored outside its event (over 64 KiB, or an artifact) is missing, or has other bytes.

    `hash` is the digest under which it is stored; `missing` is false if there are bytes, but wrong ones.
    """

    def __init__(self, run_id: str, seq: int, hash: str, *, missing: bool) -> None:
        self.hash, self.missing = hash, missing
        problem = "is missing" if missing else "has bytes that do not match its hash"
        super().__init__(run_id, seq, f"the value {hash}, which it refers to, {problem}")


class UnknownEvent(LogDamaged):
    """An event of a kind or a version that this Holdfast does not know: update Holdfast."""


class LogRegressed(LogDamaged):
    """The store has lost events that it had acknowledged."""

    says = (
        "run {run_id!r}: the store has lost acknowledged events, from event {seq} on: {what}. "
        "The run is stopped, so that nothing is done twice. Find out what its tools have done since then, and continue "
        "with hf.resume({run_id!r}), or cancel it"
    )


class Diverged(HoldfastError):
    """The code makes a call that differs from the recorded one. Nothing new has been executed."""

    def __init__(
        self,
        run_id: str,
        where: str,
        recorded: str,
        attempted: str,
        *,
        adds: bool = False,
        forked_from: str = "",
        place: tuple[str, int] | None = None,
    ) -> None:
        self.run_id, self.where = run_id, where
        self.place = place
        """The branch, and how many calls and waits it had made; None if it is not about one of them."""
        self.recorded, self.attempted = recorded, attempted
        self.adds = adds
        """Whether the code may have only added something: then `accept_new_steps` is a way on."""
        self.what = (
            f"run {run_id!r} diverged at {where}\n"
            f"  recorded:  {recorded}\n"
            f"  attempted: {attempted}\n"
            "Nothing new was executed. The agent's code (or something it read that is not recorded) "
            "changed since the run began."
        )
        self.edits = _edits(forked_from)
        """What can be changed in the code, besides restoring the old code."""
        accept = f"make the added calls now: hf.resume({run_id!r}, accept_new_steps=True)"
        again = f"start over with the state kept: hf.rerun({run_id!r}); or fork before the change: hf.fork({run_id!r}, step)"
        ways = ["restore the old code and resume", *self.edits, *([accept] if adds else []), again]
        super().__init__(f"{self.what} To continue:\n" + "; or\n".join(f"  - {w}" for w in ways))


def _edits(forked_from: str) -> tuple[str, ...]:
    """What can be changed in code that diverged, besides restoring the old code."""
    edits = ("keep the change for new runs only: if run.patched('name'): … else: (the old way)",)
    if not forked_from:
        return edits
    fork = (
        f"this run is a fork of {forked_from!r} and has its own id: if the difference is computed\n"
        "    from run.id (a hash, a part of it), compute it from run.origin_id, the same in every fork"
    )
    return (*edits, fork)


class NotRecorded(UserWarning):
    """A step or tool was called outside a run while one is in progress: perhaps in a thread of its agent."""


# ── signals ──────────────────────────────────────────────────────────────────────────────────


class Unwind(BaseException):
    """Unwinds an agent. Not an `Exception`, so that `except Exception` in a tool does not catch it."""


class Suspend(Unwind):
    """The run has to wait, and is suspended until then."""

    def __init__(
        self,
        waiting_for: str,
        how: str,
        *,
        wake_at: int | None = None,
        waits: Sequence[WaitingFor] = (),
    ) -> None:
        self.waiting_for, self.how, self.wake_at = waiting_for, how, wake_at
        self.waits: tuple[WaitingFor, ...] = tuple(waits)
        super().__init__(waiting_for)


class Abandon(Unwind):
    """This worker must not continue with the run: its lease is lost, its code diverged, its store failed."""

    def __init__(self, cause: HoldfastError) -> None:
        self.cause = cause
        super().__init__(str(cause))


class Stop(Unwind):
    """The run ends here: deadline, budget or cancellation."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason, self.message = reason, message
        super().__init__(message)


def describe(fields: Mapping[str, object]) -> str:
    """`a=1, b='x'` for messages, each value cut to a readable length."""
    return ", ".join(f"{k}={_short(v)}" for k, v in fields.items())


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
