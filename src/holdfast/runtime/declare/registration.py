"""Register agents in a store, so that runs of them can be started by name, without their code."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.policy import microseconds
from holdfast.core.registration import Registration
from holdfast.core.values import encode_struct
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.json_schema import description_of, json_schema_of
from holdfast.store.base import RegisteredAgent, Store


def register(store: Store, specs: Iterable[AgentSpec]) -> None:
    """Register these agents. The last registration of a name and version counts."""
    now = store.now()
    made = [
        RegisteredAgent(spec.name, spec.version, encode_struct(registration_of(spec)), now)
        for spec in specs
    ]
    if made:
        store.agents.register(made)


def registration_of(spec: AgentSpec) -> Registration:
    """What another process needs to know about an agent to start a run of it."""
    deadline = None if spec.deadline is None else microseconds(spec.deadline, "deadline")
    return Registration(
        name=spec.name,
        version=spec.version,
        parameters=json_schema_of(spec, f"agent {spec.name}", lenient=True),
        description=description_of(spec),
        stages=spec.stages,
        deadline_us=deadline,
        budget=spec.budget.limits(),
        is_loop=spec.body is not None,
    )
