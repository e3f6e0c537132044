"""One Lua state: the sandbox, a loaded file, and its limits.

Every execution of a procedure has a state of its own, and so has every tool's body, so nothing passes between them but
recorded values. No exception of Python travels through Lua: what must end the run is kept in `fatal` while Lua unwinds,
and raised again when Lua has returned.

Not here: what the names of the language do (`ops.py`), what a file declares (`program.py`).
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from holdfast import CallFailed, HoldfastError, InvalidInput, ModelError, OutOfTurns
from holdfast.lua.convert import text

MEGABYTE: Final = 1 << 20
MESSAGE_MAX: Final = 10_000
OPERATION: Final = 100
"""What a call of Python counts, in instructions: its own time is not counted."""
_HERE: Final = Path(__file__).parent
_OWN: Final = ("patterns.lua", "stable.lua", "sandbox.lua", "language.lua")
_PLACE: Final = r"^[^\n:]+:(\d+): "


class LuaLimits(Struct, frozen=True):
    """What one execution of a file may use. A resumed run starts to count again."""

    instructions: int = 200_000_000
    memory: int = 64 * MEGABYTE
    seconds: float = 30.0
    """Of CPU time, spent in Lua."""


class LuaError(HoldfastError):
    """An error in a Lua file: message, file and line, and the Lua traceback."""

    def __init__(self, message: str, lua_traceback: str = "") -> None:
        self.message, self.lua_traceback = message, lua_traceback
        super().__init__(message + (f"\n{lua_traceback}" if lua_traceback else ""))


class LuaLimit(HoldfastError):
    """A Lua file used more instructions, memory or time than it may."""


CATCHABLE: Final = (CallFailed, InvalidInput, ModelError, OutOfTurns, LuaError)
"""What a file's own `pcall` may catch. Everything else passes through: suspensions, divergence, a lost lease."""


@functools.cache
def _bytecodes() -> tuple[bytes, ...]:
    """Our own Lua files, compiled once per process: a state is made for every execution."""
    compiled = runtime_class()(encoding=None).execute(
        b'return function(source) return string.dump(assert(load(source, "=holdfast", "t"))) end'
    )
    return tuple(compiled((_HERE / name).read_bytes()) for name in _OWN)


def runtime_class() -> Any:
    """lupa's Lua 5.4, or an error that says how to install it."""
    try:
        from lupa import lua54
    except ModuleNotFoundError:
        raise InvalidInput(
            "a .tac file needs the package lupa: pip install 'holdfast[lua]'"
        ) from None
    return lua54.LuaRuntime


def _no_attributes(_object: object, _name: object, _is_setting: bool) -> str:
    raise AttributeError("attributes of Python values cannot be used in Lua")


class Vm:
    """A Lua state with the sandbox and the names of the language."""

    def __init__(self, ops: Mapping[str, Callable[..., Any]], limits: LuaLimits) -> None:
        self.limits = limits
        self.fatal: BaseException | None = None
        self.caught: BaseException | None = None
        """The last error of a Python call that Lua may have caught."""
        self._left = limits.instructions
        self._ends: float | None = None
        """The CPU time of the thread at which the limit is reached; None until the hook asks for it."""
        self._is_running = False
        self._functions: dict[tuple[bytes, str, Any], Any] = {}
        self.lua: Any = runtime_class()(
            encoding=None,
            source_encoding="utf-8",
            attribute_filter=_no_attributes,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
            max_memory=limits.memory,
        )
        own: dict[str, Callable[..., Any]] = {
            "exhausted": self._exhausted,
            "out_of_memory": self._out_of_memory,
            "escaped": self._escaped,
        }
        py = self.lua.table()
        for name, op in ops.items():
            py[name.encode()] = self._guarded(op)
        for name, op in own.items():
            py[name.encode()] = op
        load = self.lua.execute(b'return function(code) return load(code, "=holdfast", "b") end')
        patterns, stable, sandbox, language = map(load, _bytecodes())
        self.sandbox = sandbox(py, patterns(), stable())
        self.language = language(self.sandbox)
        self._call = self.sandbox[b"call"]

    # ── running ──────────────────────────────────────────────────────────────────────────

    def load(self, source: bytes, name: str) -> None:
        """Run a file: its declarations are made, and its globals set."""
        compiled = self.sandbox[b"compile"](source, f"@{name}".encode())
        chunk, wrong = compiled if isinstance(compiled, tuple) else (compiled, None)
        if chunk is None:
            raise LuaError(text(wrong))
        self.call(chunk)
        self.language[b"set_loaded"]()

    def call(self, fn: Any, *args: Any) -> Any:
        """Call a function of Lua; its first result. Raises what must end the run, or LuaError."""
        outermost = not self._is_running
        if outermost:
            self._left, self._ends, self._is_running = self.limits.instructions, None, True
        try:
            got = self._call(fn, *args)
        finally:
            if outermost:
                self._is_running = False
        if self.fatal is not None:
            raise self.fatal
        if got[0]:
            return got[1]
        cause, message = self.caught, text(got[1])[:MESSAGE_MAX]
        error = LuaError(message, _readable(text(got[2])))
        is_same = cause is not None and re.sub(_PLACE, "", message) == str(cause)
        raise error from (cause if is_same else None)

    def declared(self, kind: bytes, name: str, key: Any) -> Any:
        """A function of a declaration: at index 1 what it does, or one that it names."""
        place = (kind, name, key)
        found = self._functions.get(place)
        if found is None:
            found = self._functions[place] = self.language[b"find"](kind, name.encode())[key]
        return found

    # ── what Lua calls ───────────────────────────────────────────────────────────────────

    def _guarded(self, op: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        """An operation that never raises: it returns whether it went well, and its result or message. Arguments
        that it does not take are ignored, as Lua does."""
        most = _parameters(op)

        def guarded(*args: Any) -> tuple[Any, ...]:
            # The CPU time of the thread takes ten times as long to read.
            began = time.perf_counter()
            self._left -= OPERATION  # the next hook looks whether it was too many
            try:
                result = op(*(args if len(args) <= most else args[:most]))
            except CATCHABLE as error:
                self.caught = error
                return False, _message(error)
            except MemoryError:  # of Lua, while it was given a value
                self._out_of_memory()
                return (None,)
            except BaseException as error:  # noqa: BLE001 - kept, and raised when Lua has returned
                self.fatal = error
                return (None,)
            finally:
                if self._ends is not None:
                    self._ends += time.perf_counter() - began
            return (True, *result) if isinstance(result, tuple) else (True, result)

        return guarded

    def _exhausted(self, instructions: int) -> bool:
        self._left -= instructions
        now = time.thread_time()
        if self._ends is None:
            self._ends = now + self.limits.seconds
        if self._left < 0:
            self.fatal = LuaLimit(
                f"the file used more than {self.limits.instructions:,} Lua instructions in one execution"
            )
        elif now > self._ends:
            self.fatal = LuaLimit(
                f"the file used more than {self.limits.seconds:g} s of CPU time in one execution"
            )
        return self.fatal is not None

    def _escaped(self, error: BaseException) -> None:
        self.fatal = error

    def _out_of_memory(self) -> None:
        self.fatal = LuaLimit(
            f"the file used more than {self.limits.memory // MEGABYTE} MB of memory"
        )


def _parameters(op: Callable[..., Any]) -> int:
    """How many arguments it takes by position; a large number if any."""
    own = getattr(op, "__wrapped__", op)
    code = own.__code__
    is_open = code.co_flags & inspect.CO_VARARGS
    return sys.maxsize if is_open else int(code.co_argcount) - inspect.ismethod(own)


def _message(error: BaseException) -> bytes:
    said = error.message if isinstance(error, LuaError) else str(error)
    said = said.partition("\nstack traceback:")[0]  # of the tool's body; `holdfast show` has it
    return said.encode("utf-8", "replace")


def _readable(lua_traceback: str) -> str:
    """A Lua traceback without the lines of the sandbox."""
    lines = lua_traceback.splitlines()
    kept = [
        x
        for x in lines
        if "holdfast:" not in x and "[C]: in ?" not in x and "[C]: in function 'xpcall'" not in x
    ]
    return "\n".join(kept) if len(kept) > 1 else ""
