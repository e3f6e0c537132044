"""Named credentials with roles, in a file that only its owner can read. Tokens are kept as digests.

A server reads the file again when it changes, so that a revoked token stops working at once. A token is 32 random bytes,
so a plain SHA-256 of it cannot be searched for.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import shlex
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.control.roles import Role, check_role, is_allowed
from holdfast.errors import InvalidInput, NotFound
from holdfast.store.opening import DEFAULT_FILE, sqlite_file

FILE_NAME: Final = "credentials.json"
FILE_VARIABLE: Final = "HOLDFAST_CREDENTIALS"
PREFIX: Final = "hf_"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


class Credential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may use the server, and as what. `digest` is the SHA-256 of the token, in hex."""

    name: str
    role: Role
    digest: str
    created_at: int
    """Seconds since 1970."""
    agents: tuple[str, ...] = ()
    """The agents whose tasks it reaches through MCP, by name; `*` for all. Without any, it cannot use MCP."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    credentials: tuple[Credential, ...] = ()


def digest_of(token: str) -> str:
    """How a token is kept and compared."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def check_name(name: str) -> str:
    """The name, or InvalidInput: it is written to logs as who decided."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a name: use 1 to 100 letters, digits and . _ @ + -, starting with a letter or digit"
        )
    return name


def _check_agents(role: Role, agents: Sequence[str]) -> tuple[str, ...]:
    if agents and not is_allowed(role, "mcp"):
        raise InvalidInput(
            f"a credential with the role {role} cannot use MCP, so it cannot be allowed agents; "
            "use --role operator"
        )
    if "" in agents:
        raise InvalidInput("the name of an allowed agent is empty")
    return tuple(dict.fromkeys(agents))


def default_file(url: str | None) -> Path:
    """Where the credentials of a store's server are: next to its file, or in this folder for other stores."""
    given = os.environ.get(FILE_VARIABLE, "")
    if given:
        return Path(given)
    file = sqlite_file(url)
    return (DEFAULT_FILE if file is None else file).parent / FILE_NAME


class Credentials:
    """The credentials of a server: those of a file, or only those that are given. Safe in threads."""

    def __init__(
        self, file: Path | None = None, *, credentials: tuple[Credential, ...] = ()
    ) -> None:
        self.file, self._given = file, credentials
        self._read: tuple[Credential, ...] = ()
        self._seen: tuple[int, ...] | None = None
        self._mutex = threading.Lock()

    def all(self) -> tuple[Credential, ...]:
        """Those that are valid now."""
        if self.file is None:
            return self._given
        with self._mutex:
            seen = _mark(self.file)
            if seen != self._seen:
                self._read, self._seen = _load(self.file), seen
            return self._read + self._given

    def find(self, token: str) -> Credential | None:
        """The credential of a token."""
        digest = digest_of(token)
        matches = [c for c in self.all() if hmac.compare_digest(c.digest, digest)]
        return matches[0] if matches else None

    def named(self, name: str) -> Credential | None:
        """The credential of a name."""
        return next((c for c in self.all() if c.name == name), None)

    def command(self, *words: str) -> str:
        """A command about these credentials that a person can paste: it names their file if it is not the default."""
        is_named = self.file is not None and self.file != default_file(None)
        file = ("--credentials", str(self.file)) if is_named else ()
        return shlex.join(("holdfast", "token", *words, *file))

    def create(self, name: str, role: str, agents: Sequence[str] = ()) -> str:
        """A new credential; its token, which is not kept and cannot be shown again."""
        token = PREFIX + secrets.token_urlsafe(32)
        checked = _check_agents(check_role(role), agents)
        made = Credential(
            check_name(name), check_role(role), digest_of(token), int(time.time()), checked
        )

        def add(credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
            if any(c.name == name for c in credentials):
                raise InvalidInput(
                    f"credential {name!r} already exists; revoke it first with `{self.command('revoke', name)}`"
                )
            return (*credentials, made)

        self._change(add)
        return token

    def revoke(self, name: str) -> None:
        """Delete a credential: its token and its sessions stop working."""

        def drop(credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
            left = tuple(c for c in credentials if c.name != name)
            if left == credentials:
                raise NotFound(f"no credential {name!r}; `{self.command('list')}` lists them")
            return left

        self._change(drop)

    def _change(self, change: Callable[[tuple[Credential, ...]], tuple[Credential, ...]]) -> None:
        assert self.file is not None
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.file):
            _write(self.file, change(_load(self.file)))


def _mark(file: Path) -> tuple[int, ...]:
    """What changes whenever the file does: it is replaced as a whole."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _load(file: Path) -> tuple[Credential, ...]:
    try:
        mode, data = file.stat().st_mode, file.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidInput(f"{file} can be read by other users; run `chmod 600 {file}`")
    try:
        return msgspec.json.decode(data, type=_File).credentials
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{file} is not a credentials file: {error}") from None


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One process at a time changes the file."""
    lock = os.open(file.with_name(file.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(file: Path, credentials: tuple[Credential, ...]) -> None:
    """Replace the file as a whole: a reader sees the old one or the new one."""
    data = msgspec.json.format(msgspec.json.encode(_File(1, credentials)), indent=2)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=FILE_NAME)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data + b"\n")
        out.flush()
        os.fsync(out.fileno())
    Path(name).replace(file)
