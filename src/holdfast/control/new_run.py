"""Start a run by the name of its agent, without the agent's code.

A worker registers its agents when it starts. What it registered fills the run's first event, so the run is the same as
one that a process with the code would have started. Any worker that knows the agent claims it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.core.params import ParamSchema
from holdfast.core.policy import NO_LIMITS, Limits
from holdfast.core.registration import Registration
from holdfast.errors import InvalidInput, NotFound, NotStorable
from holdfast.store.base import NewRun, RunRow, Store
from holdfast.store.checks import check_priority
from holdfast.store.outside import create
from holdfast.words.advice import command_for


def new_run_id(agent: str) -> str:
    """The id of a run whose caller gave none."""
    return f"{agent}-{os.urandom(6).hex()}"


def start(
    store: Store,
    agent: str,
    input: Mapping[str, Any] | None = None,
    *,
    id: str | None = None,
    version: str | None = None,
    priority: int = 0,
    limits: Limits = NO_LIMITS,
    by: str = "",
    why: str = "",
) -> RunRow:
    """Create a run of a registered agent and leave the work to workers; the run's row.

    Run ids are idempotent, as for `hf.start`: the same id with the same input is the same run, with another input
    InputConflict. Without a version, the one that was registered last. An input that the agent does not take is
    refused here as far as its JSON Schema tells; else the run fails when a worker reads it.
    """
    found = registered(store, agent, version)
    run_id = log.check_run_id(new_run_id(agent) if id is None else id)
    data, digest = _encoded(found, {} if input is None else input)
    value, blobs = log.wrap(data)
    now = store.now()
    created = e.RunCreated(
        run_id=run_id,
        agent=found.name,
        input=value,
        code_version=found.version,
        deadline_at=_deadline_at(found, limits, now),
        budget=found.budget | limits.changes,
        stages=found.stages,
        loop=found.is_loop,
        by=by,
        why=why,
    )
    new = NewRun(run_id, found.name, digest, found.version, priority=check_priority(priority))
    return create(store, new, [created], blobs, now=now)[0]


def _deadline_at(registration: Registration, limits: Limits, now: int) -> int | None:
    if limits.deadline is None and registration.deadline_us is not None:
        return now + registration.deadline_us
    return limits.deadline_at(now)


def registered(store: Store, agent: str, version: str | None = None) -> Registration:
    """What workers have registered of an agent; NotFound that says which agents there are."""
    known = store.agents.all()
    for found in known:
        if found.name == agent and version in (None, found.code_version):
            try:
                return Registration.decode(found.data)
            except ValueError as error:
                raise NotFound(
                    f"the registration of agent {agent!r} cannot be read ({error}); restart its worker"
                ) from None
    versions = [found.code_version for found in known if found.name == agent]
    if versions:
        listed = ", ".join(map(repr, versions))
        raise NotFound(
            f"version {version!r} of agent {agent!r} is not registered; registered: {listed}"
        )
    names = ", ".join(dict.fromkeys(found.name for found in known))
    raise NotFound(
        f"agent {agent!r} is not registered in this store; "
        + (f"registered: {names}. " if names else "none is registered. ")
        + f"A worker registers its agents when it starts: {command_for(store.url, 'worker', 'FILE')}"
    )


def _encoded(registration: Registration, value: object) -> tuple[bytes, str]:
    """The input as it is kept, and its digest: the same as if the agent's own code had encoded it."""
    what = f"agent {registration.name}"
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f"{what}: input takes its arguments by name, such as {{'n': 1}}, not {value!r}"
        )
    try:
        lowered = values.lower(dict(value), typed=True)
        filled = ParamSchema.from_json_schema(registration.parameters).check(lowered, what)
        return values.encode(filled), values.digest(values.canonical(filled))
    except NotStorable as error:
        raise error.of(f"the input of {what}") from None
