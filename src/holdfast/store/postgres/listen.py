"""Being woken when another process changes a run: through LISTEN/NOTIFY.

A note is a hint. Behind a transaction pooler none arrive, and one may be lost with its connection;
waiters also poll now and then.

Not here: those who wait, and how this process wakes them (`wakeups.py`).
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import sql

from holdfast.errors import StoreError
from holdfast.store.postgres.connections import Connection, sever
from holdfast.store.wakeups import Wakeups

RECONNECT_SECONDS: Final = 1.0


class Listener:
    """A thread that passes the database's notifications on to waiters. It starts when first needed."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        channel: str,
        wakeups: Wakeups,
        notify: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._wakeups = wakeups
        self._notify = notify
        self.hears = False
        """Whether notes arrive: not before one of our own, sent on another connection, has come back."""
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        with self._mutex:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._serve, name="holdfast-listen", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        with self._mutex:
            self._stopped.set()
            if self._connection is not None:
                sever(self._connection)
            thread = self._thread
        if thread is not None:
            thread.join()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            # Whatever fails here, polling continues; the next attempt comes soon.
            with contextlib.suppress(psycopg.Error, StoreError, OSError):
                self._listen()
            self._stopped.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        connection = self._connect()
        try:
            with self._mutex:
                if self._stopped.is_set():
                    return
                self._connection = connection
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._wakeups.notify_all()  # for what happened while we did not listen
            proof = f"hears {secrets.token_hex(8)}"
            self._notify(proof)
            for note in connection.notifies():
                if note.payload == proof:
                    self.hears = True
                elif not note.payload.startswith("hears "):
                    self._wakeups.notify(note.payload)
        finally:
            self.hears = False
            with self._mutex:
                self._connection = None
            connection.close()
