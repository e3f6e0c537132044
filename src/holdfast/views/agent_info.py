"""The agents that a store knows: those that workers have registered, and those that have runs."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from holdfast.core.registration import Registration
from holdfast.store.base import Store


class AgentInfo(Struct, frozen=True):
    """An agent of a store. One that no worker has registered is known by name only, and cannot be started by it."""

    name: str
    is_registered: bool = False
    version: str = ""
    """The version that was registered last."""
    versions: tuple[str, ...] = ()
    """All registered versions, the last registered first."""
    registered_at: int | None = None
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The JSON Schema of its input."""
    stages: tuple[str, ...] = ()


def agents(store: Store) -> list[AgentInfo]:
    """The agents that the store knows, by name."""
    found: dict[str, AgentInfo] = {}
    known = store.agents.all()
    for one in known:
        if one.name in found:
            continue
        versions = tuple(x.code_version for x in known if x.name == one.name)
        try:
            says = Registration.decode(one.data)
        except ValueError:  # a newer Holdfast wrote it, or something else did
            says = Registration(one.name, one.code_version)
        found[one.name] = AgentInfo(
            one.name,
            True,
            one.code_version,
            versions,
            one.registered_at,
            says.description,
            says.parameters,
            says.stages,
        )
    for name in store.agents.with_runs():
        found.setdefault(name, AgentInfo(name))
    return sorted(found.values(), key=lambda agent: agent.name)
