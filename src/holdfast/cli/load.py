"""Load the agents of a file or module, and convert what was typed on the command line to an agent's parameters."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct

from holdfast.cli.common import json_or_text, pair
from holdfast.core import values
from holdfast.core.params import ParamSchema, type_name
from holdfast.core.values import Codec
from holdfast.errors import InvalidInput, NotFound, NotStorable
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.specs import agent_spec, spec_of
from holdfast.store.base import RunRow

LUA: Final = ".tac"


class AgentFile(Struct, frozen=True):
    """A file, the agents in it by name, and the one that was named, if any."""

    file: str
    agents: dict[str, Callable[..., Any]]
    name: str
    own: tuple[str, ...]
    module: types.ModuleType

    def chosen(self) -> Callable[..., Any]:
        """The agent that was named, or the only one."""
        if self.name:
            return self.agents[self.name]
        names = self.own or tuple(self.agents)
        if len(names) != 1:
            raise InvalidInput(
                f"{self.file} has several agents; choose one: " + _choices(self.file, names)
            )
        return self.agents[names[0]]


def _choices(file: str, names: Iterable[str]) -> str:
    return ", ".join(f"{file}:{name}" for name in names)


def is_file(target: str) -> bool:
    """Whether an argument names a file (with or without an agent) rather than a run."""
    named = any(target.endswith(x) or f"{x}:" in target for x in (".py", LUA))
    return named or Path(target).is_file()


def load(target: str) -> AgentFile:
    """FILE or FILE:agent; package.module or package.module:agent."""
    file, colon, name = target, "", ""
    if not Path(target).is_file():
        file, colon, name = target.rpartition(":")
        if not colon:
            file = target
    if file.endswith(LUA):
        return _load_lua(file, name)
    module = _import(Path(file)) if Path(file).is_file() else _import_module(file)
    agents, own = {}, []
    for key, value in vars(module).items():
        spec = spec_of(value)
        if isinstance(spec, AgentSpec):
            agents[spec.name] = value
            if value.__module__ == module.__name__:
                own.append(spec.name)
            if key == name:
                name = spec.name
    if not agents:
        raise InvalidInput(f"{file} has no agent; decorate a function with @agent")
    if name and name not in agents:
        raise NotFound(f"{file} has no agent {name!r}; it has {_choices(file, agents)}")
    return AgentFile(file, agents, name, tuple(own), module)


def _load_lua(file: str, name: str) -> AgentFile:
    """The procedures of a `.tac` file; the main one is meant if none is named."""
    if not Path(file).is_file():
        raise NotFound(f"file {file} not found")
    from holdfast.lua import load_program

    program = load_program(file)
    agents = {agent_spec(fn).name: fn for fn in program.procedures.values()}
    main = agent_spec(program.main).name
    if name in program.procedures:
        name = agent_spec(program.procedures[name]).name
    if name and name not in agents:
        raise NotFound(f"{file} has no procedure {name!r}; it has {', '.join(program.procedures)}")
    return AgentFile(file, agents, name, (main,), program.module())


def _import_module(name: str) -> types.ModuleType:
    """A module by its dotted name, sought as Python would: in this folder first."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise NotFound(f"file {name} not found")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise InvalidInput(f"{name} cannot be loaded: {error}") from error
        raise NotFound(f"no file or module is named {name}") from error
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error


def _import(path: Path) -> types.ModuleType:
    """Run the file as Python would: its folder first on the path, under its own name if that is free."""
    from importlib.util import module_from_spec, spec_from_file_location  # here, as Lua needs none

    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem.isidentifier() else "agent_file"
    if name in sys.stdlib_module_names or name in sys.modules:
        name = f"holdfast_file_{name}"
    found = spec_from_file_location(name, path.absolute())
    if found is None or found.loader is None:
        raise InvalidInput(f"{path} is not a Python file")
    module = module_from_spec(found)
    sys.modules[name] = module  # dataclasses and type hints look their module up here
    try:
        # What a file prints while it is loaded is not what the verb has to say.
        with contextlib.redirect_stdout(sys.stderr):
            found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"{path} cannot be loaded: {type(error).__name__}: {error}{_place(error, path)}"
        ) from error
    return module


def _place(error: BaseException, path: Path) -> str:
    """The line of the user's file where loading failed."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path.absolute())]
    return f" (line {lines[-1]})" if lines else ""


# ── parameters ───────────────────────────────────────────────────────────────────────────────


def check_agent(loaded: AgentFile, row: RunRow) -> None:
    """NotFound if the file does not have the agent of this run."""
    if row.agent not in loaded.agents:
        known = ", ".join(loaded.agents)
        raise NotFound(
            f"run {row.id!r} belongs to agent {row.agent!r}, which is not in {loaded.file}; it has {known}"
        )


def parameters(
    name: str, schema: ParamSchema, pairs: Iterable[str], *, partial: bool = False
) -> dict[str, Any]:
    """`k=v` texts as the agent's parameters; a usage error that lists all that is wrong, and what is
    wanted. If `partial`, some may be missing."""
    wanted = schema.parameters
    loose = any(p.kind == "more" for p in wanted)
    named = {p.name: p for p in wanted if p.kind in ("named", "positional")}
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for key, value in map(pair, pairs):
        if key in found:
            wrong.append(f"{key} occurs twice")
        elif key not in named and not loose:
            wrong.append(f"{key} is not a parameter")
        else:
            try:
                found[key] = converted(value, named[key].type if key in named else Any)
            except NotStorable:
                wrong.append(f"{key}={value!r} is not {type_name(named[key].type)}")
    given_names = {key for key, _ in map(pair, pairs)}
    missing = [
        n for n, p in named.items() if p.is_required and n not in given_names and not partial
    ]
    wrong += [f"{name} is missing" for name in missing]
    if wrong:
        listed = "\n".join(f"  {p}" for p in named.values())
        takes = f"{name} takes:\n{listed}" if named else f"{name} takes no parameters"
        raise click.UsageError("; ".join(wrong) + f"\n{takes}\npass each as --param name=value")
    return found


def converted(text: str, declared: Any) -> Any:
    """A text as a value of the declared type: text where text is wanted, else what its JSON or the
    text itself (a date, an enum's value) reads as; NotStorable if neither does."""
    if typing.get_origin(declared) is typing.Annotated:
        # Its constraints are checked with the input.
        declared = typing.get_args(declared)[0]
    if declared is Any or declared is object:
        return json_or_text(text)
    choices = typing.get_args(declared) if _is_union(declared) else (declared,)
    if str in choices:
        return None if text == "null" and type(None) in choices else text
    if bool in choices and text.lower() in ("yes", "no"):
        return text.lower() == "yes"
    codec = Codec(declared)
    try:
        return _typed(codec, text.encode())
    except NotStorable:
        return _typed(codec, values.encode(text))


def _typed(codec: Codec, data: bytes) -> Any:
    # A plain dict or list is read without a look at its type, so that is looked at here.
    value = codec.decode(data)
    plain = typing.get_origin(codec.declared) or codec.declared
    if plain in (dict, list) and not isinstance(value, plain):
        raise NotStorable(f"{value!r} is not a {plain.__name__}")
    return value


def _is_union(declared: Any) -> bool:
    return typing.get_origin(declared) in (typing.Union, types.UnionType)
