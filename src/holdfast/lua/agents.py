"""`Agent { … }`: an `LLMAgent` that takes its turns inside the procedure's run.

Each call continues the agent's own dialogue, so its tool calls and answers are in the log of the procedure. The step
that asks the model has the agent's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct, field

from holdfast import InvalidInput
from holdfast.core.parts import Message, Role
from holdfast.lua.dialogue import AgentMessages, Dialogue
from holdfast.lua.schema import Fields, fitted
from holdfast.lua.templates import render

if TYPE_CHECKING:
    from holdfast import Run
    from holdfast.agents.llm import LLMAgent
    from holdfast.agents.models.base import Model

OPTIONS: Final = (
    "name",
    "description",
    "provider",
    "model",
    "system_prompt",
    "initial_message",
    "tools",
    "tool_choice",
    "prepare",
    "temperature",
    "max_tokens",
    "top_p",
    "output",
    "max_turns",
)
CALL_OPTIONS: Final = ("message", "tools", "temperature", "max_tokens", "top_p")
_SETTINGS: Final = ("temperature", "max_tokens", "top_p", "tool_choice")
_MODEL: Final = ("name", "model", "provider", *_SETTINGS)
_PROVIDERS: Final = ("openai", "anthropic")
CONTINUE: Final = "Continue."


class AgentReply(Struct, frozen=True):
    """What came of one call: the result that Lua gets, and the tool calls that the model made."""

    result: dict[str, Any]
    calls: list[dict[str, Any]]


class AgentDecl(Struct, frozen=True):
    """An agent that a file declares."""

    name: str
    model: Model | None
    """One that was given from Python, instead of what the file names."""
    provider: str
    model_name: str
    settings: Mapping[str, Any]
    system_prompt: str = ""
    initial_message: str = ""
    tools: tuple[str, ...] = ()
    output: Fields = field(default_factory=dict)
    max_turns: int = 30

    def llm(self, tools: Iterable[Callable[..., Any]], settings: Mapping[str, Any]) -> LLMAgent:
        """The agent that asks the model."""
        from holdfast.agents.llm import LLMAgent  # here, because most files declare no agent

        return LLMAgent(
            self.name,
            model=self._model_for(settings),
            tools=tools,
            max_turns=self.max_turns,
            step_name=self.name,
        )

    def _model_for(self, settings: Mapping[str, Any]) -> Model:
        if self.model is not None:
            return self.model
        options = {**self.settings, **settings}
        most = options.pop("max_tokens", None)
        from holdfast.agents.models import AnthropicModel, OpenAIModel

        made = OpenAIModel if self.provider == "openai" else AnthropicModel
        return made(self.model_name, max_output_tokens=most, options=options)

    def turn(
        self,
        find_tool: Callable[[str], Callable[..., Any]],
        run: Run,
        dialogue: Dialogue,
        options: Mapping[str, Any],
        values: Mapping[str, Any],
    ) -> AgentReply:
        """Take a turn: what the file gives for this call wins over what it declared."""
        unknown = [option for option in options if option not in CALL_OPTIONS]
        if unknown:
            raise InvalidInput(
                f"{self.name} was called with {unknown[0]}; a call takes {', '.join(CALL_OPTIONS)}"
            )
        names = options.get("tools", self.tools)
        tools = [find_tool(name) for name in names]
        settings = {name: options[name] for name in _SETTINGS if name in options}
        messages = AgentMessages(dialogue, self.name)
        instructions = render(run, self.system_prompt, values)
        is_new = instructions != messages.instructions()
        message = render(run, self._message(options, messages), values)
        before = _tokens(run)
        view = cast("Run", _TurnRun(run, messages))
        text = self.llm(tools, settings).turn(
            view, message, instructions=instructions if is_new else ""
        )
        usage = {"total_tokens": _tokens(run) - before}
        result = {"response": text, "message": text, "output": text, "usage": usage}
        if self.output:
            result["data"] = fitted(
                self.output, _json(self.name, text), f"{self.name}: its answer", others=True
            )
        return AgentReply(result, _calls(messages.added))

    def _message(self, options: Mapping[str, Any], messages: AgentMessages) -> str:
        if "message" in options:
            return str(options["message"])
        has_begun = any(m.role == Role.ASSISTANT for m in messages.all())
        return CONTINUE if has_begun else self.initial_message or CONTINUE


class _TurnRun:
    """A run as one agent's turn sees it: with the agent's messages, and without ends of iterations."""

    def __init__(self, run: Run, messages: AgentMessages) -> None:
        self._run, self.messages = run, messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def checkpoint(self) -> None:
        """A turn is not an iteration of the procedure."""


def _tokens(run: Run) -> int:
    return int(run.budget.used.get("max_llm_tokens", 0))


def _json(agent: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(
            f"{agent} declares output=, but did not answer with JSON: {error}"
        ) from None


def _calls(messages: list[Message]) -> list[dict[str, Any]]:
    """The tool calls among messages, with their results."""
    results = {m.tool_call_id: m.content for m in messages if m.role == Role.TOOL}
    return [
        {"name": call.name, "args": call.arguments, "result": _plain(results.get(call.id))}
        for message in messages
        for call in message.tool_calls
    ]


def _plain(observed: Any) -> Any:
    try:
        return json.loads(observed) if isinstance(observed, str) else observed
    except ValueError:
        return observed


def provider_and_model(provider: Any, model: Any, where: str) -> tuple[str, str, dict[str, Any]]:
    """Who answers: `provider=` and `model=` as a file writes them, and the settings inside `model`."""
    settings: dict[str, Any] = {}
    if isinstance(model, dict):
        unknown = [key for key in model if key not in _MODEL]
        if unknown:
            raise InvalidInput(
                f"{where}: model has no option {unknown[0]}; it takes {', '.join(_MODEL)}"
            )
        settings = {k: v for k, v in model.items() if k in _SETTINGS}
        provider = provider or model.get("provider")
        model = model.get("name") or model.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput(f'{where} needs model=, such as "gpt-5"')
    for separator in ("/", ":"):
        before, found, after = model.partition(separator)
        if found and before in _PROVIDERS:
            provider, model = provider or before, after
    provider = provider or "openai"
    if provider not in _PROVIDERS:
        raise InvalidInput(
            f"{where}: provider {provider!r} is not supported; use one of {', '.join(_PROVIDERS)}, or pass a model "
            "from Python: procedure(FILE, models={…})"
        )
    return provider, model, settings
