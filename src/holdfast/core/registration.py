"""What a store knows of an agent that a worker has registered: enough to start a run of it without its code.

A worker writes it when it starts. Starting by name fills the run's first event from it, so that the run is the
same as one that was started by a process with the code.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent, by name and version. `parameters` is the JSON Schema of its input."""

    name: str
    version: str = ""
    parameters: dict[str, Any] = {}
    description: str = ""
    stages: tuple[str, ...] = ()
    deadline_us: int | None = None
    budget: dict[str, float] = {}
    is_loop: bool = False

    @classmethod
    def decode(cls, data: bytes) -> Registration:
        """What a worker has registered, also if a newer Holdfast did; ValueError if it cannot be read."""
        return _decoder.decode(data)


_decoder = msgspec.json.Decoder(Registration)
