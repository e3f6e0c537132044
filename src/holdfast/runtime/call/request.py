"""Request: what the code asks for, and the place in the log that it has.

The place is the position in the code's branch, taken in the order in which the code asks. A call is identified there by its
name and the exact bytes of its arguments; arguments that cannot be stored are refused here, before any effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.ancestors import ForkAncestry
from holdfast.core.effect import Effect
from holdfast.core.entry import Entry, Place
from holdfast.core.events import Value
from holdfast.core.match import is_same_call
from holdfast.core.values import canonical_flat, digest
from holdfast.errors import InvalidInput
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.secrets import secrets_in
from holdfast.runtime.log.branches import Branch
from holdfast.runtime.log.session import Session
from holdfast.store.base import RESERVED


class CodeRequest(msgspec.Struct, eq=False):
    """Something that the code asks for at a place: a call, a wait, the end of an iteration."""

    branch: Branch
    index: int
    forks: int
    """How many branches the code had started right before it."""
    count: int
    """How many places it takes, from `index` on."""

    @property
    def session(self) -> Session:
        return self.branch.session

    @property
    def place(self) -> Place:
        return self.branch.path, self.index

    @property
    def name(self) -> str:
        """What it is known by, when new steps are accepted."""
        raise NotImplementedError  # each kind of request has its own

    @property
    def is_insertable(self) -> bool:
        """Whether it may be recorded before something else, when new steps are accepted."""
        return True

    def is_recorded_in(self, entry: Entry, number: int, lineage: ForkAncestry) -> bool:
        """Whether this entry is of the same request."""
        raise NotImplementedError  # likewise


class CallRequest(CodeRequest):
    """One call as it was asked for: who, where, with what."""

    spec: CallSpec
    bound: dict[str, Any]
    args: bytes
    own_key: str = ""
    undoes: int = 0
    _digest: str = ""

    @property
    def name(self) -> str:
        return self.spec.name

    is_recorded_in = is_same_call

    def read(self, value: Value) -> bytes:
        """The JSON bytes of a recorded value."""
        return self.session.unwrap(value)

    @property
    def digest(self) -> str:
        """The name of the arguments. Made when it is wanted: replay mostly compares the bytes themselves."""
        if not self._digest:
            self._digest = digest(self.args)
        return self._digest

    def __str__(self) -> str:
        text = self.args.decode()
        return f"{self.spec.name}({text if len(text) <= 200 else text[:199] + '…'})"


def request_call(
    branch: Branch, spec: CallSpec, bound: dict[str, Any], undoes: int = 0
) -> CallRequest:
    """A call at the next place of the branch, with the canonical bytes of its arguments."""
    session = branch.session
    if redact := session.lineage.policy.redact:
        spec = _redacting(session, spec, redact)
    own_key = ""
    args = canonical_flat(bound) if spec.is_flat else None
    if args is None:
        args = spec.encode_args(bound)  # fails before any effect
        if spec.params.hidden:
            own_key = _own_key(spec, bound)
        if spec.redact:
            secret = [bound.get(name) for name in spec.redact]
            session.secrets.update(secrets_in(secret, declared=True))
    session.specs[spec.name] = spec
    index = branch.take()
    return CallRequest(branch, index, branch.forked, 1, spec, bound, args, own_key, undoes)


def child_call(agent: AgentSpec, branch: Branch) -> CallSpec:
    """An agent called inside an agent: a call whose effect is a run of its own."""
    session = branch.session
    config = session.config
    run_child = config.run_child
    assert run_child is not None
    config.agents[agent.name] = agent

    if agent.is_async:

        async def child(child_id: str, kwargs: dict[str, Any]) -> Any:
            return await run_child(agent, child_id, session, kwargs)
    else:

        def child(child_id: str, kwargs: dict[str, Any]) -> Any:  # type: ignore[misc]
            return run_child(agent, child_id, session, kwargs)

    return CallSpec(
        name=agent.name,
        fn=child,
        params=agent.params,
        effect=Effect.CHILD,
        is_async=agent.is_async,
        result=agent.result,
        risk="read",
        version=agent.version,
    )


def _redacting(session: Session, spec: CallSpec, redact: frozenset[str]) -> CallSpec:
    """The spec with what the policy redacts too. Kept: to make one takes longer than the rest of a call."""
    kept = session.redacting.get(spec.name)
    if kept is None or kept[0] is not spec or kept[1] is not redact:
        made = replace(spec, redact=spec.redact | redact)
        kept = session.redacting[spec.name] = (spec, redact, made)
    found: CallSpec = kept[2]
    return found


def _own_key(spec: CallSpec, bound: Mapping[str, Any]) -> str:
    """The key that the caller brings along, if the call has one."""
    key = bound.get("idempotency_key") or "" if "idempotency_key" in spec.params.hidden else ""
    if (
        not isinstance(key, str)
        or len(key) > 500
        or (key and (not key.strip() or key.startswith(RESERVED)))
    ):
        raise InvalidInput(
            f"{spec.name}: idempotency_key must be text of up to 500 characters, not {key!r}"
        )
    return key
