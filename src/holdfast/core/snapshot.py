"""A run's state as bytes, for a cache that is never the truth.

`load(dump(state)) == state`, for every state. It is stored as JSON; a value that is stored next to the
log as an artifact stays a reference to it, and a user's dict that looks like such a reference is
escaped, so that it is not mistaken for one.

The owner of the log decides whether a snapshot may be used: it must be of this run, of this
version, and its hash must be that of the event it ends with. Its bytes carry their own digest: the
log's hash chain does not cover them.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.core.parts import Message, pack, unpack
from holdfast.core.state import RunState
from holdfast.core.values import encode_struct, freeze

VERSION: Final = "7"
"""Changes whenever the fold or its form does; snapshots of another version are ignored."""

DIGEST_BYTES: Final = 32
_DECODE: Final = msgspec.json.Decoder(RunState).decode


def dump(state: RunState) -> bytes:
    """The state's bytes, with their digest in front: nothing else covers them."""
    data = to_json(state)
    return sha256(data).digest() + data


def load(data: bytes) -> RunState:
    """The state that was dumped; ValueError if these are not its bytes, to the last bit."""
    digest, body = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if sha256(body).digest() != digest:
        raise ValueError("the snapshot does not match its digest")
    return from_json(body)


def to_json(state: RunState) -> bytes:
    """The state as JSON, with nothing lost."""
    return encode_struct(_map(state, pack))


def from_json(data: bytes) -> RunState:
    """The state that `to_json` wrote; ValueError if it cannot be read."""
    return _map(_DECODE(data), lambda value: freeze(unpack(value)))


def _map(state: RunState, change: Any) -> RunState:
    """The state with every value of the user's passed through a function."""
    failure = state.failure
    return replace(
        state,
        state=change(state.state),
        notes=change(state.notes),
        loop=change(state.loop),
        facts=tuple(replace(x, value=change(x.value)) for x in state.facts),
        decisions=tuple(replace(x, choice=change(x.choice)) for x in state.decisions),
        messages=tuple(_map_message(x, change) for x in state.messages),
        failure=None if failure is None else replace(failure, state=change(failure.state)),
    )


def _map_message(message: Message, change: Any) -> Message:
    return replace(
        message,
        content=change(message.content),
        metadata=change(message.metadata),
        tool_calls=tuple(
            replace(call, arguments=change(call.arguments), result=change(call.result))
            for call in message.tool_calls
        ),
    )
