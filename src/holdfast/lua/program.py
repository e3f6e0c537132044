"""A `.tac` file as agents and tools of Holdfast.

Loading a file evaluates its declarations once. A procedure becomes an agent (the unnamed one is named after the file,
others `file.name`), a tool becomes a tool, and both run on the ordinary runtime. Each execution of a procedure and each
thread that executes tool bodies loads the file again, into a Lua state of its own.
"""

from __future__ import annotations

import functools
import re
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import InvalidInput, ParamSchema, agent, step, tool
from holdfast.lua.convert import from_lua, to_lua
from holdfast.lua.declared import MAIN, Declarations, ProcedureDecl, ToolDecl, at, read_declared
from holdfast.lua.files import Project, code_of
from holdfast.lua.ops import BodyOps, Ops, SpecOps
from holdfast.lua.run_ops import RunOps
from holdfast.lua.schema import KEY, fitted, param_schema
from holdfast.lua.vm import LuaError, LuaLimits, Vm
from holdfast.runtime.declare.specs import spec_of

if TYPE_CHECKING:
    from holdfast import Run
    from holdfast.agents.models.base import Model
    from holdfast.lua.agents import AgentDecl


class Program:
    """A loaded file."""

    def __init__(
        self,
        path: Path,
        *,
        tools: Iterable[Callable[..., Any]] = (),
        models: Mapping[str, Model] | None = None,
        limits: LuaLimits | None = None,
    ) -> None:
        self.path, self.project = path, Project(path.absolute().parent)
        self.limits = limits or LuaLimits()
        self.models = dict(models or {})
        self._host = {_tool_name(fn): fn for fn in tools}
        try:
            self.source = code_of(path.read_bytes())
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
        self._bodies = threading.local()
        declared = self._declared()
        self.declared = declared
        self.stages = declared.stages
        self._tools = {name: self._tool(decl) for name, decl in declared.tools.items()}
        self.procedures = {name: self._agent(decl) for name, decl in declared.procedures.items()}

    @property
    def name(self) -> str:
        """The name of the main procedure's agent: the file's, without its suffix."""
        return self.path.stem

    @property
    def tools(self) -> Mapping[str, Callable[..., Any]]:
        """All tools by name."""
        return self._tools

    @property
    def main(self) -> Callable[..., Any]:
        """The agent of the main procedure."""
        if MAIN not in self.procedures:
            raise InvalidInput(
                f"{self.path} has no procedure; add Procedure {{ function(input) … end }}"
            )
        return self.procedures[MAIN]

    # ── loading ──────────────────────────────────────────────────────────────────────────

    def _vm(self, ops: Ops) -> Vm:
        vm = Vm(ops.table(), self.limits)
        ops.vm = vm
        vm.load(self.source, self.path.name)
        return vm

    def _declared(self) -> Declarations:
        ops = Ops(self, "while the file is loaded; use it inside a procedure")
        try:
            return read_declared(
                self._vm(ops),
                path=self.path,
                source=self.source,
                project=self.project,
                models=self.models,
            )
        except LuaError as error:
            raise InvalidInput(f"{self.path} cannot be loaded: {error}") from error

    def custom_step(self, number: int, state: Mapping[str, Any], stage: str) -> tuple[Vm, Any]:
        """A function of `Step(…)`, in a Lua state of its own, where it can read the run's state and stage."""
        vm = self._vm(SpecOps(self, state, stage))
        steps = [d for d in vm.language[b"declarations"].values() if d[b"kind"] == b"Step"]
        return vm, steps[number][b"spec"][b"fn"]

    # ── procedures ───────────────────────────────────────────────────────────────────────

    def _agent(self, decl: ProcedureDecl) -> Callable[..., Any]:
        def run_procedure(run: Run, /, **arguments: Any) -> Any:
            return self._execute(run, decl, arguments)

        run_procedure.__doc__ = decl.description or None
        name = self.name if decl.name == MAIN else f"{self.name}.{decl.name}"
        with at(self.path.name, decl.line):
            declared: Callable[..., Any] = agent(
                name=name, stages=self.stages, schema=_schema(decl), **decl.options
            )(run_procedure)
        return declared

    def _execute(self, run: Run, decl: ProcedureDecl, arguments: dict[str, Any]) -> Any:
        ops = RunOps(self, run, decl)
        ops.set_defaults()
        vm = self._vm(ops)
        entered = to_lua(vm.lua, arguments)
        vm.language[b"set_input"](entered)
        where = f"{self.path.name}:{decl.line}: the result"
        result = from_lua(vm.call(vm.declared(b"Procedure", decl.name, 1), entered), where)
        ops.write_back()
        if not decl.output:
            return result
        return fitted(decl.output, result, where, others=True)

    def call_procedure(self, name: str, args: Any) -> Any:
        """A child run of another procedure of the file."""
        if name not in self.procedures:
            known = ", ".join(self.procedures)
            raise InvalidInput(f"unknown procedure {name!r}; the file has {known}")
        decl = self.declared.procedures[name]
        return self.procedures[name](**fitted(decl.fields, args, name, others=decl.is_open))

    # ── tools ────────────────────────────────────────────────────────────────────────────

    def tool(self, name: str) -> Callable[..., Any]:
        if name not in self._tools:
            known = ", ".join(self._tools) or "none"
            raise InvalidInput(f"unknown tool {name!r}; the file has {known}")
        return self._tools[name]

    def agent(self, name: str) -> AgentDecl:
        return self.declared.agents[name]

    def call_tool(self, name: str, args: Any) -> Any:
        """Call a tool of the file with a table of arguments."""
        fn = self.tool(name)
        decl = self.declared.tools[name]
        if decl.host:
            return self._called(fn, name, fitted(decl.fields, args, name, others=True))
        return fn(**fitted(decl.fields, args, name, others=decl.is_open))

    def call_host(self, name: str, args: Any) -> Any:
        """Call a tool that was given from Python."""
        return self._called(self.host(name), name, fitted({}, args, name, others=True))

    def host(self, name: str) -> Callable[..., Any]:
        if name not in self._host:
            known = ", ".join(self._host) or "none"
            raise InvalidInput(
                f"unknown Python tool {name!r} (known: {known}); pass it with procedure(FILE, tools=[…])"
            )
        return self._host[name]

    @staticmethod
    def _called(fn: Callable[..., Any], name: str, values: dict[str, Any]) -> Any:
        """Call a Python tool. Arguments that it does not take are an error of the file, not of the tool."""
        spec = spec_of(fn)
        assert spec is not None
        try:
            spec.params.bind((), values)
        except TypeError as error:
            raise InvalidInput(f"{name}: {error}") from None
        return fn(**values)

    def _tool(self, decl: ToolDecl) -> Callable[..., Any]:
        if decl.host:
            with at(self.path.name, decl.line):
                return self.host(decl.host)

        def unkeyed(**arguments: Any) -> Any:
            return self._body(decl.name, 1, arguments)

        def keyed(idempotency_key: str = "", **arguments: Any) -> Any:
            return self._body(decl.name, 1, {**arguments, KEY: idempotency_key or None})

        body = keyed if KEY in decl.fields else unkeyed
        body.__doc__, body.__name__ = decl.description or None, decl.name
        options = dict(decl.options)
        if decl.has_check:
            options["check"] = lambda key: self._body(decl.name, b"check", key)
        if decl.has_undo:
            options["undo"] = lambda result: self._body(decl.name, b"undo", result)
        with at(self.path.name, decl.line):
            return tool(name=decl.name, schema=_schema(decl), **options)(body)

    def _body(self, name: str, which: Any, arguments: Any) -> Any:
        """Execute a tool's body in a Lua state that belongs to this thread."""
        vm: Vm | None = getattr(self._bodies, "vm", None)
        if vm is None or vm.fatal is not None:
            vm = self._bodies.vm = self._vm(BodyOps(self))
        body = vm.declared(b"Tool", name, which)
        return from_lua(vm.call(body, to_lua(vm.lua, arguments)), f"the result of {name}")

    @functools.cached_property
    def file_steps(self) -> Mapping[str, Callable[..., Any]]:
        """Reading and writing files, recorded. Writing is safe to repeat: it writes the same content."""
        project = self.project
        return {
            "read": step(name="File.read")(project.read),
            "write": step(name="File.write")(project.write),
            "exists": step(name="File.exists")(project.exists),
            "size": step(name="File.size")(project.size),
        }

    # ── for the command line ─────────────────────────────────────────────────────────────

    def module(self) -> types.ModuleType:
        """The file as a module: its agents and tools by name, and what `holdfast test` reads."""
        made = types.ModuleType(self.name)
        made.__file__ = str(self.path)
        names = vars(made)
        names.update(self._tools)
        names.update({a.name: a.llm([], {}) for a in self.declared.agents.values()})
        if re.search(rb"\b(File|require)\b", self.source):  # declaring steps takes time
            names.update({f"File.{verb}": fn for verb, fn in self.file_steps.items()})
        names["MOCKS"] = dict(self.declared.mocks)
        names["__lua__"] = self
        return made


def _schema(decl: ProcedureDecl | ToolDecl) -> ParamSchema | None:
    """What it takes; None without a declared input: whatever it is given."""
    return None if decl.is_open else param_schema(decl.fields)


def _tool_name(fn: Callable[..., Any]) -> str:
    spec = spec_of(fn)
    if spec is None:
        raise InvalidInput(
            f"{getattr(fn, '__name__', fn)!r} is not declared; decorate it with @tool"
        )
    return spec.name
