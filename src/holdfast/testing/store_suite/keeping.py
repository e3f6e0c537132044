"""What holds of what is kept next to the log, of what is deleted, and of a place that is opened again."""

from __future__ import annotations

from typing import Any

from holdfast.core.log import Blob, origin
from holdfast.errors import Conflict, NotFound, StoreUnavailable
from holdfast.store.base import LIVE, Creation, NewRun, Snapshot
from holdfast.testing.store_suite.bench import LEASE_US, Bench, refused, same, sealed


def blobs_are_kept_by_run_and_hash(bench: Bench) -> None:
    """One run's blob is not another's; keeping the same one again is harmless."""
    for run_id in ("one", "two"):
        bench.create(run_id)
    big = bytes(range(256)) * 4096
    bench.append("one", blobs=[Blob("aa", big), Blob("bb", b"")])
    bench.append("one", blobs=[Blob("aa", big)])
    bench.append("two", blobs=[Blob("aa", b"other")])

    same((big, b""), (bench.store.blob("one", "aa"), bench.store.blob("one", "bb")))
    same((b"other", None), (bench.store.blob("two", "aa"), bench.store.blob("two", "bb")))


def snapshots_rotate_but_never_the_newest(bench: Bench) -> None:
    """The newest `keep` stay; one is asked for by the last event it may cover."""
    bench.create()

    def snapshot(seq: int, data: bytes = b"\0state") -> Snapshot:
        return Snapshot(seq, bytes([seq]) * 32, "v1", bench.clock.now(), data)

    for seq in (5, 1, 3, 7):
        bench.store.snapshots.save("run", snapshot(seq))
    same(snapshot(7), bench.store.snapshots.newest("run"))
    same(snapshot(7), bench.store.snapshots.newest("run", at_most=7))
    same(snapshot(5), bench.store.snapshots.newest("run", at_most=6))
    same(snapshot(3), bench.store.snapshots.newest("run", at_most=4))
    same(None, bench.store.snapshots.newest("run", at_most=2))

    bench.store.snapshots.save("run", snapshot(7, b"again"))
    same(snapshot(7, b"again"), bench.store.snapshots.newest("run"))
    bench.store.snapshots.save("run", snapshot(9), keep=1)
    same(
        (snapshot(9), None),
        (bench.store.snapshots.newest("run"), bench.store.snapshots.newest("run", at_most=8)),
    )
    bench.store.snapshots.save("run", snapshot(11), keep=0)
    same(snapshot(11), bench.store.snapshots.newest("run"))
    refused(NotFound, bench.store.snapshots.save, "absent", snapshot(1))
    same(None, bench.store.snapshots.newest("absent"))


def snapshots_that_are_too_old_go_and_families_are_apart(bench: Bench) -> None:
    """Beyond the newest few *or* expired; what a loop continues from does not rotate with the others."""
    bench.create()
    store = bench.store

    def save(seq: int, version: str = f"{LIVE}1", **options: Any) -> None:
        store.snapshots.save("run", Snapshot(seq, b"h", version, store.now(), b""), **options)

    def left(live: bool = True) -> list[int]:
        found: list[int] = []
        while (
            one := store.snapshots.newest("run", at_most=(found or [99])[-1] - 1, live=live)
        ) is not None:
            found.append(one.seq)
        return found

    save(1)
    bench.clock.advance(100)
    save(2)
    save(3)
    same([3, 2, 1], left())
    save(4, keep=9, max_age_us=50_000_000)
    same([4, 3, 2], left())
    save(5, "v1", keep=1)
    same(([4, 3, 2], [5]), (left(), left(live=False)))
    bench.clock.advance(100)
    same(2, store.snapshots.rotate("run", keep=9, max_age_us=50_000_000))
    same(([4], [5]), (left(), left(live=False)))
    same(0, store.snapshots.rotate("absent", keep=1))


def only_what_has_ended_is_deleted(bench: Bench) -> None:
    """A run that may still continue is kept, whatever it is waiting for."""
    bench.create("new")
    bench.create("live", worker="w")
    for status in ("waiting", "paused", "quarantined", "completed", "failed", "cancelled"):
        bench.create(status)
        bench.settle(status, status)
    deleted = {row.id for row in bench.store.runs() if bench.store.delete(row.id)}

    same({"completed", "failed", "cancelled"}, deleted)
    kept = {row.id for row in bench.store.runs()}
    same({"new", "live", "waiting", "paused", "quarantined"}, kept)
    same({1, 2}, {bench.length(run_id) for run_id in kept})


def deleting_leaves_nothing_behind(bench: Bench) -> None:
    """Row, log, blobs, snapshots and keys are gone; the id can be used again, from the beginning."""
    bench.create(worker="w", agent="old")
    bench.append(epoch=1, count=5, blobs=[Blob("aa", b"data")], claims_key="key")
    bench.store.snapshots.save("run", Snapshot(3, b"h", "v", 0, b"state"))
    bench.settle()
    bench.create("bystander")
    bench.append("bystander", blobs=[Blob("aa", b"mine")], claims_key="other")
    same(True, bench.store.delete("run"))
    same(False, bench.store.delete("run"))

    def nothing() -> None:
        same((None, None), (bench.store.blob("run", "aa"), bench.store.snapshots.newest("run")))
        same(None, bench.store.find_key("key"))

    same((None, []), (bench.store.get("run"), bench.store.read("run")))
    nothing()
    refused(NotFound, bench.append, epoch=1)
    row = bench.create(agent="new")
    same(("new", 0, 1), (row.agent, row.epoch, bench.length()))
    nothing()
    bench.append(claims_key="key")
    same(("run", 1), bench.store.find_key("key"))
    same(
        (b"mine", ("bystander", 1)),
        (bench.store.blob("bystander", "aa"), bench.store.find_key("other")),
    )


def what_was_written_is_there_after_reopening(bench: Bench) -> None:
    """Rows, logs, leases, keys, blobs and snapshots."""
    bench.create(worker="w", priority=4, parent="mother")
    bench.append(epoch=1, count=70, blobs=[Blob("aa", b"data")], claims_key="key")
    snapshot = Snapshot(3, b"\0hash", "v1", 12, b"\xffstate")
    bench.store.snapshots.save("run", snapshot)
    row, log = bench.row(), bench.log()
    bench.store.close()

    store = bench.reopened()
    if store is not None:
        same((row, log), (store.get("run"), store.read("run")))
        same((b"data", ("run", 70)), (store.blob("run", "aa"), store.find_key("key")))
        same(
            (snapshot, None),
            (store.snapshots.newest("run"), store.claim("run", worker="x", lease_us=1)),
        )


def two_openings_of_one_place_see_the_same(bench: Bench) -> None:
    """As two processes would: runs, fences and leases are shared; an id used again is the new run."""
    other = bench.reopened()
    if other is None:
        return
    bench.create(worker="w")
    bench.append(epoch=1)
    same(None, other.claim("run", worker="x", lease_us=LEASE_US))
    stale = bench.work(epoch=1)
    other.append(bench.work(epoch=1))
    refused(Conflict, bench.store.append, stale)

    bench.settle()
    same(True, other.delete("run"))
    again = Creation(NewRun("run", "agent", "another"), sealed(origin("run"), 1))
    other.create(again).wait()
    same(("another", 1), (bench.row().input_digest, bench.length()))
    bench.append()
    same((2, None), (len(other.read("run")), other.snapshots.newest("run")))


def a_closed_store_refuses_work(bench: Bench) -> None:
    """It says that it is closed; closing again is harmless."""
    bench.create()
    work = bench.work()
    bench.store.close()
    bench.store.close()

    refused(StoreUnavailable, bench.store.append, work)
    refused(StoreUnavailable, bench.store.get, "run")
    refused(StoreUnavailable, bench.claim)
