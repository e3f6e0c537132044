"""`LLMAgent`: a model, its tools, and the loop between them, every turn durable.

    model → tool calls → model → … → answer

A model call is a step: its reply is recorded once, and a crash before that repeats only the
model call. Tools are called as the recorded reply says, through the same call flow as everywhere,
so intents, keys, approvals, doubt, budgets and replay work as usual. A model's mistake
becomes an observation that it can react to; what an agent may not do ends or suspends the run.

A turn that called tools is an iteration: `checkpoint="every_iteration"` commits at its end. An effect depends on
a recorded reply with every strategy, because its intent is committed with everything that is buffered.

The loop is written once, as a generator; a small sync and a small async driver execute it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.agents.models.base import (
    AsyncModel,
    Model,
    OnText,
    Prompt,
    Reply,
    ToolRequest,
    clean,
    cleaned,
)
from holdfast.agents.models.finish import Finish, check_complete, finish_of
from holdfast.agents.schemas import ToolUse, WrongArguments, tool_uses
from holdfast.core import dialogue, values
from holdfast.core.events import Usage
from holdfast.core.parts import Message, Role, ToolCall
from holdfast.core.policy import Budget, Checkpoint, Retry
from holdfast.core.tokens import ESTIMATE, TokenCounter
from holdfast.errors import (
    CallFailed,
    InvalidInput,
    ModelIncomplete,
    ModelRefused,
    ModelUnavailable,
    NotStorable,
    OutOfTurns,
    Rejected,
)
from holdfast.runtime.api import templates
from holdfast.runtime.api.decorators import agent, step
from holdfast.runtime.api.run import AsyncRun, Run, RunBase
from holdfast.runtime.call.task_factory import in_thread
from holdfast.runtime.declare.agent_spec import BoundAgent, Strategy
from holdfast.runtime.declare.call_spec import Risk
from holdfast.runtime.declare.specs import SPEC, spec_of

MAX_TURNS: Final = 30
CONTEXT_TOKENS: Final = 100_000
OBSERVATION_CHARS: Final = 20_000
MODEL_RETRY: Final = Retry(attempts=6, initial=1.0, max_delay=60.0, retry_on=(ModelUnavailable,))


class _Ask(Struct, frozen=True):
    """Call the model, in turn n."""

    turn: int


class _Act(Struct, frozen=True):
    """Call the tools that the model requested, in parallel."""

    calls: tuple[ToolRequest, ...]


class _Observation(Struct, frozen=True):
    """The result of a tool call, as the model gets it."""

    text: str
    failed: bool = False


class _EndTurn(Struct, frozen=True):
    """All tool results are in the dialogue: an iteration ends."""


_Loop = Generator[_Ask | _Act | _EndTurn, Any, str]


class LLMAgent:
    """An agent that is driven by a model.

        devops = LLMAgent("devops", model=OpenAIModel("…"), instructions="…", tools=[check_disk, clean_logs])
        hf.run(devops, "I'm out of disk space. Fix it.")

    It runs, resumes and is approved like any `@agent`; inside another agent it is a child run. With an
    async tool or model it is an async agent. A tool that fails, or that a person rejects, is reported to the
    model (`on_reject="fail"`: a rejection fails the run). `instructions` and `message` (the user's first
    message) are templates: `{input.goal}`, `{state.key}`, `{run.id}`; `{{` is a brace. The goal is not one. `on_text` receives the model's text while it
    streams, and never on replay; after an interrupted stream it starts again from the beginning.
    """

    def __init__(
        self,
        name: str,
        *,
        model: Model | AsyncModel,
        instructions: str = "",
        message: str = "{input.goal}",
        tools: Iterable[Callable[..., Any]] = (),
        max_turns: int = MAX_TURNS,
        approve: Iterable[Risk] = (),
        approval_ttl: float | None = None,
        on_reject: Literal["tell", "fail"] = "tell",
        budget: Budget | None = None,
        deadline: float | None = None,
        on_failure: Literal["", "undo"] = "",
        retry: Retry = MODEL_RETRY,
        on_text: OnText | None = None,
        max_context_tokens: int = CONTEXT_TOKENS,
        keep_last: int = dialogue.KEEP_LAST,
        counter: TokenCounter = ESTIMATE,
        max_observation_chars: int = OBSERVATION_CHARS,
        version: str = "",
        continues: Iterable[str] = (),
        max_running: int | None = None,
        checkpoint: Strategy | Checkpoint = "every_step",
        redact: Iterable[str] = (),
        exempt: Iterable[str] = (),
        step_name: str = "model",
    ) -> None:
        what = f"LLMAgent {name!r}"
        _check_name(name)
        _check_kinds(
            what,
            model=model,
            instructions=instructions,
            message=message,
            budget=budget,
            retry=retry,
            counter=counter,
            on_text=on_text,
        )
        _check_counts(
            what,
            max_turns=max_turns,
            max_context_tokens=max_context_tokens,
            keep_last=keep_last,
            max_observation_chars=max_observation_chars,
        )
        for option, template in (("instructions", instructions), ("message", message)):
            templates.check(template, f"{what}: {option}", ["goal"])
        if on_reject not in ("tell", "fail"):
            raise InvalidInput(f"{what}: on_reject must be 'tell' or 'fail', not {on_reject!r}")
        self._model, self._instructions, self._first_message = model, instructions, message
        self._tools = tool_uses(tools, what)
        self._max_turns, self._on_reject = max_turns, on_reject
        self._step_name = step_name
        self._on_text, self._keep_last, self._counter = on_text, keep_last, counter
        self._max_observation_chars = max_observation_chars
        never = (*retry.give_up_on, ModelRefused, ModelIncomplete, InvalidInput)
        self._retry = replace(retry, give_up_on=never)
        described = [asdict(use.schema) for use in self._tools.values()]
        self._tools_tokens = counter.count(values.encode(described).decode())
        self._max_tokens = max_context_tokens - self._tools_tokens
        if self._max_tokens < 1:
            raise InvalidInput(
                f"{what}: describing its tools takes more than max_context_tokens={max_context_tokens:,}"
            )
        _check_price(what, model, budget)

        self._model_is_async = inspect.iscoroutinefunction(model.answer)
        is_async = self._model_is_async or any(use.spec.is_async for use in self._tools.values())
        self._enter = agent(
            name=name,
            approve=approve,
            approval_ttl=approval_ttl,
            budget=budget,
            deadline=deadline,
            on_failure=on_failure,
            version=version,
            continues=continues,
            max_running=max_running,
            checkpoint=checkpoint,
            redact=redact,
            exempt=exempt,
        )(self._run_async if is_async else self._run)
        setattr(self, SPEC, spec_of(self._enter))
        self.__name__ = name
        self.__doc__ = instructions or None
        # As functions have it: where it was made. The command line recognises the agents of a file by this.
        self.__module__ = sys._getframe(1).f_globals.get("__name__", __name__)

    def __repr__(self) -> str:
        return f"<LLMAgent {self.__name__!r} on {self._model!r} with {', '.join(self._tools) or 'no tools'}>"

    def __call__(self, goal: str) -> Any:
        """Inside another agent: a child run (something to await, if this agent is async)."""
        return self._enter(goal)

    def bind(self, goal: str) -> BoundAgent[str]:
        """The agent with the input of one run, for `hf.run` and `hf.start`."""
        return BoundAgent(self, (goal,))

    def turn(self, run: Run, message: str, *, instructions: str = "") -> str:
        """Take a turn inside the run of another agent, and continue its dialogue; the answer.

        Both texts are used as they are; instructions are added to the dialogue if they are given. The calls are
        recorded in that run. Not for an async model or async tools.
        """
        if self._model_is_async or any(use.spec.is_async for use in self._tools.values()):
            raise InvalidInput(
                f"{self.__name__}: turn() needs a model and tools that are not async"
            )
        if instructions:
            run.messages.add(Role.SYSTEM, instructions)
        run.messages.add(Role.USER, message)
        return self._driven(run, self._turns(run))

    # ── the loop ─────────────────────────────────────────────────────────────────────────

    def _loop(self, run: RunBase) -> _Loop:
        said = run.messages
        if self._instructions:
            kept = {"template": self._instructions} if "{state." in self._instructions else None
            said.add(Role.SYSTEM, run.format(self._instructions), metadata=kept)
        said.add(Role.USER, run.format(self._first_message))
        return self._turns(run)

    def _turns(self, run: RunBase) -> _Loop:
        said = run.messages
        for turn in range(1, self._max_turns + 1):
            reply: Reply = yield _Ask(turn)
            if reply.tool_calls:
                check_complete(reply)  # versions before 0.2 recorded truncated replies
            said.add(_message(reply))
            if reply.estimated:
                run.log(
                    f"the provider reported no usage for turn {turn}; it is estimated",
                    level="warning",
                )
            if finish_of(reply) is Finish.PAUSED:
                continue  # the provider wants the turn back as it is, and continues it
            if not reply.tool_calls:
                return reply.text
            names = [call.name for call in reply.tool_calls]
            run.decide(f"turn {turn}", names, why=reply.text, options=tuple(self._tools))
            observed: list[_Observation] = yield _Act(reply.tool_calls)
            for call, seen in zip(reply.tool_calls, observed, strict=True):
                failed = {"error": True} if seen.failed else None
                said.add(Message(Role.TOOL, seen.text, metadata=failed, tool_call_id=call.id))
            yield _EndTurn()
        raise OutOfTurns(self.__name__, self._max_turns)

    def _run(self, run: Run, goal: str) -> str:  # noqa: ARG002 (named in the first message)
        return self._driven(run, self._loop(run))

    def _driven(self, run: Run, loop: _Loop) -> str:
        wanted = next(loop)
        while True:
            done: Any = None
            if isinstance(wanted, _Ask):
                done = self._question(run)(wanted.turn)
            elif isinstance(wanted, _EndTurn):
                run.checkpoint()
            elif len(wanted.calls) == 1:
                done = [self._act(wanted.calls[0])]
            else:
                done = run.map(self._act, wanted.calls)
            try:
                wanted = loop.send(done)
            except StopIteration as over:
                return str(over.value)

    async def _run_async(self, run: AsyncRun, goal: str) -> str:  # noqa: ARG002
        loop = self._loop(run)
        wanted = next(loop)
        while True:
            done: Any = None
            if isinstance(wanted, _Ask):
                ask = self._question(run)
                done = await _called(ask, self._model_is_async, turn=wanted.turn)
            elif isinstance(wanted, _EndTurn):
                await run.checkpoint()
            elif len(wanted.calls) == 1:
                done = [await self._act_async(wanted.calls[0])]
            else:
                done = await run.map(self._act_async, wanted.calls)
            try:
                wanted = loop.send(done)
            except StopIteration as over:
                return str(over.value)

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def _question(self, run: RunBase) -> Callable[..., Any]:
        """The step that asks the model. Its identity is the turn, and not the prompt: with better
        instructions or another model a run continues where it is, and recorded replies stay."""
        model: Any = self._model
        outside = not getattr(model, "is_offline", False)
        declared = step(name=self._step_name, retry=self._retry, outside=outside)
        if self._model_is_async:

            @declared
            async def ask_async(turn: int) -> Reply:
                shown = self._fitted(run)
                return self._checked(await model.answer(self._prompt(shown, turn)), shown)

            return ask_async

        @declared
        def ask(turn: int) -> Reply:
            shown = self._fitted(run)
            return self._checked(model.answer(self._prompt(shown, turn)), shown)

        return ask

    def _fitted(self, run: RunBase) -> dialogue.TruncatedDialogue:
        said = [_with_state(message, run) for message in run.messages.all()]
        return dialogue.fit(
            said, self._max_tokens, keep_last=self._keep_last, counter=self._counter
        )

    def _prompt(self, dialogue_shown: dialogue.TruncatedDialogue, turn: int) -> Prompt:
        tools = tuple(use.schema for use in self._tools.values())
        on_text = self._on_text
        shows = None if on_text is None else lambda piece: on_text(clean(piece))
        return Prompt(dialogue_shown.messages, tools, turn, shows)

    def _checked(self, reply: Reply, dialogue_shown: dialogue.TruncatedDialogue) -> Reply:
        """The reply as it is recorded. One that is not complete fails the step, so a resume asks again."""
        counted = self._counted(reply, dialogue_shown)
        check_complete(counted)
        return counted

    def _counted(self, reply: Reply, dialogue_shown: dialogue.TruncatedDialogue) -> Reply:
        """The reply as it is recorded. Limits must hold also where a provider does not count."""
        if not isinstance(reply, Reply):
            raise InvalidInput(f"{self._model!r} must return a Reply, not {reply!r}")
        try:
            msgspec.convert(msgspec.to_builtins(reply), Reply)
        except msgspec.ValidationError as wrong:
            raise InvalidInput(f"{self._model!r} returned an invalid Reply: {wrong}") from None
        reply = cleaned(reply)
        used = reply.usage
        if used is not None:
            if min(used.input_tokens, used.output_tokens, used.cost_usd) < 0:
                raise InvalidInput(f"{self._model!r} reported a negative usage: {used!r}")
            return replace(reply, left_out=dialogue_shown.left_out)
        sent = self._tools_tokens + dialogue_shown.tokens
        got = self._counter.count(reply.text + "".join(c.arguments for c in reply.tool_calls))
        price = getattr(self._model, "price", None)
        usage = Usage(sent, got, price.cost(sent, got) if price is not None else 0.0)
        return replace(reply, usage=usage, left_out=dialogue_shown.left_out, estimated=True)

    # ── acting ───────────────────────────────────────────────────────────────────────────

    def _act(self, call: ToolRequest) -> _Observation:
        found = self._read(call)
        if isinstance(found, _Observation):
            return found
        use, arguments = found
        try:
            return self._seen(use.fn(**arguments))
        except CallFailed as failed:
            return self._failed(failed)

    async def _act_async(self, call: ToolRequest) -> _Observation:
        found = self._read(call)
        if isinstance(found, _Observation):
            return found
        use, arguments = found
        try:
            return self._seen(await _called(use.fn, use.spec.is_async, **arguments))
        except CallFailed as failed:
            return self._failed(failed)

    def _read(self, call: ToolRequest) -> tuple[ToolUse, dict[str, Any]] | _Observation:
        """The tool and its arguments; or the observation for a model that requested an unknown tool or wrong arguments."""
        use = self._tools.get(call.name)
        if use is None:
            known = ", ".join(self._tools) or "none"
            return _Observation(
                f"error: unknown tool {call.name!r}; known tools: {known}", failed=True
            )
        try:
            return use, use.read(call.arguments)
        except WrongArguments as wrong:
            return _Observation(
                self._cut(f"error: {call.name} was not called: {wrong}"), failed=True
            )

    def _seen(self, result: Any) -> _Observation:
        plain = values.lower(result, typed=True)
        return _Observation("done" if plain is None else self._cut(dialogue.text_of(plain)))

    def _failed(self, failed: CallFailed) -> _Observation:
        if isinstance(failed, Rejected) and self._on_reject == "fail":
            raise failed
        return _Observation(self._cut(f"error: {failed}"), failed=True)

    def _cut(self, text: str) -> str:
        """A long text without its middle; the log has the whole."""
        most = self._max_observation_chars
        if len(text) <= most:
            return text
        head, tail = text[: most * 2 // 3], text[len(text) - most // 3 :]
        return f"{head}\n… {len(text) - len(head) - len(tail):,} characters omitted …\n{tail}"


async def _called(fn: Callable[..., Any], is_async: bool, **arguments: Any) -> Any:
    """Call a step or tool of either kind from an async agent."""
    return await (fn(**arguments) if is_async else in_thread(fn, **arguments))


def _message(reply: Reply) -> Message:
    """What the model said, as a message of the dialogue."""
    calls = tuple(ToolCall(c.id, c.name, _arguments(c.arguments)) for c in reply.tool_calls)
    metadata = None if reply.kept is None else dialogue.keep(reply.kept.format, reply.kept.blocks)
    return Message(Role.ASSISTANT, reply.text, metadata=metadata, tool_calls=calls)


def _with_state(message: Message, run: RunBase) -> Message:
    """Instructions that name the state, with the state as it is now; those that the run started with."""
    metadata = message.metadata if message.role == Role.SYSTEM else None
    template = metadata.get("template") if isinstance(metadata, dict) else None
    return replace(message, content=run.format(template)) if isinstance(template, str) else message


def _arguments(text: str) -> Any:
    """The arguments that a model wrote; its text, if that is not a JSON object."""
    try:
        read = values.decode(text.encode())
    except (NotStorable, UnicodeEncodeError):
        return text
    return read if isinstance(read, dict) else text


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidInput(f"an LLMAgent needs a name, not {name!r}")


_KINDS: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "model": (
        "a model, which has a method answer(prompt)",
        lambda x: callable(getattr(x, "answer", None)) and not isinstance(x, type),
    ),
    "instructions": ("text", lambda x: isinstance(x, str)),
    "message": ("text", lambda x: isinstance(x, str)),
    "budget": ("a Budget", lambda x: x is None or isinstance(x, Budget)),
    "retry": ("a Retry", lambda x: isinstance(x, Retry)),
    "counter": (
        "a TokenCounter, which has a method count(text)",
        lambda x: callable(getattr(x, "count", None)) and not isinstance(x, str | list | tuple),
    ),
    "on_text": (
        "a sync function that takes text",
        lambda x: x is None or (callable(x) and not inspect.iscoroutinefunction(x)),
    ),
}


def _check_kinds(what: str, **options: object) -> None:
    for option, value in options.items():
        said, is_right = _KINDS[option]
        if not is_right(value):
            raise InvalidInput(f"{what}: {option} must be {said}, not {value!r}")


def _check_counts(what: str, **options: object) -> None:
    for option, value in options.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidInput(
                f"{what}: {option} must be a whole number of 1 or more, not {value!r}"
            )


def _check_price(what: str, model: object, budget: Budget | None) -> None:
    """A limit in dollars that nothing counts towards would be no limit."""
    unpriced = hasattr(model, "price") and model.price is None
    if budget is not None and budget.max_cost_usd is not None and unpriced:
        raise InvalidInput(
            f"{what}: max_cost_usd needs a price; set it with price=Price(input, output) in "
            "US dollars per million tokens"
        )
