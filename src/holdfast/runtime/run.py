"""The run, from inside the agent: `run.state`, `run.stage`, `run.approve` and the rest.

Everything here either notes a fact (kept with the next commit; noted once, however often the code
runs again) or waits. `Run` is for plain functions, `AsyncRun` for `async def`: they differ only in
what must be awaited.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import random
import string
import typing
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, Literal, TypeVar, overload

import msgspec

from holdfast.core import dialogue, jsonpatch, log, values
from holdfast.core import events as e
from holdfast.core import state as states
from holdfast.core.agent_state import AgentState
from holdfast.core.context import ContextSlice, pack
from holdfast.core.dialogue import AnthropicPrompt, Shape
from holdfast.core.events import Value
from holdfast.core.parts import Artifact, Fact, Message, PlanStep, Role, ToolCall, texts
from holdfast.core.parts import text as _text
from holdfast.core.patch import StatePatch
from holdfast.core.policy import BudgetUse, budget_use, microseconds
from holdfast.core.tokens import ESTIMATE, TokenCounter
from holdfast.core.values import FrozenDict
from holdfast.errors import (
    Abandon,
    CallFailed,
    InvalidInput,
    NotStorable,
    Rejected,
    Signal,
    UnknownStage,
)
from holdfast.runtime.checkpoints import end_iteration
from holdfast.runtime.context import CURRENT, Branch, current_branch
from holdfast.runtime.models import fields_of
from holdfast.runtime.session import Session
from holdfast.runtime.tasks import drive_async_here, drive_here
from holdfast.runtime.waits import (
    Approval,
    Question,
    Request,
    Timer,
    content,
    wait,
    wait_first,
)

T = TypeVar("T")
U = TypeVar("U")

MAP_THREADS: Final = 8
_SLICE: Final = values.Codec(ContextSlice)
_ARTIFACTS_MAX: Final = "max_artifact_bytes_in_context"


class State:
    """The agent's explicit memory. `run.state.x` is None if never set, so a guard reads like a sentence."""

    __slots__ = ("_run",)

    def __init__(self, run: RunBase) -> None:
        object.__setattr__(self, "_run", run)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return self.get(key)

    def __setattr__(self, key: str, value: Any) -> None:
        self._change("set", key, value)

    def __delattr__(self, key: str) -> None:
        self._change("delete", key, None)

    __getitem__ = __getattr__
    __setitem__ = __setattr__
    __delitem__ = __delattr__

    def __contains__(self, key: str) -> bool:
        return key in self._session.state()

    def __repr__(self) -> str:
        return f"State({self.all()!r})"

    @property
    def _session(self) -> Session:
        session: Session = self._run._session
        return session

    def get(self, key: str, default: Any = None) -> Any:
        """The value under this key, or `default`."""
        state = self._session.state()
        fields = self._run._fields
        if key not in state:
            return fields[key].default if key in fields and default is None else default
        value = self._resolved(state[key])
        if key not in fields:
            return value
        try:
            return fields[key].read(value)
        except NotStorable as error:  # a patch from outside, or another model when it was set
            raise error.of(f"state.{key}") from None

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, Value) for item in value):
            return values.FrozenList(self._resolved(item) for item in value)
        return self._run._whole(value)

    def all(self) -> dict[str, Any]:
        """Everything, as a read-only dict."""
        state = self._session.state()
        return FrozenDict({key: self._resolved(value) for key, value in state.items()})

    def increment(self, key: str, by: float = 1) -> Any:
        """Add to a number (a missing one counts as 0); the new value."""
        before = self._session.state().get(key, 0)
        for number in (before, by):
            if isinstance(number, bool) or not isinstance(number, int | float | None):
                raise InvalidInput(f"state.{key} cannot be incremented: {number!r} is not a number")
        self._change("increment", key, by)
        return self.get(key)

    def append(self, key: str, value: Any) -> None:
        """Add to the end of a list (a missing one counts as empty). Only the new item is recorded."""
        before = self._session.state().get(key)
        if before is not None and not isinstance(before, list):
            raise InvalidInput(f"state.{key} is not a list; it cannot be appended to")
        self._change("append", key, value)

    def _change(self, op: str, key: Any, value: Any) -> None:
        if not isinstance(key, str) or not key or key in _STATE_METHODS:
            raise InvalidInput(
                f"{key!r} cannot be the name of something in run.state; choose another"
            )
        fields = self._run._fields
        try:
            if fields and key not in fields:
                raise InvalidInput(f"state.{key} is not declared; declared are {', '.join(fields)}")
            data = values.encode(value, typed=bool(fields))
            if fields and op != "delete":
                fields[key].read(self._after(op, key, values.decode(data)))
        except NotStorable as error:
            raise error.of(f"state.{key}") from None
        wrapped, blobs = self._session.wrap(data)
        branch = self._run._here
        self._session.note(
            e.StateChanged(branch=branch.path, after=branch.index, op=op, key=key, value=wrapped),
            blobs,
        )

    def _after(self, op: str, key: str, value: Any) -> Any:
        """What the state will hold under this key, for its model to judge."""
        seen = {key: self._resolved(self._session.state().get(key))}
        states.change(seen, op, key, value)
        return seen[key]


_STATE_METHODS: Final = frozenset({"get", "all", "increment", "append"})


class Messages:
    """The user-visible dialogue, kept apart from working memory."""

    def __init__(self, run: RunBase) -> None:
        self._run = run

    def add(
        self,
        role: str | Message,
        content: Any = "",
        *,
        metadata: Any = None,
        tool_calls: Iterable[ToolCall] = (),
        tool_call_id: str = "",
    ) -> None:
        """Add a message at the end: a role and what it says, or a whole `Message`."""
        said = (
            role
            if isinstance(role, Message)
            else Message(role, content, 0, metadata, tuple(tool_calls), tool_call_id)
        )
        session, here = self._run._session, self._run._here
        value, blobs = self._run._value(said.content)
        extra, more = (None, []) if said.metadata is None else self._run._value(said.metadata)
        asked = [self._asked(call) for call in said.tool_calls]
        session.note(
            e.MessageAdded(
                branch=here.path,
                after=here.index,
                role=said.role,
                content=value,
                metadata=extra,
                tool_calls=tuple(tool for tool, _ in asked),
                tool_call_id=said.tool_call_id,
            ),
            [*blobs, *more, *(blob for _, found in asked for blob in found)],
        )

    def _asked(self, call: ToolCall) -> tuple[e.AskedTool, list[log.Blob]]:
        arguments, blobs = self._run._value(call.arguments)
        result, more = (None, []) if call.result is None else self._run._value(call.result)
        asked = e.AskedTool(call.id, call.name, arguments, result, call.error, call.duration)
        return asked, [*blobs, *more]

    def all(self) -> list[Message]:
        """Every message so far."""
        return [self._whole(message) for message in self._run._session.view().messages]

    def _whole(self, message: Message) -> Message:
        whole, calls = self._run._whole, message.tool_calls
        return msgspec.structs.replace(
            message,
            content=whole(message.content),
            metadata=whole(message.metadata),
            tool_calls=tuple(
                msgspec.structs.replace(c, arguments=whole(c.arguments), result=whole(c.result))
                for c in calls
            ),
        )

    @overload
    def for_model(self, *, max_tokens: int | None = None, keep_last: int = 6,
                  shape: Literal["openai"] = "openai",
                  counter: TokenCounter = ESTIMATE) -> list[dict[str, Any]]: ...  # fmt: skip
    @overload
    def for_model(self, *, max_tokens: int | None = None, keep_last: int = 6,
                  shape: Literal["anthropic"],
                  counter: TokenCounter = ESTIMATE) -> AnthropicPrompt: ...  # fmt: skip
    def for_model(
        self, *, max_tokens: int | None = None, keep_last: int = 6, shape: Shape = "openai",
        counter: TokenCounter = ESTIMATE,
    ) -> list[dict[str, Any]] | AnthropicPrompt:  # fmt: skip
        """The dialogue as a provider's client takes it, without its oldest turns if it is too long.

        Kept are system messages, the first user message and the last `keep_last` turns (at least four);
        no tool call loses its answer. ContextTooLong if even these do not fit.
        """
        if shape not in ("openai", "anthropic"):
            raise InvalidInput(f"shape must be 'openai' or 'anthropic', not {shape!r}")
        shown = dialogue.fit(self.all(), max_tokens, keep_last=keep_last, counter=counter).messages
        return dialogue.openai(shown) if shape == "openai" else dialogue.anthropic(shown)

    def __len__(self) -> int:
        return len(self.all())

    def __iter__(self) -> Iterator[Message]:
        return iter(self.all())


class RunBase:
    """What `Run` and `AsyncRun` share: everything that need not wait."""

    def __init__(self, session: Session, root: Branch) -> None:
        self._session = session
        self._root = root
        self._fields = fields_of(session.setting.model)
        self.state = State(self)
        self.messages = Messages(self)

    @property
    def id(self) -> str:
        """The run's id."""
        return self._session.run_id

    @property
    def _here(self) -> Branch:
        branch = current_branch()
        if branch is None or branch.session is not self._session:
            branch = self._root
        if branch.waiting is not None:
            raise branch.waiting  # the code caught the wait and went on; its notes are not the run's
        return branch

    def _whole(self, value: Any) -> Any:
        """The value itself, fetched if it was too big for its event."""
        if not isinstance(value, Value):
            return value
        return values.freeze(values.decode(self._session.unwrap(value)))

    def _value(self, data: Any) -> tuple[Value, list[log.Blob]]:
        return self._session.wrap(values.encode(data))

    # ── position ─────────────────────────────────────────────────────────────────────────

    @property
    def stage(self) -> str:
        """The declared stage that the run is in."""
        entered = self._session.pending(e.StageEntered)
        return entered[-1].stage if entered else self._session.draft.stage

    @stage.setter
    def stage(self, stage: str) -> None:
        declared = self._session.setting.stages
        if stage not in declared:
            raise UnknownStage(stage, declared)
        here = self._here
        self._session.note(e.StageEntered(branch=here.path, after=here.index, stage=stage))

    def advance(self) -> str:
        """Enter the stage after the present one."""
        declared, now = self._session.setting.stages, self.stage
        index = declared.index(now) + 1 if now else 0
        if index >= len(declared):
            raise InvalidInput(f"{now!r} is the last stage")
        self.stage = declared[index]
        return self.stage

    def plan(self, steps: Iterable[str]) -> None:
        """What the run is going to do, so that anybody can see how far it is."""
        here, names = self._here, texts(steps, "run.plan")
        self._session.note(e.PlanMade(branch=here.path, after=here.index, steps=names))

    @property
    def plan_steps(self) -> tuple[PlanStep, ...]:
        """The plan, and how far it is."""
        return self._session.view().plan

    @contextlib.contextmanager
    def doing(self, step: str) -> Iterator[None]:
        """A part of the plan, done when the block ends without an error."""
        here, step = self._here, _text(step, "run.doing: the step")
        self._session.note(e.PlanStepBegan(branch=here.path, after=here.index, step=step))
        yield
        here = self._here
        self._session.note(e.PlanStepEnded(branch=here.path, after=here.index, step=step))

    # ── what the agent knows ─────────────────────────────────────────────────────────────

    def decide(self, name: str, choice: T, *, why: str = "", options: Iterable[str] = ()) -> T:
        """Record a decision and its reason. On replay the recorded choice is returned."""
        here = self._here
        value, blobs = self._value(choice)
        made = self._session.note(
            e.DecisionMade(
                branch=here.path,
                after=here.index,
                name=_text(name, "run.decide: the name"),
                choice=value,
                why=_text(why, "run.decide: why"),
                options=texts(options, "run.decide: options"),
            ),
            blobs,
        )
        return typing.cast(T, values.decode(self._session.unwrap(made.choice)))

    def fact(self, key: str, value: Any, *, source: str = "") -> None:
        """Something the agent found out, and where from."""
        here = self._here
        wrapped, blobs = self._value(value)
        self._session.note(
            e.FactLearned(
                branch=here.path,
                after=here.index,
                key=_text(key, "run.fact: the key"),
                value=wrapped,
                source=_text(source, "run.fact: source"),
            ),
            blobs,
        )

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What the agent found out, oldest first."""
        return tuple(
            msgspec.structs.replace(x, value=self._whole(x.value))
            for x in self._session.view().facts
        )

    def ask_later(self, question: str) -> None:
        """A question that stays open."""
        here, question = self._here, _text(question, "run.ask_later: the question")
        self._session.note(e.QuestionRaised(branch=here.path, after=here.index, question=question))

    def close_question(self, question: str) -> None:
        """An open question has been answered."""
        here, question = self._here, _text(question, "run.close_question: the question")
        self._session.note(e.QuestionClosed(branch=here.path, after=here.index, question=question))

    @property
    def questions(self) -> tuple[str, ...]:
        """Questions that are still open."""
        return self._session.view().questions

    def patch(self, patch: StatePatch) -> None:
        """Take in what a component found out: facts, a plan, questions, notes, artifacts, flags."""
        if not isinstance(patch, StatePatch):
            raise InvalidInput(f"run.patch takes a StatePatch, not {patch!r}")
        data = values.encode_struct(patch)
        value, blob = log.wrap(data)
        if blob is not None:
            raise InvalidInput(
                f"a patch may take up to {log.SPILL_BYTES:,} bytes; this one takes {len(data):,}; "
                "keep big things with run.artifact"
            )
        here = self._here
        self._session.note(e.KnowledgePatched(branch=here.path, after=here.index, patch=value))

    @property
    def flags(self) -> tuple[str, ...]:
        """The risk flags that are raised."""
        return self._session.view().flags

    def note(self, key: str, value: Any) -> None:
        """A line in the agent's private scratchpad."""
        here, key = self._here, _text(key, "run.note: the key")
        wrapped, blobs = self._value(value)
        self._session.note(
            e.NoteTaken(branch=here.path, after=here.index, key=key, value=wrapped), blobs
        )

    @property
    def notes(self) -> dict[str, Any]:
        """The private scratchpad."""
        return FrozenDict({k: self._whole(v) for k, v in self._session.view().notes.items()})

    def artifact(
        self, name: str, data: bytes | str | Any, *, type: str = "", summary: str = ""
    ) -> Artifact:
        """Keep a big output verbatim, by its hash. The state holds only what it is."""
        what = Artifact(name, type, summary=summary)  # or an error that names what is wrong
        raw = (
            data
            if isinstance(data, bytes)
            else data.encode()
            if isinstance(data, str)
            else values.encode(data)
        )
        kind = what.type or (
            "bytes" if isinstance(data, bytes) else "text" if isinstance(data, str) else "json"
        )
        here = self._here
        blob = log.Blob(values.digest(raw), raw)
        saved = self._session.note(
            e.ArtifactSaved(
                branch=here.path, after=here.index, name=what.name, type=kind, blob=blob.hash, bytes=len(raw),
                summary=what.summary,
            ),
            [blob],
        )  # fmt: skip
        # Without its time: the code must see the same when it runs again. A loop stamps it.
        return Artifact(
            what.name, saved.type, saved.blob, saved.bytes, saved.summary, self._session.draft.steps
        )

    def context(
        self, *, step: int | None = None, max_bytes: int | None = None, max_tokens: int | None = None,
        goal: str = "", counter: TokenCounter = ESTIMATE,
    ) -> ContextSlice:  # fmt: skip
        """What a model should know of the run, under a cap; recorded, so that one can see what it knew.

        Goal (yours, or the first user message, or the input `goal`), open questions, the artifacts of
        this step (by default the last), the newest facts, then other artifacts by their summary. Of a
        loop also what its state held when the iteration began. An artifact beyond `Budget.max_artifact_bytes_in_context` appears by its summary.
        """
        sizes = [limit for limit in (max_bytes, max_tokens) if limit is not None]
        if len(sizes) != 1 or not isinstance(sizes[0], int) or sizes[0] < 1:  # type: ignore[redundant-expr]
            raise InvalidInput("run.context takes one cap: max_bytes= or max_tokens=, of 1 or more")
        here, view, own = self._here, self._session.view(), self._loop_state()
        kept = {(x.name, x.id): x for x in (*own.memory.artifacts, *view.artifacts)}
        limits = (self.budget.limits, own.budget.limits())
        caps = [x[_ARTIFACTS_MAX] for x in limits if _ARTIFACTS_MAX in x]
        packed = pack(
            goal=_text(goal, "run.context: goal") or own.goal or self._goal(view.messages),
            questions=tuple(dict.fromkeys((*view.questions, *own.memory.questions))),
            facts=sorted((*self.facts, *own.memory.facts), key=lambda fact: fact.time),
            artifacts=tuple(kept.values()),
            content=self._content,
            step=view.steps if step is None else step,
            limit=sizes[0],
            measure=counter.count if max_tokens is not None else lambda text: len(text.encode()),
            unit="tokens" if max_tokens is not None else "bytes",
            artifact_bytes_max=min(caps, default=None),
        )
        value, blobs = self._session.wrap(_SLICE.encode(packed))
        shown = self._session.note(
            e.ContextShown(branch=here.path, after=here.index, slice=value), blobs
        )
        return typing.cast(ContextSlice, _SLICE.decode(self._session.unwrap(shown.slice)))

    def _loop_state(self) -> AgentState:
        """What a loop's state was at the beginning of this iteration; an empty one if there is no loop."""
        document = self._session.draft.loop.frozen()
        for ended in self._session.pending(e.IterationEnded):  # not committed yet
            if ended.state is not None:
                document = states.plain(ended.state)
            elif ended.delta is not None:
                document = jsonpatch.apply(document, states.plain(ended.delta))
        return AgentState() if document is None else msgspec.convert(document, AgentState)

    def _content(self, kept: Artifact) -> bytes | None:
        """What the store has of an artifact: of one that came with a patch, maybe nothing."""
        try:
            return self._session.unwrap(Value(blob=kept.id, bytes=kept.bytes)) if kept.id else None
        except Abandon:
            return None

    def _goal(self, messages: Iterable[Message]) -> str:
        first = next((m for m in messages if m.role == Role.USER), None)
        if first is not None:
            return dialogue.text_of(self._whole(first.content))
        created = self._session.journal.created
        given = None if created is None else values.decode(self._session.unwrap(created.input))
        found = given.get("goal") if isinstance(given, dict) else None
        return found if isinstance(found, str) else ""

    def log(self, text: str, *, level: str = "info") -> None:
        """A line for people who look at the run."""
        here = self._here
        self._session.note(
            e.LogWritten(
                branch=here.path,
                after=here.index,
                level=_text(level, "run.log: level"),
                text=str(text),
            )
        )

    def format(self, template: str) -> str:
        """Fill `{state.key}`, `{run.id}`, `{stage}` into a prompt or message."""
        return _Template(self).format(template)

    # ── time and chance ──────────────────────────────────────────────────────────────────

    def _recorded(self, name: str, make: Callable[[], Any]) -> Any:
        here = self._here
        value, blobs = self._value(make())
        kept = self._session.note(
            e.ValueRecorded(branch=here.path, after=here.index, name=name, value=value), blobs
        )
        return values.decode(self._session.unwrap(kept.value))

    def now(self) -> datetime.datetime:
        """The time, read once: the same on every replay."""
        us = self._recorded("now", self._session.store.now)
        return datetime.datetime.fromtimestamp(us / 1_000_000, datetime.UTC)

    def random(self) -> float:
        """A number in [0, 1), drawn once."""
        return float(self._recorded("random", random.SystemRandom().random))

    def uuid(self) -> uuid.UUID:
        """A random UUID, drawn once."""
        return uuid.UUID(self._recorded("uuid", lambda: str(uuid.uuid4())))

    def patched(self, name: str) -> bool:
        """Whether this run goes the new way: true for runs that had not come this far when the code
        changed, false for those that had. The answer is recorded."""
        here = self._here
        replaying = self._session.reaches(here.path, here.index)
        return bool(self._recorded(f"patched {name}", lambda: not replaying))

    @property
    def budget(self) -> BudgetUse:
        """What is used and what is left."""
        session, created = self._session, self._session.journal.created
        return budget_use(
            created.budget if created else {},
            steps=session.steps,
            elapsed_us=session.store.now() - session.journal.created_at,
            usage=session.usage,
        )

    def _iteration(self, index: int) -> e.IterationEnded:
        created = self._session.journal.created
        if created is not None and created.loop:
            raise InvalidInput("a loop ends its iterations by itself: return the state")
        return e.IterationEnded(index=index, iteration=self._session.next_iteration())

    # ── requests for waits ───────────────────────────────────────────────────────────────

    @staticmethod
    def _timer(seconds: float) -> Request:
        return Request(
            "timer", seconds_us=microseconds(seconds, "run.sleep"), says="a timer",
            how="it goes on by itself when a worker is running",
        )  # fmt: skip

    @staticmethod
    def _signals(names: Sequence[Any], timeout: float | None) -> Request:
        if not names or not all(isinstance(name, str) and name.strip() for name in names):
            raise InvalidInput("a signal needs a name that is not empty")
        us = None if timeout is None else microseconds(timeout, "timeout")
        said = " or ".join(repr(name) for name in names)
        return Request(
            "signal", name=",".join(names), seconds_us=us, of=tuple(names), says=f"the signal {said}",
            how=f"hf.signal({{id}}, {names[0]!r}, …)",
        )  # fmt: skip

    @staticmethod
    def _approval(prompt: str, show: Any, timeout: float | None) -> Request:
        us = None if timeout is None else microseconds(timeout, "timeout")
        prompt = _text(prompt, "run.approve: the prompt")
        return Request("approval", name=prompt, seconds_us=us, show=show, says=f"approval: {prompt}",
                       how="hf.approve({id}) or hf.reject({id})")  # fmt: skip

    @staticmethod
    def _question(prompt: str, options: Iterable[str], timeout: float | None) -> Request:
        us = None if timeout is None else microseconds(timeout, "timeout")
        prompt, options = _text(prompt, "run.ask: the prompt"), texts(options, "run.ask: options")
        return Request("answer", name=prompt, seconds_us=us, options=options, says=f"an answer: {prompt}",
                       how="hf.answer({id}, …)")  # fmt: skip

    def _end_of_signal(self, ended: e.WaitEnded) -> Any:
        return None if ended.outcome == "time" else content(self._session, ended.value)

    def _any(
        self, waits: Sequence[str | Approval | Question | Timer], timeout: float | None
    ) -> list[Request]:
        """Each thing as a request of its own; signals are one request together."""
        signals = [x for x in waits if isinstance(x, str)]
        if len(waits) == len(signals):
            return [self._signals(signals, timeout)]
        if timeout is not None and all(isinstance(x, Timer) for x in waits):
            raise InvalidInput("wait_any: a timeout beside timers alone is one more Timer")
        requests = [self._signals(signals, timeout)] if signals else []
        for x in waits:
            match x:
                case Approval():
                    requests.append(self._approval(x.prompt, x.show, timeout))
                case Question():
                    requests.append(self._question(x.prompt, x.options, timeout))
                case Timer():
                    timer = self._timer(x.seconds)
                    requests.append(dataclasses.replace(timer, name=_text(x.name, "Timer.name")))
                case str():
                    pass
                case _:
                    raise InvalidInput(
                        f"wait_any takes names of signals, Approval, Question and Timer, not {x!r}"
                    )
        return requests

    def _end_of_any(
        self, requests: list[Request], ended: tuple[int, e.WaitEnded]
    ) -> tuple[str, Any] | None:
        number, end = ended
        if end.wait == "timer":
            return requests[number].name, None
        if end.outcome == "time":
            return None
        if end.wait == "approval":
            return requests[number].name, end.outcome == "approved"
        name = end.outcome if end.wait == "signal" else requests[number].name
        return name, content(self._session, end.value)

    def _end_of_approval(self, prompt: str, ended: e.WaitEnded) -> bool:
        if ended.outcome == "time":
            raise Rejected(prompt, "Rejected", "nobody decided in time")
        if ended.outcome == "rejected":
            said = content(self._session, ended.value)
            why = f": {said['why']}" if said["why"] else ""
            raise Rejected(prompt, "Rejected", f"{said['by'] or 'a person'} said no{why}")
        return True


class Run(RunBase):
    """A run, as its agent (a plain function) sees it."""

    def _wait(self, request: Request) -> e.WaitEnded:
        here = self._here
        ended: e.WaitEnded = drive_here(here, wait(here, request))
        return ended

    def _first(self, requests: list[Request]) -> tuple[int, e.WaitEnded]:
        here = self._here
        first: tuple[int, e.WaitEnded] = drive_here(here, wait_first(here, requests))
        return first

    def checkpoint(self) -> None:
        """The end of an iteration: with `checkpoint="every_iteration"` everything so far is committed here."""
        here = self._here
        drive_here(here, end_iteration(here, self._iteration))

    def sleep(self, seconds: float) -> None:
        """Wait for a time. A far one leaves memory and survives any restart."""
        self._wait(self._timer(seconds))

    def wait_for(self, signal: str, *, timeout: float | None = None) -> Any:
        """Wait for a signal; its value, or None when time is up. One sent before the wait is kept."""
        return self._end_of_signal(self._wait(self._signals([signal], timeout)))

    def wait_any(
        self, *waits: str | Approval | Question | Timer, timeout: float | None = None
    ) -> tuple[str, Any] | None:
        """Wait for the first of several: its name and value, or None when time is up.

        A name stands for a signal. The others are cancelled: a late decision about them is refused,
        and a late signal is kept for the next wait.
        """
        requests = self._any(waits, timeout)
        return self._end_of_any(requests, self._first(requests))

    def approve(self, prompt: str, *, show: Any = None, timeout: float | None = None) -> bool:
        """Ask a person to approve. Rejected is raised if they say no, or nobody decides in time."""
        return self._end_of_approval(prompt, self._wait(self._approval(prompt, show, timeout)))

    def ask(self, prompt: str, *, options: Iterable[str] = (), timeout: float | None = None) -> Any:
        """Ask a person a question; the answer, or None when time is up."""
        return self._end_of_signal(self._wait(self._question(prompt, options, timeout)))

    def map(
        self, fn: Callable[[U], T], items: Iterable[U], *, threads: int = MAP_THREADS
    ) -> list[T]:
        """Call `fn` for each item, in parallel; results in the order of the items.

        Each item is a branch of its own, so that on replay each finds its own calls, in whatever
        order the branches finish.
        """
        here = self._here
        work = [(here.fork(), item) for item in items]
        if not work:
            return []

        def one(branch: Branch, item: U) -> T:
            CURRENT.set(branch)
            return fn(item)

        with ThreadPoolExecutor(
            max_workers=min(threads, len(work)), thread_name_prefix="holdfast-map"
        ) as pool:
            futures = [pool.submit(copy_context().run, one, branch, item) for branch, item in work]
        errors = [x for x in (future.exception() for future in futures) if x is not None]
        signals = [x for x in errors if isinstance(x, Signal)]
        for error in (*signals, *errors):
            if isinstance(error, CallFailed):
                error.also = tuple(
                    x.step for x in errors if isinstance(x, CallFailed) and x is not error
                )
            raise error
        return [future.result() for future in futures]


class AsyncRun(RunBase):
    """A run, as its agent (an `async def`) sees it."""

    async def _wait(self, request: Request) -> e.WaitEnded:
        here = self._here
        ended: e.WaitEnded = await drive_async_here(here, wait(here, request))
        return ended

    async def _first(self, requests: list[Request]) -> tuple[int, e.WaitEnded]:
        here = self._here
        first: tuple[int, e.WaitEnded] = await drive_async_here(here, wait_first(here, requests))
        return first

    async def checkpoint(self) -> None:
        """The end of an iteration: with `checkpoint="every_iteration"` everything so far is committed here."""
        here = self._here
        await drive_async_here(here, end_iteration(here, self._iteration))

    async def sleep(self, seconds: float) -> None:
        """Wait for a time. A far one leaves memory and survives any restart."""
        await self._wait(self._timer(seconds))

    async def wait_for(self, signal: str, *, timeout: float | None = None) -> Any:
        """Wait for a signal; its value, or None when time is up. One sent before the wait is kept."""
        return self._end_of_signal(await self._wait(self._signals([signal], timeout)))

    async def wait_any(
        self, *waits: str | Approval | Question | Timer, timeout: float | None = None
    ) -> tuple[str, Any] | None:
        """Wait for the first of several: its name and value, or None when time is up.

        A name stands for a signal. The others are cancelled: a late decision about them is refused,
        and a late signal is kept for the next wait.
        """
        requests = self._any(waits, timeout)
        return self._end_of_any(requests, await self._first(requests))

    async def approve(self, prompt: str, *, show: Any = None, timeout: float | None = None) -> bool:
        """Ask a person to approve. Rejected is raised if they say no, or nobody decides in time."""
        ended = await self._wait(self._approval(prompt, show, timeout))
        return self._end_of_approval(prompt, ended)

    async def ask(
        self, prompt: str, *, options: Iterable[str] = (), timeout: float | None = None
    ) -> Any:
        """Ask a person a question; the answer, or None when time is up."""
        return self._end_of_signal(await self._wait(self._question(prompt, options, timeout)))

    async def map(self, fn: Callable[[U], Awaitable[T]], items: Iterable[U]) -> list[T]:
        """Call `fn` for each item, concurrently; results in the order of the items."""
        import asyncio

        async def one(item: U) -> T:
            return await fn(item)

        return list(await asyncio.gather(*(one(item) for item in items)))


class _Template(string.Formatter):
    """`{state.key}` and friends, without reaching into Python objects."""

    def __init__(self, run: RunBase) -> None:
        self._run = run

    def get_field(self, field_name: str, *_args: Any) -> tuple[Any, str]:
        root, _, rest = field_name.partition(".")
        if root == "stage" and not rest:
            return self._run.stage, root
        if field_name == "run.id":
            return self._run.id, root
        if root != "state" or not rest:
            raise InvalidInput(
                f"{{{field_name}}} is not known in a template; use {{state.key}}, {{stage}}, {{run.id}}"
            )
        value: Any = self._run.state.all()
        for key in rest.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return "" if value is None else value, root
