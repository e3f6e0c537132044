"""Does an error prove that a call did not happen? Or was only the response lost?

A refused connection proves it: nothing was sent. A read timeout does not: the server may have acted. Errors are
recognised by the package and name of their classes, most specific first, so that no library is imported here.
An error that is not listed proves nothing; then the error that it was raised from decides.

Not here: what becomes of a call whose outcome is unknown (`runtime/call/recover.py`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any, Final, Literal

from holdfast.errors import InDoubt

Outcome = Literal["unknown", "not sent", "answered", ""]

_HTTPX_UNKNOWN: Final = "RequestError TimeoutException NetworkError ProtocolError"
_HTTPX_PROVEN: Final = (
    "ConnectError ConnectTimeout PoolTimeout ProxyError UnsupportedProtocol LocalProtocolError"
)

_UNKNOWN: Final = {
    "builtins": "TimeoutError ConnectionResetError BrokenPipeError ConnectionAbortedError",
    "ssl": "SSLError",
    "http": "BadStatusLine IncompleteRead LineTooLong UnknownTransferEncoding UnknownProtocol",
    "urllib": "ContentTooShortError",
    "smtplib": "SMTPServerDisconnected",
    "subprocess": "TimeoutExpired",
    "httpx": _HTTPX_UNKNOWN,
    "httpx2": _HTTPX_UNKNOWN,
    "httpcore": _HTTPX_UNKNOWN,
    "httpcore2": _HTTPX_UNKNOWN,
    "requests": "Timeout ChunkedEncodingError ContentDecodingError TooManyRedirects",
    "urllib3": "HTTPError",
    "aiohttp": "ClientConnectionError ClientPayloadError RedirectClientError TooManyRedirects UploadAbortedError "
    "InvalidUrlRedirectClientError NonHttpUrlRedirectClientError",
    "botocore": "HTTPClientError ConnectionError IncompleteReadError",
}
"""By package: the outcome is unknown. A base class stands for all of its subclasses that are not listed."""

_PROVEN: Final = {
    "builtins": "ConnectionRefusedError",
    "socket": "gaierror herror",
    "ssl": "SSLCertVerificationError",
    "httpx": _HTTPX_PROVEN,
    "httpx2": _HTTPX_PROVEN,
    "httpcore": _HTTPX_PROVEN,
    "httpcore2": _HTTPX_PROVEN,
    "requests": "ConnectTimeout",
    "urllib3": "NewConnectionError ConnectTimeoutError EmptyPoolError FullPoolError ClosedPoolError "
    "LocationValueError InvalidHeader TimeoutStateError",
    "aiohttp": "ClientConnectorError ConnectionTimeoutError ServerFingerprintMismatch InvalidURL "
    "NonHttpUrlClientError",
    "botocore": "EndpointConnectionError ConnectTimeoutError ProxyConnectionError",
}
"""By package: nothing was sent."""

_WRAPPERS: Final = {
    "urllib": "URLError",
    "requests": "ConnectionError RetryError",
    "urllib3": "MaxRetryError SSLError ProxyError",
    "botocore": "SSLError",
}
"""By package: the error that is wrapped decides. If it is not listed, the outcome is unknown."""

_STATUS: Final = {
    "urllib": "HTTPError",
    "httpx": "HTTPStatusError",
    "httpx2": "HTTPStatusError",
    "requests": "HTTPError",
    "aiohttp": "ClientResponseError",
    "botocore": "ClientError",
}
"""By package: the server answered with an HTTP status, which decides."""

_STATUS_PROVEN: Final = (501, 505, 511)
"""Besides 4xx: the server did not know what to do with the request. Any other 5xx may follow an effect, and is
what gateways send for a response that they lost."""

_GRPC_UNKNOWN: Final = (
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "UNKNOWN",
    "INTERNAL",
    "CANCELLED",
    "DATA_LOSS",
)

_ERRNO_UNKNOWN: Final = (
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENOTCONN,
)
"""Also reported for a connection that was established, after the request was sent."""


def may_have_happened(
    error: BaseException, unsure_on: tuple[type[BaseException], ...] = ()
) -> bool:
    """Whether a call that raised this may still have happened. `unsure_on` is what the tool declares."""
    return isinstance(error, unsure_on) or _outcome(error, []) == "unknown"


def was_not_sent(error: BaseException) -> bool:
    """Whether an attempt that raised this did not reach the receiver: so it says nothing of earlier attempts."""
    return _outcome(error, []) == "not sent"


def _outcome(error: BaseException, seen: list[BaseException]) -> Outcome:
    """What an error, or the one that it was raised from, says of the call; empty if it does not say."""
    if any(error is other for other in seen):
        return ""
    seen.append(error)
    if isinstance(error, InDoubt):
        return "unknown"
    if isinstance(error, BaseExceptionGroup):
        found = [_outcome(part, seen) for part in error.exceptions]
        return "unknown" if "unknown" in found else ""
    for cls in type(error).__mro__:
        package, name = cls.__module__.partition(".")[0], cls.__name__
        if name in _WRAPPERS.get(package, "").split():
            return next(filter(None, _each(_wrapped(error), seen)), "unknown")
        if name in _STATUS.get(package, "").split():
            return _outcome_of_status(_status(error))
        if name in _PROVEN.get(package, "").split():
            return "not sent"
        if name in _UNKNOWN.get(package, "").split():
            return "unknown"
        if (package, name) == ("grpc", "RpcError"):
            return "unknown" if _grpc_code(error) in _GRPC_UNKNOWN else "answered"
    if isinstance(error, OSError) and error.errno in _ERRNO_UNKNOWN:
        return "unknown"
    return next(filter(None, _each(_origin(error), seen)), "")


def _each(errors: Iterator[BaseException], seen: list[BaseException]) -> Iterator[Outcome]:
    return (_outcome(error, seen) for error in errors)


def _origin(error: BaseException) -> Iterator[BaseException]:
    """The error that this one was raised from. `raise … from None` says that there is none."""
    if error.__cause__ is not None:
        yield error.__cause__
    elif error.__context__ is not None and not error.__suppress_context__:
        yield error.__context__


def _wrapped(error: BaseException) -> Iterator[BaseException]:
    """The errors inside a wrapper, where these libraries keep them."""
    inside = (getattr(error, "reason", None), getattr(error, "original_error", None), *error.args)
    yield from (x for x in inside if isinstance(x, BaseException))
    yield from _origin(error)


def _status(error: Any) -> object:
    """The HTTP status of an error, where these libraries keep it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    found = getattr(response, "status_code", None) or getattr(error, "status", None)
    return found or getattr(error, "code", None)


def _outcome_of_status(status: object) -> Outcome:
    refused = isinstance(status, int) and (400 <= status < 500 or status in _STATUS_PROVEN)
    return "answered" if refused else "unknown"


def _grpc_code(error: Any) -> str:
    code = getattr(error, "code", None)
    return str(getattr(code(), "name", "UNKNOWN")) if callable(code) else "UNKNOWN"
