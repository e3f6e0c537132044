"""The JSON Schema of what an agent or tool takes: for models, for interfaces, and for starting a run by name.

Made from the declared types, the docstring and the defaults; a parameter that was declared by a JSON Schema keeps it.
What the runtime fills in (`idempotency_key`, `tx`, an agent's `run`) is not part of it.

With it, agents are registered in a store, so that runs of them can be started without their code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from holdfast.core import values
from holdfast.core.params import NoDefault, Parameter
from holdfast.core.policy import microseconds
from holdfast.core.registration import Registration
from holdfast.core.values import encode_struct
from holdfast.errors import InvalidInput, NotStorable
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.store.base import RegisteredAgent, Store


def json_schema_of(
    spec: AgentSpec | CallSpec, what: str, *, lenient: bool = False
) -> dict[str, Any]:
    """The JSON Schema of its parameters. If no schema describes one of them, InvalidInput that names `what`; or,
    if `lenient`, a schema that allows anything there."""
    _, descriptions = docstring_parts(inspect.getdoc(spec.fn) or "")
    shown = [p for p in spec.params.schema.parameters if p.kind in ("named", "positional")]
    types = {p.name: p.type for p in shown if p.schema is None}
    schemas, defs = _schemas(types, what, lenient=lenient)
    properties = {
        p.name: _property(p, schemas.get(p.name), descriptions.get(p.name, ""), null=lenient)
        for p in shown
    }
    required = [p.name for p in shown if p.is_required]
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    parameters |= {"required": required} if required else {}
    parameters |= {
        "additionalProperties": any(p.kind == "more" for p in spec.params.schema.parameters)
    }
    defs |= dict(spec.params.schema.defs)
    return parameters | ({"$defs": defs} if defs else {})


def description_of(spec: AgentSpec | CallSpec) -> str:
    """The description in the function's docstring, without its parameters."""
    return docstring_parts(inspect.getdoc(spec.fn) or "")[0]


def _property(
    p: Parameter, type_schema: dict[str, Any] | None, description: str, *, null: bool
) -> dict[str, Any]:
    """The schema of one parameter. A default of None is left out, as models need not know it, unless `null`."""
    if p.schema is not None:
        return dict(p.schema)
    text = p.description or description
    schema = {**(type_schema or {}), "description": text} if text else type_schema or {}
    return schema if p.default is None and not null else _with_default(schema, p.default)


def _schemas(
    types: Mapping[str, Any], what: str, *, lenient: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each type, and the definitions that they share."""
    try:
        return _exact_schemas(types, what)
    except InvalidInput:
        if not lenient:
            raise
    if len(types) == 1:
        return {name: {} for name in types}, {}
    parts = [_schemas({name: t}, what, lenient=True) for name, t in types.items()]
    schemas = {name: schema for made, _ in parts for name, schema in made.items()}
    return schemas, {name: schema for _, defs in parts for name, schema in defs.items()}


def _exact_schemas(types: Mapping[str, Any], what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    plain = {name: t for name, t in types.items() if not _is_pydantics(t) or _is_mixed(t)}
    try:
        made, defs = msgspec.json.schema_components(
            plain.values(), ref_template="#/$defs/{name}", schema_hook=_foreign_schema
        )
    except (TypeError, NotImplementedError, NameError) as error:
        # How msgspec reports a type that it cannot describe.
        raise InvalidInput(
            f"{what} has a parameter that JSON Schema cannot describe: {error}"
        ) from None
    schemas: dict[str, Any] = dict(zip(plain, made, strict=True))
    for name, declared in types.items():
        if _is_pydantics(declared):
            schema = _pydantic_schema(declared)
            defs |= schema.pop("$defs", {})
            schemas[name] = _both(schemas[name], schema) if name in schemas else schema
    return schemas, defs


def _foreign_schema(declared: type) -> dict[str, Any]:
    """For msgspec: the schema of a type that it does not know."""
    if values.is_path(declared):
        return {"type": "string", "format": "path"}
    raise NotImplementedError  # what msgspec asks its hooks to raise


def _is_pydantics(declared: Any) -> bool:
    return values.mentions_pydantic(declared) or values.has_pydantic_metadata(declared)


def _is_mixed(declared: Any) -> bool:
    """Whether it has constraints of both kinds: neither library describes the other's."""
    return not values.mentions_pydantic(declared) and values.has_msgspec_metadata(declared)


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What satisfies both schemas."""
    if any(one[key] != other[key] for key in one.keys() & other.keys()):
        return {"allOf": [one, other]}
    return one | other


def _pydantic_schema(declared: Any) -> dict[str, Any]:
    import pydantic

    schema: dict[str, Any] = pydantic.TypeAdapter(declared).json_schema()
    return schema


def _with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    if isinstance(default, NoDefault):
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


class _Section(Struct):
    """Some lines of a docstring and the heading above them; underlined in the style of NumPy."""

    heading: str = ""
    underlined: bool = False
    lines: list[str] = field(default_factory=list)


def docstring_parts(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring's own text, and what it says about each parameter (Google, NumPy or Sphinx style)."""
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


# ── agents in a store ────────────────────────────────────────────────────────────────────────


def register(store: Store, specs: Iterable[AgentSpec]) -> None:
    """Register these agents. The last registration of a name and version counts."""
    now = store.now()
    made = [
        RegisteredAgent(spec.name, spec.version, encode_struct(registration_of(spec)), now)
        for spec in specs
    ]
    if made:
        store.agents.register(made)


def registration_of(spec: AgentSpec) -> Registration:
    """What another process needs to know about an agent to start a run of it."""
    deadline = None if spec.deadline is None else microseconds(spec.deadline, "deadline")
    return Registration(
        name=spec.name,
        version=spec.version,
        parameters=json_schema_of(spec, f"agent {spec.name}", lenient=True),
        description=description_of(spec),
        stages=spec.stages,
        deadline_us=deadline,
        budget=spec.budget.limits(),
        is_loop=spec.body is not None,
    )
