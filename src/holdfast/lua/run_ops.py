"""The operations of a procedure, on its run: state, stages, tools, agents, people, time, files.

A table read from the state is live: what the file changes in it is written back before the next operation and at the
end, so `table.insert(state.items, x)` is kept. Everything else here is one call of the public API of `Run`.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast import InvalidInput, step
from holdfast.core import values
from holdfast.lua.convert import from_lua, kind_of, number_text, text, word
from holdfast.lua.dialogue import Dialogue
from holdfast.lua.ops import CONTENT, FILE, Ops, log_text

if TYPE_CHECKING:
    from holdfast import Run
    from holdfast.lua.declared import ProcedureDecl
    from holdfast.lua.seam import LoadedFile

_WRITES: Final = ("note_progress", "json_encode", "json_decode", "module_source")
"""Operations before which the state need not be written back."""


class RunOps(Ops):
    """The operations on one run."""

    def __init__(self, program: LoadedFile, run: Run, procedure: ProcedureDecl) -> None:
        super().__init__(program, "here")
        self.run, self._procedure = run, procedure
        self._live: dict[str, tuple[Any, Any]] = {}
        self._stages: list[str] = []
        self._progress: tuple[Any, ...] = ()
        self._started: datetime.datetime | None = None
        self.dialogue = Dialogue(run)

    def table(self) -> dict[str, Callable[..., Any]]:
        return {
            name: op if name in _WRITES else self._after_write_back(op)
            for name, op in super().table().items()
        }

    def _after_write_back(self, op: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(op)
        def called(*args: Any) -> Any:
            if self._live:
                self.write_back()
            return op(*args)

        return called

    # ── state ────────────────────────────────────────────────────────────────────────────

    def set_defaults(self) -> None:
        """What `Procedure.state` declares, if it is not set."""
        for name, field in self._procedure.state.items():
            if field.default is not None and name not in self.run.state:
                self.run.state[name] = field.default

    def write_back(self) -> None:
        """Record what the file changed in tables that it read from the state."""
        for key, (table, before) in self._live.items():
            now = self._fitted(key, from_lua(table, f"state.{key}"))
            # By their stored form: to Python 1 and true are equal, and so are an empty list and a tuple.
            if (now or before) and values.canonical(now) != values.canonical(before):
                self.run.state[key] = now
                self._live[key] = (table, now)

    def _fitted(self, key: str, value: Any) -> Any:
        field = self._procedure.state.get(key)
        return value if field is None else field.fitted(value, "state.")

    def state_get(self, key: Any = None) -> Any:
        name = _name(key)
        if name in self._live:
            return self._live[name][0]
        value = self.run.state.get(name)
        made = self._lua(value)
        if isinstance(value, dict | list):
            self._live[name] = (made, value)
        return made

    def state_set(self, key: Any = None, value: Any = None) -> None:
        name = _name(key)
        self._live.pop(name, None)
        if value is None:
            if name in self.run.state:
                del self.run.state[name]
            return
        plain = self._fitted(name, from_lua(value, f"state.{name}"))
        self.run.state[name] = plain
        if isinstance(plain, dict | list):
            self._live[name] = (value, plain)

    def state_all(self) -> Any:
        return self._lua(dict(self.run.state.all()))

    def state_increment(self, key: Any = None, by: Any = None) -> Any:
        amount = 1 if by is None else from_lua(by, "State.increment")
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise InvalidInput("State.increment takes a name and a number")
        self._live.pop(_name(key), None)
        return self._lua(self.run.state.increment(_name(key), amount))

    def state_append(self, key: Any = None, value: Any = None) -> None:
        name, item = _name(key), from_lua(value, "State.append")
        before = self.run.state.get(name)
        if before is None or (isinstance(before, list) and before):
            self.run.state.append(name, item)
        else:
            kept = [] if before in ([], {}) else [before]
            self.run.state[name] = [*kept, item]
        live = self._live.pop(name, None)
        if live is not None and isinstance(before, list):
            live[0][len(before) + 1] = self._lua(item)
            self._live[name] = (live[0], [*before, item])

    def state_clear(self) -> None:
        self._live.clear()
        for name in list(self.run.state.all()):
            del self.run.state[name]

    # ── stages, log ──────────────────────────────────────────────────────────────────────

    def stage_set(self, stage: Any = None) -> None:
        name = word(stage, "Stage.set: the stage")
        if name not in self.program.stages:
            known = ", ".join(self.program.stages) or "none"
            raise InvalidInput(f"stage {name!r} is not declared; Stages has {known}")
        self.run.stage = name
        self._stages.append(name)

    def stage_advance(self, stage: Any = None) -> Any:
        if stage is not None:
            self.stage_set(stage)
            return stage
        declared, now = self.program.stages, self.run.stage
        after = declared.index(now) + 1 if now else 0
        if after >= len(declared):
            return None
        following = declared[after].encode()
        self.stage_set(following)
        return following

    def stage_current(self) -> bytes | None:
        return self.run.stage.encode() or None

    def stage_is(self, stage: Any = None) -> bool:
        return self.run.stage == word(stage, "Stage.is: the stage")

    def stage_history(self) -> Any:
        return self._lua(list(self._stages))

    def log(self, level: bytes, message: bytes, data: Any = None) -> None:
        self.run.log(log_text(message, data), level=text(level))

    def system_alert(self, options: Any = None) -> None:
        given = from_lua(options, "System.alert")
        if not isinstance(given, dict) or not isinstance(given.get("message"), str):
            raise InvalidInput("System.alert takes a table with message=, a string")
        message, level = given.pop("message"), str(given.pop("level", "warn"))
        shown = f" {json.dumps(given, ensure_ascii=False)}" if given else ""
        self.run.log(f"alert: {message}{shown}", level=level)

    def note_progress(self, iterations: int, is_stopped: bool, reason: Any, success: bool) -> None:
        now = (iterations, is_stopped, reason, success)
        if now != self._progress:
            self._progress = now
            self.run.note("iterations", iterations)
            if is_stopped:
                why = None if reason is None else text(reason)
                self.run.note("stop", {"reason": why, "success": success})

    # ── calls ────────────────────────────────────────────────────────────────────────────

    def tool_call(self, name: bytes, args: Any = None) -> Any:
        tool = text(name)
        return self._lua(self.program.call_tool(tool, from_lua(args, tool)))

    def host_call(self, name: Any = None, args: Any = None) -> Any:
        tool = word(name, "Host.call: the tool")
        return self._lua(self.program.call_host(tool, from_lua(args, tool)))

    def child_call(self, name: Any = None, args: Any = None) -> Any:
        procedure = word(name, "Procedure.run: the procedure")
        return self._lua(self.program.call_procedure(procedure, from_lua(args, procedure)))

    def checkpoint(self, name: Any, fn: Any) -> Any:
        if kind_of(fn) != "function":
            raise InvalidInput("Step.checkpoint takes a function")

        @step(name=word(name, "Step.checkpoint: the name"))
        def body() -> Any:
            return from_lua(self.vm.call(fn), "the result of the checkpoint")

        return self._lua(body())

    def agent_turn(self, name: Any, options: Any = None, prepared: Any = None) -> Any:
        agent = self.program.agent(text(name))
        given = from_lua(options, f"the options of {agent.name}") if options is not None else {}
        known = {
            "prepared": from_lua(prepared, "what prepare returns") if prepared is not None else {}
        }
        turn = agent.turn(self.program.tool, self.run, self.dialogue, given or {}, known)
        return self._lua(turn.result), self._lua(turn.calls)

    def template(self, text: str) -> str:
        """A text with the state and the input filled in."""
        from holdfast.lua.templates import render  # here, as most procedures have no templates

        return render(self.run, text)

    # ── people ───────────────────────────────────────────────────────────────────────────

    def _ask(self, verb: str, options: Any) -> Any:
        from holdfast.lua.people import People  # here, as most procedures ask no person

        given = from_lua(options, f"Human.{verb}")
        if not isinstance(given, dict):
            raise InvalidInput(f"Human.{verb} takes a table with message=")
        if isinstance(given.get("message"), str):
            given["message"] = self.template(given["message"])
        return self._lua(People(self.run).ask(verb, given))

    def human_approve(self, options: Any) -> Any:
        return self._ask("approve", options)

    def human_input(self, options: Any) -> Any:
        return self._ask("input", options)

    def human_review(self, options: Any) -> Any:
        return self._ask("review", options)

    def human_notify(self, options: Any) -> Any:
        return self._ask("notify", options)

    def human_escalate(self, options: Any) -> Any:
        return self._ask("escalate", options)

    def human_select(self, options: Any) -> Any:
        return self._ask("select", options)

    def human_multiple(self, options: Any) -> Any:
        return self._ask("multiple", options)

    def human_inputs(self, options: Any) -> Any:
        return self._ask("inputs", options)

    # ── time, chance, files, messages ────────────────────────────────────────────────────

    def sleep(self, seconds: Any = None) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise InvalidInput("Sleep takes a number of seconds")
        self.run.sleep(seconds)

    def _now(self) -> datetime.datetime:
        return self.run.now()

    def os_clock(self) -> float:
        now = self.run.now()
        self._started = self._started or now
        return (now - self._started).total_seconds()

    def seed(self) -> int:
        return int(self.run.random() * 2**53)

    def file_read(self, name: Any = None) -> Any:
        return self._lua(self.program.file_steps["read"](word(name, FILE)))

    def file_write(self, name: Any = None, content: Any = None) -> Any:
        write = self.program.file_steps["write"]
        return self._lua(write(word(name, FILE), word(content, CONTENT)))

    def file_exists(self, name: Any = None) -> Any:
        return self._lua(self.program.file_steps["exists"](word(name, FILE)))

    def file_size(self, name: Any = None) -> Any:
        return self._lua(self.program.file_steps["size"](word(name, FILE)))

    def messages(self, verb: bytes, *args: Any) -> Any:
        plain = [from_lua(arg, f"MessageHistory.{text(verb)}") for arg in args]
        try:
            result = getattr(self.dialogue, f"do_{text(verb)}")(*plain)
        except TypeError as error:
            raise InvalidInput(f"MessageHistory.{text(verb)}: {error}") from None
        return self._lua(result)


def _name(key: Any) -> str:
    if not isinstance(key, bytes | int | float) or isinstance(key, bool):
        raise InvalidInput("state needs a name: state.name")
    return text(key) if isinstance(key, bytes) else number_text(key)
