"""Being woken when a run changes: by this process at once, by others through LISTEN/NOTIFY.

A note is a hint. Behind a transaction pooler none arrive, and one may be lost with its connection;
whoever waits also looks for himself now and then.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Final

import psycopg
from psycopg import sql

from holdfast.errors import StoreError
from holdfast.store.postgres.link import Connection, sever

ANY: Final = ""
"""The subject of those who wait for any run to become due."""

RECONNECT_SECONDS: Final = 1.0


class Bell:
    """Wakes those who wait for a subject (a run's id)."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = {}

    @contextlib.contextmanager
    def waiting(self, subject: str) -> Iterator[threading.Event]:
        """An event that is set at each ring for the subject."""
        rung = threading.Event()
        with self._mutex:
            self._waiting.setdefault(subject, []).append(rung)
        try:
            yield rung
        finally:
            with self._mutex:
                self._waiting[subject].remove(rung)
                if not self._waiting[subject]:
                    del self._waiting[subject]

    def ring(self, subject: str, *, due: bool = True) -> None:
        """Wake those who wait for this subject and, if it may be due now, for any."""
        if not self._waiting:  # the usual case on the way of every append: no lock
            return
        with self._mutex:
            for rung in (
                *self._waiting.get(subject, ()),
                *(self._waiting.get(ANY, ()) if due else ()),
            ):
                rung.set()

    def ring_all(self) -> None:
        """Wake everybody: something may have been missed."""
        with self._mutex:
            for events in self._waiting.values():
                for rung in events:
                    rung.set()


class Listener:
    """A thread that passes the database's notes on to a bell. It starts when first needed."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        channel: str,
        bell: Bell,
        say: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._bell = bell
        self._say = say
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
            # Whatever fails here, polling goes on; the next attempt comes soon.
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
            self._bell.ring_all()  # for what happened while nobody listened
            proof = f"hears {secrets.token_hex(8)}"
            self._say(proof)
            for note in connection.notifies():
                if note.payload == proof:
                    self.hears = True
                elif not note.payload.startswith("hears "):
                    self._bell.ring(note.payload)
        finally:
            self.hears = False
            with self._mutex:
                self._connection = None
            connection.close()
