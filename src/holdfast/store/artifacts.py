"""Reading values that are stored outside their events: large ones, and artifacts.

Their bytes are not part of the hash chain, but their digests are. This is the only module that calls
`Store.blob` (tests/test_tidy.py checks), so no value can be read without being compared with its digest.
"""

from __future__ import annotations

from holdfast.core import log
from holdfast.core.events import Unreadable, Value, artifacts, bytes_of
from holdfast.core.values import digest
from holdfast.errors import ArtifactDamaged
from holdfast.store.base import Store


def read_artifact(store: Store, run_id: str, hash: str, *, seq: int | None = None) -> bytes:
    """The bytes with this digest, or ArtifactDamaged. `seq` is the event that refers to them, if known."""
    data = store.blob(run_id, hash)
    if data is not None and digest(data) == hash:
        return data
    if seq is None:
        seq = _first_reference(store, run_id, hash)
    raise ArtifactDamaged(run_id, seq, hash, missing=data is None)


def read_value(store: Store, run_id: str, value: Value, *, seq: int | None = None) -> bytes:
    """The JSON bytes of a value, wherever they are stored."""
    if value.blob:
        return read_artifact(store, run_id, value.blob, seq=seq)
    return bytes_of(value.json)


def _first_reference(store: Store, run_id: str, hash: str) -> int:
    """The first event that refers to an artifact; -1 if none does (it was named by a patch)."""
    for record in log.verify(run_id, log.origin(run_id), store.read(run_id)):
        try:
            if hash in artifacts(record.event):
                return record.seq
        except Unreadable:  # of a newer Holdfast: it may be the one, but that is unknown
            continue
    return -1
