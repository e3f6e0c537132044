"""People who are signed in with a browser. Kept in memory: after a restart of the server they sign in again.

A session cookie is a random name; only its digest is kept. One-time links sign in once, within some minutes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.control.roles import Role
from holdfast.web.credentials import digest_of

SESSIONS_MAX: Final = 10_000
SESSION_SECONDS: Final = 12 * 3600
LINK_SECONDS: Final = 15 * 60


@dataclass(frozen=True, slots=True)
class WebSession:
    """A person who is signed in. `credential` is the digest of the token; empty for the one-time link of the server's
    own user, who needs no credential."""

    name: str
    role: Role
    credential: str
    ends_at: float


class WebSessions:
    """The sessions and one-time links of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, WebSession] = {}
        self._links: dict[str, WebSession] = {}
        self._key = secrets.token_bytes(32)

    def open(self, name: str, role: Role, credential: str) -> str:
        """Sign in; the cookie's value."""
        self._sweep()
        cookie = secrets.token_urlsafe(32)
        ends_at = self._clock() + SESSION_SECONDS
        self._open[digest_of(cookie)] = WebSession(name, role, credential, ends_at)
        return cookie

    def find(self, cookie: str) -> WebSession | None:
        found = self._open.get(digest_of(cookie))
        return found if found is not None and found.ends_at > self._clock() else None

    def close(self, cookie: str) -> None:
        """Sign out."""
        self._open.pop(digest_of(cookie), None)

    def link(self, name: str, role: Role, credential: str = "") -> str:
        """The secret of a link that signs in once."""
        secret = secrets.token_urlsafe(32)
        ends_at = self._clock() + LINK_SECONDS
        self._links[digest_of(secret)] = WebSession(name, role, credential, ends_at)
        return secret

    def follow(self, secret: str) -> WebSession | None:
        """Whom a link signs in; it works once."""
        found = self._links.pop(digest_of(secret), None)
        return found if found is not None and found.ends_at > self._clock() else None

    def csrf(self, who: str) -> str:
        """The token that forms of this session (or of this user of a proxy) carry."""
        return hmac.new(self._key, who.encode(), hashlib.sha256).hexdigest()

    def _sweep(self) -> None:
        """Forget sessions that have ended, and the oldest if there are too many."""
        now = self._clock()
        self._open = {k: s for k, s in self._open.items() if s.ends_at > now}
        while len(self._open) >= SESSIONS_MAX:
            del self._open[next(iter(self._open))]
