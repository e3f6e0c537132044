"""Lua: procedures in `.tac` files, on the same runtime as agents in Python.

    from holdfast.lua import procedure

    recap = procedure("recap.tac", tools=[send_email])     # an agent like any other
    hf.run(recap, id="recap-sam", recipient_email="sam@example.com")

A front end: it makes agents and tools with the public declarations, and knows nothing of the runtime's inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agents.models.base import Model
    from holdfast.lua.program import Program
    from holdfast.lua.vm import LuaLimits


def load_program(
    path: str | Path,
    *,
    tools: Iterable[Callable[..., Any]] = (),
    models: Mapping[str, Model] | None = None,
    limits: LuaLimits | None = None,
) -> Program:
    """Load a `.tac` file: its procedures as agents, its tools as tools.

    `tools` are Python tools that the file may use (`Tool { use = "host.name" }`, `Host.call`); `models` are models for
    its agents, by the agents' names; `limits` are what one execution may use.
    """
    from holdfast.lua.program import Program

    return Program(Path(path), tools=tools, models=models, limits=limits)


def procedure(
    path: str | Path,
    *,
    tools: Iterable[Callable[..., Any]] = (),
    models: Mapping[str, Model] | None = None,
    limits: LuaLimits | None = None,
) -> Callable[..., Any]:
    """The main procedure of a `.tac` file, as an agent."""
    return load_program(path, tools=tools, models=models, limits=limits).main
