"""What a file declares, read from the tables of Lua and checked, with the line of each declaration in every error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, field

from holdfast import Budget, InvalidInput, Rate, Retry
from holdfast.lua.convert import from_lua, kind_of, text
from holdfast.lua.files import Project
from holdfast.lua.mocks import mock_of
from holdfast.lua.schema import Fields, read_fields
from holdfast.lua.vm import Vm

if TYPE_CHECKING:
    from holdfast.agents.models.base import Model
    from holdfast.lua.agents import AgentDecl

MAIN: Final = "main"
DONE: Final = "done"
MAX_TURNS: Final = 30
TOOLSETS_MAX: Final = 8
"""So deep may toolsets contain toolsets."""
_TOOL: Final = (
    "risk",
    "timeout",
    "key_ttl",
    "on_doubt",
    "redact",
    "version",
    "max_running",
    "retry",
    "rate",
)
_PROCEDURE: Final = (
    "deadline",
    "budget",
    "approve",
    "approval_ttl",
    "on_failure",
    "version",
    "continues",
    "max_running",
    "checkpoint",
    "redact",
)
T = TypeVar("T")


class ToolDecl(Struct, frozen=True):
    """A tool that a file declares."""

    name: str
    fields: Fields
    description: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""
    """The Python tool that it stands for."""
    has_check: bool = False
    has_undo: bool = False
    is_open: bool = False
    """Whether it takes any arguments, because it declares none."""
    line: int = 0


class ProcedureDecl(Struct, frozen=True):
    """A procedure that a file declares."""

    name: str
    fields: Fields
    """Its input."""
    output: Fields
    state: Fields
    description: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0
    is_open: bool = False
    """Whether it takes any input, because it declares none."""


class Step(Struct, frozen=True):
    """A sentence of the file's own, `Step("text {arg}", function)`: its text and number."""

    text: str
    number: int


class SpecText(Struct, frozen=True):
    """A text in Gherkin, its file, and the line where it begins."""

    text: str
    file: str
    line: int


class Declarations(Struct):
    """Everything that a file declares."""

    stages: tuple[str, ...] = ()
    tools: dict[str, ToolDecl] = field(default_factory=dict)
    agents: dict[str, AgentDecl] = field(default_factory=dict)
    procedures: dict[str, ProcedureDecl] = field(default_factory=dict)
    mocks: dict[str, Any] = field(default_factory=dict)
    specs: list[SpecText] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def read_declared(
    vm: Vm, *, path: Path, source: bytes, project: Project, models: Mapping[str, Model]
) -> Declarations:
    """What the loaded file declares."""
    return _Reader(vm, path, source, project, models).all()


class _Reader:
    def __init__(
        self, vm: Vm, path: Path, source: bytes, project: Project, models: Mapping[str, Model]
    ) -> None:
        self._vm, self._path, self._source = vm, path, source
        self._project, self._models = project, models
        self._found = Declarations()

    def all(self) -> Declarations:
        readers: dict[str, Callable[[str | None, Any, int], None]] = {
            "Tool": self._tool,
            "Agent": self._agent,
            "Procedure": self._procedure,
            "Stages": self._stages,
            "Mocks": self._mocks,
            "Specification": self._spec,
            "Step": self._step,
        }
        for entry in self._vm.language[b"declarations"].values():
            kind, line = text(entry[b"kind"]), entry[b"line"]
            name = None if entry[b"name"] is None else text(entry[b"name"])
            with at(text(entry[b"file"]), line):
                readers[kind](name, entry[b"spec"], line)
        return self._found

    def _named(self, kind: str, name: str | None, declared: Mapping[str, Any]) -> str:
        if name is None:
            raise InvalidInput(f"this {kind} has no name; assign it to a global, or write name=")
        if name in declared:
            raise InvalidInput(f"there are two declarations of {kind} {name}")
        return name

    # ── tools ────────────────────────────────────────────────────────────────────────────

    def _tool(self, name: str | None, spec: Any, line: int) -> None:
        name = self._named("Tool", name, self._found.tools)
        where = f"Tool {name}"
        host = _text_option(spec, "use", where)
        _check_options(
            spec, where, ("name", "description", "input", "use", "check", "undo", *_TOOL)
        )
        if not host and kind_of(spec[1]) != "function":
            raise InvalidInput(f"{where} needs a function: Tool {{ …, function(args) … end }}")
        for option in ("check", "undo"):
            if spec[option.encode()] is not None and kind_of(spec[option.encode()]) != "function":
                raise InvalidInput(f"{where}: {option} must be a function")
        self._found.tools[name] = ToolDecl(
            name,
            read_fields(spec[b"input"], f"{where}: input"),
            _text_option(spec, "description", where),
            _options(spec, _TOOL, where),
            host.removeprefix("host."),
            spec[b"check"] is not None,
            spec[b"undo"] is not None,
            spec[b"input"] is None,
            line,
        )

    # ── agents ───────────────────────────────────────────────────────────────────────────

    def _agent(self, name: str | None, spec: Any, _line: int) -> None:
        from holdfast.lua import agents  # here, as most files declare none

        name = self._named("Agent", name, self._found.agents)
        where = f"Agent {name}"
        _check_options(spec, where, agents.OPTIONS)
        plain = {
            option: from_lua(spec[option.encode()], f"{where}: {option}")
            for option in ("provider", "model", "temperature", "max_tokens", "top_p", "tool_choice")
            if spec[option.encode()] is not None
        }
        model = self._models.get(name)
        provider, model_name = "", ""
        settings: dict[str, Any] = {}
        if model is None:
            provider, model_name, settings = agents.provider_and_model(
                plain.pop("provider", None), plain.pop("model", None), where
            )
        if plain.get("tool_choice") == "auto":
            del plain["tool_choice"]
        prepare = spec[b"prepare"]
        if prepare is not None and kind_of(prepare) != "function":
            raise InvalidInput(f"{where}: prepare must be a function")
        self._found.agents[name] = agents.AgentDecl(
            name,
            model,
            provider,
            model_name,
            {**settings, **{k: v for k, v in plain.items() if k not in ("provider", "model")}},
            _text_option(spec, "system_prompt", where),
            _text_option(spec, "initial_message", where),
            tuple(self._tool_names(spec[b"tools"], where)),
            read_fields(spec[b"output"], f"{where}: output"),
            _max_turns(spec[b"max_turns"], where),
        )

    def _tool_names(self, value: Any, where: str, depth: int = 0) -> Iterator[str]:
        if value is None:
            return
        if kind_of(value) != "table":
            raise InvalidInput(f"{where}: tools must be a list of tools")
        if depth == TOOLSETS_MAX or not all(isinstance(key, int) for key in value):
            raise InvalidInput(f"{where}: tools must be a list of tools")
        for _, item in sorted(value.items()):
            declared = None if isinstance(item, bytes) else self._vm.language[b"declared_by"](item)
            if isinstance(item, bytes):
                yield text(item)
            elif declared is not None and declared[b"name"] is not None:
                yield text(declared[b"name"])
            elif kind_of(item) == "table":
                yield from self._tool_names(item, where, depth + 1)
            else:
                raise InvalidInput(f"{where}: tools must be a list of tools")

    # ── procedures ───────────────────────────────────────────────────────────────────────

    def _procedure(self, name: str | None, spec: Any, line: int) -> None:
        name = name or MAIN
        if name in self._found.procedures:
            raise InvalidInput(f"there are two procedures named {name}")
        where = "Procedure" if name == MAIN else f"Procedure {name}"
        _check_options(
            spec, where, ("name", "description", "input", "output", "state", *_PROCEDURE)
        )
        if kind_of(spec[1]) != "function":
            raise InvalidInput(
                f"{where} needs a function: Procedure {{ …, function(input) … end }}"
            )
        taken, returned, kept = (
            read_fields(spec[key.encode()], f"{where}: {key}")
            for key in ("input", "output", "state")
        )
        options = _options(spec, _PROCEDURE, where)
        self._found.procedures[name] = ProcedureDecl(
            name,
            taken,
            returned,
            kept,
            _text_option(spec, "description", where),
            options,
            line,
            spec[b"input"] is None,
        )

    def _stages(self, _name: str | None, spec: Any, _line: int) -> None:
        given = from_lua(spec, "Stages")
        if self._found.stages:
            raise InvalidInput("Stages is declared twice")
        if not isinstance(given, list) or not all(isinstance(x, str) and x for x in given):
            raise InvalidInput('Stages takes a list of names: Stages({"drafting", "sending"})')
        if len(set(given)) != len(given):
            raise InvalidInput("Stages has a name twice")
        self._found.stages = tuple(given)

    # ── tests ────────────────────────────────────────────────────────────────────────────

    def _mocks(self, _name: str | None, spec: Any, _line: int) -> None:
        for key, given in spec.items():
            name = text(key)
            self._found.mocks[name] = mock_of(name, from_lua(given, f"the mock of {name}"))

    def _spec(self, _name: str | None, spec: Any, line: int) -> None:
        plain = from_lua(spec, "Specification")
        plain = plain if isinstance(plain, dict) else {}
        unknown = [key for key in plain if key not in ("from", "text")]
        if unknown:
            raise InvalidInput(f"Specification has no option {unknown[0]}; it takes from, text")
        if isinstance(plain.get("from"), str):
            file = plain["from"]
            self._found.specs.append(SpecText(self._project.read(file), file, 1))
        elif isinstance(plain.get("text"), str):
            self._found.specs.append(
                SpecText(plain["text"], str(self._path), self._line_of(plain["text"], line))
            )
        else:
            raise InvalidInput("Specification takes Gherkin text, or {from = FILE}")

    def _line_of(self, text: str, line: int) -> int:
        """The line of the file where a text begins."""
        place = self._source.decode("utf-8", "replace").find(text)
        return (
            line if place < 0 else self._source.decode("utf-8", "replace").count("\n", 0, place) + 1
        )

    def _step(self, _name: str | None, spec: Any, _line: int) -> None:
        said = text(spec[b"text"])
        if not re.fullmatch(r"[^{}]*(\{\w+(:\w+)?\}[^{}]*)*", said):
            raise InvalidInput(f"Step: {said!r} has a brace that is not {{name}}")
        self._found.steps.append(Step(said, len(self._found.steps)))


@contextmanager
def at(file: str, line: int) -> Iterator[None]:
    """Errors inside say where the declaration is."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{file}:{line}: {error}") from None


def _check_options(spec: Any, where: str, names: tuple[str, ...]) -> None:
    for key in spec:
        if isinstance(key, bytes) and text(key) not in names:
            raise InvalidInput(f"{where} has no option {text(key)}; it takes {', '.join(names)}")
        if not isinstance(key, bytes) and (isinstance(key, bool) or key != 1):
            raise InvalidInput(f"{where} has more than one value without a name")


def _max_turns(value: Any, where: str) -> int:
    if value is None:
        return MAX_TURNS
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"{where}: max_turns must be a whole number of at least 1")
    return value


def _text_option(spec: Any, option: str, where: str) -> str:
    given = spec[option.encode()]
    if given is None:
        return ""
    if not isinstance(given, bytes):
        raise InvalidInput(f"{where}: {option} must be a string")
    return text(given)


def _options(spec: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    """The options that Holdfast's own decorators take, as they take them."""
    found = {}
    for option in names:
        given = spec[option.encode()]
        if given is None:
            continue
        value = from_lua(given, f"{where}: {option}")
        made = {"retry": Retry, "rate": Rate, "budget": Budget}.get(option)
        if made is not None:
            value = _build(made, value, f"{where}: {option}")
        found[option] = value
    return found


def _build(factory: Callable[..., T], value: Any, where: str) -> T:
    if not isinstance(value, dict | list):
        raise InvalidInput(f"{where} takes a table of options, not {value!r}")
    try:
        return factory(*value) if isinstance(value, list) else factory(**value)
    except TypeError as error:
        raise InvalidInput(f"{where}: {error}") from None
