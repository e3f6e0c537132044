"""Passwords in the URLs of stores: hidden where people read a URL, put back where one is pasted. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

MASK: Final = "***"
"""Shown instead of a password. The command line asks for the password where a URL has this one."""


_PLACE: Final = r"""(?x)
        (?P<user>://[^:/@?]*):[^@/]*@           # postgresql://user:password@host
      | (?P<key>\b(?:ssl)?password\s*=\s*)     # password=… in a connection string or a query
        (?:'(?:\\.|[^'\\])*'? | (?:\\.|[^\s\\&])*)
    """


def without_password(url: str) -> str:
    """The same for people to read, with MASK for the password."""
    return re.sub(_PLACE, lambda match: _replaced(match, MASK), url)


def has_masked_password(url: str) -> bool:
    """Whether the password of this URL is MASK."""
    return any(_is_masked(match) for match in re.finditer(_PLACE, url))


def with_password(url: str, password: str) -> str:
    """The URL with this password in place of MASK."""
    if "://" in url:
        replacement = quote(password, safe="")
    else:
        escaped = password.replace("\\", "\\\\").replace("'", "\\'")
        replacement = f"'{escaped}'"
    return re.sub(
        _PLACE, lambda match: _replaced(match, replacement) if _is_masked(match) else match[0], url
    )


def _is_masked(match: re.Match[str]) -> bool:
    return match[0] == _replaced(match, MASK)


def _replaced(match: re.Match[str], password: str) -> str:
    """The place of a password, with another one."""
    return f"{match['user']}:{password}@" if match["user"] else f"{match['key']}{password}"
