"""A tool's description for a model: a JSON Schema from the function's signature and docstring.

What the runtime fills in (`idempotency_key`, `tx`, an agent's `run`) is not in it, and a model that
passes it anyway is refused like any other unknown argument.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.core import values
from holdfast.core.values import Codec
from holdfast.errors import InvalidInput, NotStorable
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.json_schema import description_of, json_schema_of
from holdfast.runtime.declare.specs import spec_of

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What both OpenAI and Anthropic accept as a tool's name."""


class ToolSchema(Struct, frozen=True):
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]


class WrongArguments(ValueError):
    """What a model gave is not what the tool takes. The message is for the model."""


class ToolUse(Struct, frozen=True):
    """A tool that a model may call: its declaration, its schema, and how to read its arguments."""

    fn: Callable[..., Any]
    spec: CallSpec | AgentSpec
    schema: ToolSchema
    codecs: Mapping[str, Codec]
    required: frozenset[str]

    @property
    def name(self) -> str:
        return self.schema.name

    def read(self, text: str) -> dict[str, Any]:
        """A model's arguments as the types that the tool declares; WrongArguments says what is wrong."""
        try:
            given = values.decode(text.encode()) if text.strip() else {}
        except (NotStorable, UnicodeEncodeError) as error:
            raise WrongArguments(f"the arguments are not valid JSON: {error}") from None
        if not isinstance(given, dict):
            raise WrongArguments(f"the arguments must be a JSON object, not {_shown(given)}")
        wrong = [f"{name!r} is not an argument" for name in given if name not in self.codecs]
        wrong += [
            f"{name!r} is missing" for name in self.codecs if name in self.required - given.keys()
        ]
        read: dict[str, Any] = {}
        for name in given.keys() & self.codecs.keys():
            try:
                read[name] = _typed(self.codecs[name], given[name])
            except NotStorable as error:
                wrong.append(
                    f"{name!r} is wrong: {error.reason.partition(': ')[2] or error.reason}"
                )
        if wrong:
            takes = ", ".join(self.codecs) or "no arguments"
            raise WrongArguments(f"{'; '.join(sorted(wrong))}. {self.name} takes {takes}")
        return read


def _typed(codec: Codec, value: Any) -> Any:
    if codec.typed or codec.declared is object:
        return codec.decode(values.encode(value))
    try:  # a codec reads plain lists and dicts without a look at their type
        return msgspec.convert(value, codec.declared)
    except msgspec.ValidationError as error:
        raise NotStorable(str(error)) from None


def _shown(value: Any) -> str:
    text = values.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"


def tool_uses(tools: Iterable[Callable[..., Any]], owner: str) -> dict[str, ToolUse]:
    """The tools by name, or InvalidInput that says which one cannot be given to a model, and why."""
    given: object = tools
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidInput(f"{owner}: tools must be a list of functions, not {tools!r}")
    found: dict[str, ToolUse] = {}
    for fn in tools:
        use = tool_use(fn, owner)
        if use.name in found:
            raise InvalidInput(f"{owner} has two tools named {use.name!r}; rename one with name=")
        found[use.name] = use
    return found


def tool_use(fn: Callable[..., Any], owner: str = "this agent") -> ToolUse:
    """One function, declared with @tool, @step or @agent, for a model to call."""
    spec = spec_of(fn)
    if spec is None:
        name = getattr(fn, "__name__", repr(fn))
        raise InvalidInput(
            f"{owner} got {name}, which is not declared; decorate it with @tool, or with @step "
            "if it is safe to repeat, so that its calls are recorded"
        )
    if isinstance(spec, CallSpec) and spec.is_method and not inspect.ismethod(fn):
        raise InvalidInput(
            f"{owner}: {spec.name} is a method; pass it with its instance, for example shop.{spec.name}"
        )
    if not _NAME.fullmatch(spec.name):
        raise InvalidInput(
            f"{owner}: models accept tool names of up to 64 letters, digits, _ and -; rename "
            f"{spec.name!r} with name="
        )
    shown = spec.params.schema.parameters
    for p in shown:
        if p.kind != "named":
            raise InvalidInput(f"{owner}: a model passes arguments by name; {spec.name} takes {p}")
    parameters = json_schema_of(spec, f"{owner}: tool {spec.name}")
    return ToolUse(
        fn=fn,
        spec=spec,
        schema=ToolSchema(spec.name, description_of(spec), parameters),
        codecs={p.name: Codec(p.type) for p in shown},
        required=frozenset(p.name for p in shown if p.is_required),
    )
