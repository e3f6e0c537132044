"""Creating runs in PostgreSQL: a batch of them in one transaction and one round trip.

A run that exists already is returned; so is one that we created ourselves, if the response was lost.

Not here: what may be created (`checks.py`), whether what is there was meant (`base.Creation`), how
batches form (`group.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import StoreError
from holdfast.store.base import Append, Creation, RunRow
from holdfast.store.postgres import arrays
from holdfast.store.postgres.appends import Appends, columns
from holdfast.store.postgres.connections import Connection, Pool, is_about_one
from holdfast.store.postgres.timeline import StoreContext


class Creating:
    """Writes batches of new runs."""

    def __init__(self, pool: Pool, appends: Appends, context: StoreContext) -> None:
        self._pool, self._appends = pool, appends
        self._q, self._wakeups, self._channel, self._fixed_now, self._history = context

    def commit(self, batch: Sequence[Creation]) -> Sequence[Exception | None]:
        """Create a batch of runs; for each None, or why it was refused."""
        try:
            made = self._pool.run(lambda db, unsure: self._create(db, batch, unsure))
        except StoreError as error:
            if len(batch) == 1 or not is_about_one(error):
                return [error] * len(batch)
            return [self.commit([creation])[0] for creation in batch]
        outcome: list[Exception | None] = []
        for creation, (row, is_new) in zip(batch, made, strict=True):
            outcome.append(creation.settle(row, is_new))
            if is_new:
                self._history.remember(row.id, creation.records, 1 if creation.worker else 0)
            self._wakeups.notify(row.id)
        return outcome

    def _create(
        self, db: Connection, batch: Sequence[Creation], unsure: bool
    ) -> list[tuple[RunRow, bool]]:
        """All of them in one transaction and one round trip; and those that were there already."""
        with db.pipeline():
            db.begin()
            # In one order everywhere, so that two batches with the same ids do not wait for each other.
            answers = {
                i: db.execute(self._q["create_run"], self._new_row(batch[i]))
                for i in sorted(range(len(batch)), key=lambda i: batch[i].run.id)
            }
            db.execute("COMMIT")
        return [
            (RunRow(*made[:-1]), True)
            if (made := answers[i].fetchone())
            else self._found(db, batch[i], unsure)
            for i in range(len(batch))
        ]

    def _found(self, db: Connection, creation: Creation, unsure: bool) -> tuple[RunRow, bool]:
        """The run that was there already; with `unsure` it may be the one that we created."""
        run_id = creation.run.id
        row = RunRow(*db.rows(self._q["run"], (run_id,))[0])
        ours = unsure and row.owner == creation.worker
        expected = Append(run_id, -1, creation.records)
        return row, ours and self._appends.are_stored(db, [expected])[0]

    def _new_row(self, creation: Creation) -> dict[str, Any]:
        run, worker, blobs = creation.run, creation.worker, creation.blobs
        return {
            "id": run.id,
            "agent": run.agent,
            "worker": worker,
            "epoch": 1 if worker else 0,
            "lease": creation.lease_us if worker else 0,
            "claimed_seq": len(creation.records) - 1 if worker else -1,
            "input_digest": run.input_digest,
            "code_version": run.code_version,
            "parent": run.parent,
            "priority": run.priority,
            "now": self._fixed_now(),
            "channel": self._channel,
            "blob_hashes": arrays.texts([blob.hash for blob in blobs]),
            "blob_datas": arrays.blobs([blob.data for blob in blobs]),
            "keys": arrays.texts([key for key, _ in creation.keys]),
            "key_seqs": arrays.longs([seq for _, seq in creation.keys]),
            **columns(creation.records),
        }
