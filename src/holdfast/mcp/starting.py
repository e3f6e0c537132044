"""Start a task by the name of its agent, without the agent's code: a worker that has the code executes it.

The only place of this package that builds an event. It goes away when `control` can start a run by name.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from holdfast.core import events as e
from holdfast.core import log, values
from holdfast.errors import NotStorable
from holdfast.store.base import NewRun, RunRow, Store


def new_id(agent: str) -> str:
    """An id that no other task has."""
    return f"{stem(agent)}-{uuid.uuid4().hex[:12]}"


def stem(agent: str) -> str:
    """An agent's name as the beginning of a task id."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", agent).lstrip("._-")[:80] or "task"


def start(store: Store, agent: str, given: Mapping[str, Any], *, id: str, by: str) -> RunRow:
    """Create the run, due at once. The same id with the same input is the same run."""
    log.check_run_id(id)
    try:
        lowered = values.lower(dict(given), typed=True)
        data, digest = values.encode(lowered), values.digest(values.canonical(lowered))
    except NotStorable as error:
        raise error.of(f"the input of agent {agent}") from None
    value, blob = log.wrap(data)
    created = e.RunCreated(run_id=id, agent=agent, input=value, by=by)
    _, records = log.seal(log.origin(id), [created], epoch=0, time=store.now())
    row, _ = store.create(NewRun(id, agent, digest), records, blobs=() if blob is None else (blob,))
    return row
