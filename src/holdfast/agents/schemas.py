"""What a model is told of a tool: a JSON Schema made from the function's signature and docstring.

What the runtime fills in (`idempotency_key`, `tx`, an agent's `run`) is not told, and a model that
gives it all the same is refused like any other unknown argument.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from holdfast.core import values
from holdfast.core.values import Codec
from holdfast.errors import InvalidInput, NotStorable
from holdfast.runtime.annotations import description as description_of
from holdfast.runtime.declare import AgentSpec, CallSpec, spec_of

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What both OpenAI and Anthropic accept as a tool's name."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]


class WrongArguments(ValueError):
    """What a model gave is not what the tool takes. The message is for the model."""


@dataclass(frozen=True, slots=True)
class ToolUse:
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
            raise InvalidInput(f"{owner} has two tools named {use.name!r}; give one another name=")
        found[use.name] = use
    return found


def tool_use(fn: Callable[..., Any], owner: str = "this agent") -> ToolUse:
    """One function, declared with @tool, @step or @agent, for a model to call."""
    spec = spec_of(fn)
    if spec is None:
        name = getattr(fn, "__name__", repr(fn))
        raise InvalidInput(
            f"{owner} was given {name}, which is not declared; decorate it with @tool, or with @step "
            "if it is safe to repeat, so that its calls are kept in the log"
        )
    if isinstance(spec, CallSpec) and spec.is_method and not inspect.ismethod(fn):
        raise InvalidInput(
            f"{owner}: {spec.name} is a method; give it with its instance, as shop.{spec.name}"
        )
    if not _NAME.fullmatch(spec.name):
        raise InvalidInput(
            f"{owner}: models accept tool names of up to 64 letters, digits, _ and -; rename "
            f"{spec.name!r} with name="
        )
    shown = {
        name: p
        for name, p in spec.params.signature.parameters.items()
        if name not in spec.params.hidden
    }
    for p in shown.values():
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise InvalidInput(f"{owner}: a model gives arguments by name; {spec.name} takes {p}")
    description, said = docstring_parts(inspect.getdoc(spec.fn) or "")
    types = {name: spec.params.types.get(name, Any) for name in shown}
    schemas, defs = _schemas(types, f"{owner}: tool {spec.name}")
    properties = {
        name: _with_default(
            _described(schemas[name], description_of(types[name]) or said.get(name, "")), p.default
        )
        for name, p in shown.items()
    }
    required = [name for name, p in shown.items() if p.default is p.empty]
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    parameters |= {"required": required} if required else {}
    parameters |= {"additionalProperties": False}
    parameters |= {"$defs": defs} if defs else {}
    return ToolUse(
        fn=fn,
        spec=spec,
        schema=ToolSchema(spec.name, description, parameters),
        codecs={name: Codec(declared) for name, declared in types.items()},
        required=frozenset(required),
    )


def _schemas(types: Mapping[str, Any], what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each type, and the definitions that they share."""
    plain = {name: t for name, t in types.items() if not _is_pydantics(t)}
    try:
        made, defs = msgspec.json.schema_components(
            plain.values(), ref_template="#/$defs/{name}", schema_hook=_foreign_schema
        )
    except (TypeError, NotImplementedError, NameError) as error:  # msgspec's ways to say no
        raise InvalidInput(
            f"{what} has a parameter that no JSON Schema describes: {error}"
        ) from None
    schemas: dict[str, Any] = dict(zip(plain, made, strict=True))
    for name in types.keys() - plain.keys():
        schemas[name] = _pydantic_schema(types[name])
        defs |= schemas[name].pop("$defs", {})
    return schemas, defs


def _foreign_schema(declared: type) -> dict[str, Any]:
    """For msgspec: the schema of a type that it does not know."""
    if values.is_path(declared):
        return {"type": "string", "format": "path"}
    raise NotImplementedError  # what msgspec asks its hooks to raise


def _is_pydantics(declared: Any) -> bool:
    return values.mentions_pydantic(declared) or values.has_pydantic_metadata(declared)


def _pydantic_schema(declared: Any) -> dict[str, Any]:
    import pydantic

    schema: dict[str, Any] = pydantic.TypeAdapter(declared).json_schema()
    return schema


def _described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {**schema, "description": text} if text else schema


def _with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    if default is inspect.Parameter.empty or default is None:
        return schema
    try:
        return {**schema, "default": values.lower(default, typed=True)}
    except NotStorable:  # it has one, though JSON cannot say which
        return schema


# ── docstrings ───────────────────────────────────────────────────────────────────────────────

_HEADING: Final = re.compile(
    r"(args|arguments|parameters|params|returns?|raises|yields?|examples?|notes?)(:?)", re.I
)
_ABOUT_PARAMETERS: Final = ("args", "arguments", "parameters", "params")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*(?::\s*(.*))?$")
_SPHINX: Final = re.compile(r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_FIELD: Final = re.compile(r":\w[^:]*:")


@dataclass(slots=True)
class _Section:
    """Some lines of a docstring and the heading above them; underlined in the style of NumPy."""

    heading: str = ""
    underlined: bool = False
    lines: list[str] = field(default_factory=list)


def docstring_parts(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring's own text, and what it says of each parameter (Google, NumPy or Sphinx style)."""
    first, *others = _sections(doc.splitlines())
    said: dict[str, str] = {}
    for section in others:
        if section.heading in _ABOUT_PARAMETERS:
            said |= _entries(section)
        elif found := _SPHINX.match(section.heading):
            said[found[1]] = _joined([found[2], *section.lines])
    return "\n".join(first.lines).strip(), {name: text for name, text in said.items() if text}


def _sections(lines: list[str]) -> list[_Section]:
    found = [_Section()]
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        text = line.strip()
        heading = _HEADING.fullmatch(text)
        if heading and (heading[2] or _is_rule(below)):
            found.append(_Section(heading[1].lower(), _is_rule(below)))
        elif _FIELD.match(text):
            found.append(_Section(text))
        elif not (_is_rule(line) and found[-1].underlined and not found[-1].lines):
            found[-1].lines.append(line)
    return found


def _is_rule(line: str) -> bool:
    return bool(line.strip()) and set(line.strip()) == {"-"}


def _entries(section: _Section) -> dict[str, str]:
    """`name: text` at the margin of the section, or `name : type` with the text below."""
    margin = min((_indent(line) for line in section.lines if line.strip()), default=0)
    said: dict[str, list[str]] = {}
    current: list[str] = []
    for line in section.lines:
        entry = _ENTRY.match(line.strip()) if _indent(line) == margin else None
        if entry and (section.underlined or entry[2] is not None):
            current = said[entry[1]] = [] if section.underlined else [entry[2]]
        else:
            current.append(line)
    return {name: _joined(parts) for name, parts in said.items()}


def _joined(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
