"""What the names of the language do: each method is one operation that Lua calls.

`Ops` is for a file that is loaded, `BodyOps` for a tool's body, `SpecOps` for a step of a spec: what needs a run is
refused. `RunOps` is for a procedure, on its `Run`. Values are converted here; errors that a file may catch are those of `vm.CATCHABLE`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast import InvalidInput
from holdfast.lua.convert import NODES_MAX, from_lua, text, to_lua, word

if TYPE_CHECKING:
    from holdfast.lua.seam import LoadedFile
    from holdfast.lua.vm import Vm

FILE: Final = "the name of a file"
CONTENT: Final = "File.write: the content"
_LEVELS: Final = {"debug": 10, "info": 20, "warn": 30, "error": 40}
NAMES: Final = (
    "seed",
    "os_time",
    "os_date",
    "os_clock",
    "tool_call",
    "agent_turn",
    "child_call",
    "note_progress",
    "checkpoint",
    "state_get",
    "state_set",
    "state_all",
    "state_increment",
    "state_append",
    "state_clear",
    "stage_set",
    "stage_advance",
    "stage_current",
    "stage_is",
    "stage_history",
    "log",
    "human_approve",
    "human_input",
    "human_review",
    "human_notify",
    "human_escalate",
    "human_select",
    "human_multiple",
    "human_inputs",
    "system_alert",
    "sleep",
    "file_read",
    "file_write",
    "file_exists",
    "file_size",
    "json_encode",
    "json_decode",
    "host_call",
    "messages",
    "module_source",
)


class Ops:
    """The operations of a file that no run executes: pure ones, and refusals."""

    vm: Vm

    def __init__(self, program: LoadedFile, where: str) -> None:
        self.program, self._where = program, where

    def table(self) -> dict[str, Callable[..., Any]]:
        """All operations by name."""
        return {name: getattr(self, name, None) or self._refusal(name) for name in NAMES}

    def _refusal(self, name: str) -> Callable[..., Any]:
        said = _spoken(name)

        def refused(*_: Any) -> None:
            raise InvalidInput(f"{said} cannot be used {self._where}")

        return refused

    def _lua(self, value: Any) -> Any:
        return to_lua(self.vm.lua, value)

    def log(self, level: bytes, message: bytes, data: Any = None) -> None:
        import logging  # here, as in a run the lines of `Log` are recorded

        logging.getLogger("holdfast.lua").log(_LEVELS[text(level)], "%s", log_text(message, data))

    def seed(self) -> int:
        return 0

    def note_progress(self, *_: Any) -> None:
        pass

    def json_encode(self, value: Any = None) -> bytes:
        return json.dumps(from_lua(value, "Json.encode"), ensure_ascii=False).encode()

    def json_decode(self, text: Any = None) -> Any:
        said = word(text, "Json.decode: the value")
        if sum(map(said.count, "[{,")) > NODES_MAX:
            raise InvalidInput(f"Json.decode: more than {NODES_MAX:,} parts")
        try:
            return self._lua(json.loads(said, parse_constant=_not_json))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"Json.decode: not JSON: {error}") from None

    def module_source(self, name: bytes) -> tuple[bytes, bytes]:
        source, file = self.program.project.module(text(name))
        return source, f"@{file}".encode()

    def os_date(self, template: Any = None, when: Any = None) -> Any:
        form = "%c" if template is None else text(template).removeprefix("!")
        try:
            moment = (
                self._now() if when is None else datetime.datetime.fromtimestamp(when, datetime.UTC)
            )
            return (
                self._lua(_fields_of(moment))
                if form.startswith("*t")
                else moment.strftime(form).encode()
            )
        except (TypeError, ValueError, OverflowError, OSError) as error:
            raise InvalidInput(f"os.date: {error}") from None

    def os_time(self, table: Any = None) -> int:
        if table is None:
            return int(self._now().timestamp())
        given = from_lua(table, "os.time")
        try:
            day = datetime.datetime(int(given["year"]), 1, 1, tzinfo=datetime.UTC)
            month = int(given["month"]) - 1
            day = day.replace(year=day.year + month // 12, month=month % 12 + 1)
            span = datetime.timedelta(
                days=int(given["day"]) - 1,
                hours=int(given.get("hour", 12)),
                minutes=int(given.get("min", 0)),
                seconds=int(given.get("sec", 0)),
            )
            return int((day + span).timestamp())
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"os.time takes year, month and day: {error}") from None

    def os_clock(self) -> float:
        return 0.0

    def _now(self) -> datetime.datetime:
        raise InvalidInput(f"the time cannot be read {self._where}")


class BodyOps(Ops):
    """The operations of a tool's body: what it needs of the run comes in its arguments."""

    def __init__(self, program: LoadedFile) -> None:
        super().__init__(program, "in a tool's body; pass what it needs as an argument")

    def _now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def seed(self) -> int:
        import secrets

        return secrets.randbits(62)

    def os_clock(self) -> float:
        import time

        return time.process_time()

    def tool_call(self, name: bytes, args: Any = None) -> Any:
        return self._lua(self.program.call_tool(text(name), from_lua(args, text(name))))

    def file_read(self, name: Any = None) -> Any:
        return self._lua(self.program.project.read(word(name, FILE)))

    def file_write(self, name: Any = None, content: Any = None) -> Any:
        return self.program.project.write(word(name, FILE), word(content, CONTENT))

    def file_exists(self, name: Any = None) -> bool:
        return self.program.project.exists(word(name, FILE))

    def file_size(self, name: Any = None) -> int:
        return self.program.project.size(word(name, FILE))


class SpecOps(Ops):
    """The operations of a `Step` of a spec: it reads the state of a run that has ended."""

    def __init__(self, program: LoadedFile, state: Mapping[str, Any], stage: str) -> None:
        super().__init__(program, "in a step of a spec, which only reads")
        self._state, self._stage = state, stage

    def state_get(self, key: Any = None) -> Any:
        return self._lua(self._state.get(text(key)))

    def state_all(self) -> Any:
        return self._lua(dict(self._state))

    def stage_current(self) -> bytes | None:
        return self._stage.encode() or None

    def stage_is(self, stage: Any = None) -> bool:
        return self._stage == word(stage, "Stage.is: the stage")


def log_text(message: bytes, data: Any) -> str:
    """A line of the log: its text, and its data as JSON."""
    shown = (
        ""
        if data is None
        else " " + json.dumps(from_lua(data, "the data of a log line"), ensure_ascii=False)
    )
    return text(message) + shown


def _spoken(name: str) -> str:
    """An operation as a file writes it."""
    group, _, verb = name.partition("_")
    known = {
        "tool_call": "a tool",
        "agent_turn": "an agent",
        "child_call": "a procedure",
        "sleep": "Sleep",
        "checkpoint": "Step.checkpoint",
        "messages": "MessageHistory",
        "host_call": "Host.call",
    }
    if group == "state":
        return "state"
    return known.get(name, f"{group.capitalize()}.{verb}")


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _fields_of(moment: datetime.datetime) -> dict[str, Any]:
    day = moment.timetuple()
    return {
        "year": day.tm_year,
        "month": day.tm_mon,
        "day": day.tm_mday,
        "hour": day.tm_hour,
        "min": day.tm_min,
        "sec": day.tm_sec,
        "wday": (day.tm_wday + 1) % 7 + 1,
        "yday": day.tm_yday,
        "isdst": False,
    }
