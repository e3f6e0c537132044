"""A network between a client and PostgreSQL that fails on command.

    with Proxy(server.dsn()) as proxy:
        client = psycopg.connect(proxy.dsn)
        proxy.swallow_answer()      # the next COMMIT reaches the server, its answer is lost
        proxy.black_hole()          # nothing passes, nothing is refused, until heal()
        proxy.delay(0.2)            # every packet late, each way
        proxy.cut()                 # all connections break now; new ones are fine
        proxy.refuse()              # all connections break, new ones too, until heal()

It understands the frames of PostgreSQL's protocol (not their meaning), so that a fault can be tied
to one client message by a predicate over its bytes. TLS must be off, as it is on a test server.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit, urlunsplit

CHUNK_BYTES = 65536
# A client's first messages have no type byte; these two ask for encryption and are followed by
# another such message, because the test server declines.
ENCRYPTION_REQUESTS = {80877103, 80877104}
ANSWERED = (b"Q", b"S", b"F")  # simple query, sync, function call: the server speaks after these


def commits(message: bytes) -> bool:
    """Whether a client message asks for a COMMIT, as a simple query or as a parsed statement."""
    return message[:1] in {b"Q", b"P"} and b"COMMIT" in message.upper()


def says(text: str) -> Callable[[bytes], bool]:
    """A predicate: the client's query contains `text`, in any case of letters."""
    wanted = text.upper().encode()
    return lambda message: message[:1] in {b"Q", b"P"} and wanted in message.upper()


@dataclass
class Trap:
    """An answer that will be lost. `sprung` is set once the server has finished the doomed work."""

    matching: Callable[[bytes], bool]
    occurrence: int
    sprung: threading.Event
    seen: int = 0

    def catches(self, message: bytes) -> bool:
        self.seen += self.matching(message)
        return self.seen == self.occurrence and self.matching(message)


class Proxy:
    """Listens on a loopback port of its own and passes everything on to the server of `dsn`."""

    def __init__(self, dsn: str) -> None:
        self._url = urlsplit(dsn)
        if not self._url.hostname or not self._url.port:
            raise ValueError("a proxy stands before a host and a port, not before a unix socket")
        self._target = (self._url.hostname, self._url.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._trap: Trap | None = None
        self._refusing = False
        self._closed = False
        self.delay_seconds = 0.0
        self.flowing = threading.Event()
        self.flowing.set()
        self._acceptor = threading.Thread(target=self._accept, name="proxy-accept", daemon=True)
        self._acceptor.start()

    @property
    def dsn(self) -> str:
        """The server's DSN, through this proxy."""
        return self.through(urlunsplit(self._url))

    def through(self, dsn: str) -> str:
        """Another DSN of the same server (another database, say), through this proxy."""
        url = urlsplit(dsn)
        credentials, _, _ = url.netloc.rpartition("@")
        address = f"127.0.0.1:{self.port}"
        return urlunsplit(
            url._replace(netloc=f"{credentials}@{address}" if credentials else address)
        )

    # -- faults ----------------------------------------------------------------------------

    def swallow_answer(
        self, matching: Callable[[bytes], bool] = commits, *, occurrence: int = 1
    ) -> threading.Event:
        """Lose the server's answer to a message, then the connection.

        The message (the `occurrence`-th from now, over all connections, for which `matching` is
        true) is delivered and the server carries it out; the client gets no answer but a closed
        connection, and cannot know. Returns an event, set before the client sees the loss.
        """
        trap = Trap(matching, occurrence, threading.Event())
        with self._lock:
            self._trap = trap
        return trap.sprung

    def cut(self) -> None:
        """Break every connection now, in both directions."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.cut()

    def refuse(self) -> None:
        """Break every connection and accept no new one until `heal()`."""
        self._refusing = True
        self.cut()

    def black_hole(self) -> None:
        """Let nothing through, in silence, until `heal()`; what was sent meanwhile then arrives."""
        self.flowing.clear()

    def delay(self, seconds: float) -> None:
        """Hold every packet for so long, in each direction."""
        self.delay_seconds = seconds

    def heal(self) -> None:
        """Be a good network again. An answer already swallowed stays lost."""
        self.delay_seconds = 0.0
        self._refusing = False
        with self._lock:
            self._trap = None
        self.flowing.set()

    # -- life ------------------------------------------------------------------------------

    def close(self) -> None:
        """Break everything and wait until the proxy's threads are gone."""
        self._closed = True
        # A thread blocked in accept() is woken by shutdown(), not by close().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.cut()
        for connection in connections:
            connection.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing or self._closed:
                _reset(client)
                client.close()
                continue
            connection = _Connection(self, client, self._target)
            with self._lock:
                self._connections.add(connection)
            connection.start()

    def _forget(self, connection: "_Connection") -> None:
        with self._lock:
            self._connections.discard(connection)

    def _spring(self, message: bytes) -> Trap | None:
        """The trap, if this message is the one it waits for. It catches once."""
        with self._lock:
            trap = self._trap
            if trap is None or not trap.catches(message):
                return None
            self._trap = None
            return trap


class _Connection:
    """One client's connection: a thread for each direction, a way to break both."""

    def __init__(self, proxy: Proxy, client: socket.socket, target: tuple[str, int]) -> None:
        self._proxy = proxy
        self._client = client
        self._target = target
        self._server: socket.socket | None = None
        self._broken = threading.Event()
        self._trap: Trap | None = None
        self._upward = threading.Thread(target=self._run, name="proxy-up", daemon=True)
        self._downward = threading.Thread(target=self._pass_answers, name="proxy-down", daemon=True)

    def start(self) -> None:
        self._upward.start()

    def join(self) -> None:
        self._upward.join()

    def cut(self) -> None:
        """Break both sides. The sockets are only closed by the thread that owns them."""
        self._broken.set()
        for side in (self._client, self._server):
            if side is not None:
                _reset(side)

    def _run(self) -> None:
        """The client's direction, from connecting to the end of both directions."""
        try:
            with contextlib.suppress(OSError):
                if self._may_pass():
                    self._server = socket.create_connection(self._target)
                    if self._broken.is_set():  # cut() came while there was no server to cut
                        return
                    self._downward.start()
                    self._pass_questions()
        finally:
            if self._downward.ident is not None:
                self._downward.join()
            self._client.close()
            if self._server is not None:
                self._server.close()
            self._proxy._forget(self)

    def _pass_questions(self) -> None:
        assert self._server is not None
        try:
            for message in _frames(self._client):
                if not self._may_pass():
                    return
                # Set before the message leaves, so that its answer cannot slip through.
                self._trap = self._trap or self._proxy._spring(message)
                self._server.sendall(message)
                # A parsed statement is carried out only with the Sync that follows it.
                if self._trap and message[:1] in ANSWERED:
                    break
        finally:
            # The server reads what is left, carries it out, sees the end, and hangs up.
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_WR)

    def _pass_answers(self) -> None:
        assert self._server is not None
        with contextlib.suppress(OSError):
            while chunk := self._server.recv(CHUNK_BYTES):
                if self._trap:
                    continue
                if not self._may_pass():
                    break
                self._client.sendall(chunk)
        # Only at the server's end of file is its work known to be done.
        if self._trap:
            self._trap.sprung.set()
        # Wakes the other direction, and tells the client.
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def _may_pass(self) -> bool:
        """Wait out delay and black hole; False if the connection was cut meanwhile."""
        self._broken.wait(self._proxy.delay_seconds)
        while not self._broken.is_set() and not self._proxy.flowing.wait(0.05):
            pass
        return not self._broken.is_set()


def _reset(side: socket.socket) -> None:
    """Make a socket's end abrupt (RST at close, not FIN) and wake the thread that waits on it."""
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.shutdown(socket.SHUT_RDWR)


def _frames(client: socket.socket) -> Iterator[bytes]:
    """A client's messages one by one, each with its header; ends with the connection."""
    buffer = bytearray()
    header = 4  # the first messages are only length and content
    while True:
        while len(buffer) >= header:
            (length,) = struct.unpack_from("!i", buffer, header - 4)
            end = header - 4 + length
            if len(buffer) < end:
                break
            message = bytes(buffer[:end])
            del buffer[:end]
            if header == 4 and struct.unpack_from("!i", message, 4)[0] not in ENCRYPTION_REQUESTS:
                header = 5
            yield message
        chunk = client.recv(CHUNK_BYTES)
        if not chunk:
            return
        buffer += chunk
