"""What a provider's client raises, as one of two errors: try again later, or do not.

Both official clients are made by the same generator, so their errors look alike: `status_code` and
`response` where the server answered, neither where it did not. Nothing of a key is ever passed on.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.agents.models.base import OnText
from holdfast.core.values import REDACTED
from holdfast.errors import ModelError, ModelRefused, ModelUnavailable

RETRY_AFTER_SECONDS_MAX: Final = 3600.0
_TRANSPORTS: Final = ("httpx2", "httpx", "httpcore2", "httpcore")
_KEYS: Final = re.compile(r"\b(?:sk|pk|key|Bearer)[-_ ][A-Za-z0-9_*.\-]{6,}")


class Malformed(Exception):
    """The provider answered with something that is not an answer, or with half of one."""


class CallbackError(Exception):
    """`on_text` raised `error`: the caller's own, whatever it is, and not the provider's."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(str(error))


def pass_text(on_text: OnText, text: str) -> None:
    """Give text to the caller's function, inside a `translated` block."""
    try:
        on_text(text)
    except Exception as error:
        raise CallbackError(error) from error


@contextlib.contextmanager
def translated(provider: str, key_variable: str, *keys: str | None) -> Iterator[None]:
    """Within this block, what the client raises becomes ModelUnavailable or ModelRefused."""
    try:
        yield
    except ModelError:
        raise
    except CallbackError as raised:
        raise raised.error from None
    except Exception as error:
        secrets = [k for k in (*keys, os.environ.get(key_variable)) if k]
        found = _model_error(error, provider, key_variable, secrets)
        if found is None:
            raise
        # `from None`: the client's own error may show what it sent.
        raise found from None


def _model_error(
    error: Exception, provider: str, key_variable: str, secrets: list[str]
) -> ModelError | None:
    package = type(error).__module__.partition(".")[0]
    said = _scrubbed(str(getattr(error, "message", None) or error), secrets)[:500]
    if isinstance(error, Malformed | json.JSONDecodeError | UnicodeDecodeError):
        return ModelUnavailable(f"{provider} sent an incomplete reply: {said}")
    if package in _TRANSPORTS:
        return ModelUnavailable(
            f"the reply of {provider} was interrupted: {type(error).__name__} {said}"
        )
    if isinstance(error, TypeError) and "authentication" in said:  # as Anthropic's client says it
        return ModelRefused(f"no key for {provider}; set {key_variable}")
    if package != provider.lower():
        return None
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return _by_status(status, said, error, provider, key_variable)
    kind = type(error).__name__
    if kind.endswith(("TimeoutError", "ConnectionError")):
        return ModelUnavailable(f"{provider} did not respond: {kind}: {said}")
    if kind.startswith("API"):  # an error in the middle of a stream has no status of its own
        return ModelUnavailable(f"{provider} interrupted its reply: {said}")
    return ModelRefused(f"{provider}: {said} (is {key_variable} set?)")


def _by_status(
    status: int, detail: str, error: Exception, provider: str, key_variable: str
) -> ModelError:
    text = f"{provider} returned {status}: {detail}"
    out_of_money = getattr(error, "code", None) == "insufficient_quota"
    if (status in (408, 409, 429) or status >= 500) and not out_of_money:
        headers = getattr(getattr(error, "response", None), "headers", {})
        return ModelUnavailable(text, status=status, retry_after=retry_after(headers))
    return ModelRefused(
        f"{text}. {_ADVICE.get(status, _WRONG).format(key_variable)}", status=status
    )


_WRONG: Final = (
    "The request is invalid, so it is not retried; if it is too long, lower max_context_tokens"
)
_ADVICE: Final = {
    401: "Check the key in {}; it is not shown here",
    403: "The key in {} does not have permission",
    404: "Check the model's name and the base URL",
    429: "The account's quota is exhausted",
}


def retry_after(headers: Mapping[str, Any]) -> float | None:
    """How many seconds the server asks us to wait, if it does."""
    text = str(headers.get("retry-after", "")).strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(text)
        except ValueError:
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=datetime.UTC)
        seconds = (when - datetime.datetime.now(datetime.UTC)).total_seconds()
    return min(seconds, RETRY_AFTER_SECONDS_MAX) if seconds > 0 else None


def _scrubbed(text: str, secrets: list[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return _KEYS.sub(REDACTED, text)
