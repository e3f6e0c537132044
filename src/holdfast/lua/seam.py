"""What the operations of the language need of a loaded file. `program.py` is it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.lua.agents import AgentDecl
from holdfast.lua.files import Project


class LoadedFile(Protocol):
    """A file: its folder, its stages, and how its tools, agents and procedures are called."""

    project: Project
    stages: tuple[str, ...]

    @property
    def file_steps(self) -> Mapping[str, Callable[..., Any]]: ...
    def tool(self, name: str) -> Callable[..., Any]: ...
    def agent(self, name: str) -> AgentDecl: ...
    def call_tool(self, name: str, args: Any) -> Any: ...
    def call_host(self, name: str, args: Any) -> Any: ...
    def call_procedure(self, name: str, args: Any) -> Any: ...
