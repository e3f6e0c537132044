"""Which errors prove that a call did not happen, and which leave it unknown. By class, without the libraries."""

from __future__ import annotations

import errno
import http.client
import smtplib
import socket
import ssl
import subprocess
import urllib.error
from email.message import Message
from typing import Any

import pytest

from holdfast import InDoubt
from holdfast.core.lost_response import may_have_happened


def lookalike(module: str, *names: str) -> Any:
    """A class with the module and name of a library's class, below its bases (the last name is the root)."""
    made: type[BaseException] = Exception
    for name in reversed(names):
        made = type(name, (made,), {"__module__": module})
    return made


def status_error(module: str, name: str, **fields: Any) -> BaseException:
    error: BaseException = lookalike(module, name)()
    for field, value in fields.items():
        setattr(error, field, value)
    return error


def answered(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x/", code, "", Message(), None)


def response(code: int) -> Any:
    return type("Response", (), {"status_code": code})()


AIO = "aiohttp.client_exceptions"
AIO_CONNECTION = ("ClientConnectionError", "ClientError")
BOTO = "botocore.exceptions"


class RpcCode:
    def __init__(self, name: str) -> None:
        self.name = name


def rpc(code: str) -> BaseException:
    error = lookalike("grpc.aio._call", "AioRpcError")
    base = lookalike("grpc", "RpcError")
    made = type(
        "AioRpcError", (base,), {"__module__": error.__module__, "code": lambda _: RpcCode(code)}
    )
    return made()  # type: ignore[no-any-return]


UNKNOWN = [
    TimeoutError("timed out"),
    socket.timeout("timed out"),  # noqa: UP041 - the old name
    ConnectionResetError(),
    BrokenPipeError(),
    ConnectionAbortedError(),
    OSError(errno.EHOSTUNREACH, "no route"),
    http.client.RemoteDisconnected(),
    http.client.IncompleteRead(b""),
    http.client.BadStatusLine(""),
    ssl.SSLError("bad record"),
    ssl.SSLEOFError("EOF"),
    urllib.error.URLError(TimeoutError("timed out")),
    urllib.error.URLError("odd"),
    answered(500),
    answered(502),
    answered(503),
    answered(504),
    smtplib.SMTPServerDisconnected("gone"),
    subprocess.TimeoutExpired("mail", 5),
    lookalike(AIO, "ServerDisconnectedError", "ServerConnectionError", *AIO_CONNECTION)(),
    lookalike(
        AIO, "SocketTimeoutError", "ServerTimeoutError", "ServerConnectionError", *AIO_CONNECTION
    )(),
    lookalike(AIO, "ClientOSError", *AIO_CONNECTION)(),
    lookalike(AIO, "ClientPayloadError", "ClientError")(),
    status_error(AIO, "ClientResponseError", status=502),
    lookalike(BOTO, "ReadTimeoutError", "HTTPClientError", "BotoCoreError")(),
    lookalike(BOTO, "ConnectionClosedError", "HTTPClientError", "BotoCoreError")(),
    status_error(BOTO, "ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 500}}),
    status_error("requests.exceptions", "HTTPError", response=response(504)),
    status_error("httpx", "HTTPStatusError", response=response(500)),
    rpc("UNAVAILABLE"),
    rpc("DEADLINE_EXCEEDED"),
    rpc("UNKNOWN"),
    InDoubt("the printer jammed"),
    ExceptionGroup("both", [ValueError("x"), ConnectionResetError()]),
]

KNOWN = [
    ValueError("no such address"),
    KeyError("to"),
    FileNotFoundError("x"),
    OSError("x"),
    ConnectionRefusedError(),
    socket.gaierror(-2, "unknown name"),
    ssl.SSLCertVerificationError("self-signed"),
    urllib.error.URLError(ConnectionRefusedError()),
    urllib.error.URLError(socket.gaierror(-2, "unknown name")),
    answered(400),
    answered(404),
    answered(429),
    answered(501),
    http.client.InvalidURL("x"),
    smtplib.SMTPAuthenticationError(535, b"no"),
    smtplib.SMTPRecipientsRefused({}),
    lookalike(AIO, "ClientConnectorError", "ClientOSError", *AIO_CONNECTION)(),
    lookalike(
        AIO, "ClientConnectorDNSError", "ClientConnectorError", "ClientOSError", *AIO_CONNECTION
    )(),
    lookalike(
        AIO,
        "ConnectionTimeoutError",
        "ServerTimeoutError",
        "ServerConnectionError",
        *AIO_CONNECTION,
    )(),
    status_error(AIO, "ClientResponseError", status=422),
    lookalike(BOTO, "EndpointConnectionError", "ConnectionError", "BotoCoreError")(),
    lookalike(BOTO, "ConnectTimeoutError", "ConnectionError", "BotoCoreError")(),
    lookalike(BOTO, "ParamValidationError", "BotoCoreError")(),
    status_error(BOTO, "ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 403}}),
    status_error("requests.exceptions", "HTTPError", response=response(404)),
    rpc("INVALID_ARGUMENT"),
    rpc("PERMISSION_DENIED"),
    lookalike("shop", "ConnectionError", "ReadTimeout")(),
    ExceptionGroup("both", [ValueError("x"), ConnectionRefusedError()]),
]


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_a_lost_response_does_not_prove_that_nothing_happened(error: BaseException) -> None:
    assert may_have_happened(error)


@pytest.mark.parametrize("error", KNOWN, ids=repr)
def test_other_errors_are_failures(error: BaseException) -> None:
    assert not may_have_happened(error)


HTTPX_UNKNOWN = (
    "ReadTimeout",
    "WriteTimeout",
    "ReadError",
    "WriteError",
    "CloseError",
    "RemoteProtocolError",
    "DecodingError",
    "TooManyRedirects",
)
HTTPX_KNOWN = (
    "ConnectError",
    "ConnectTimeout",
    "PoolTimeout",
    "ProxyError",
    "UnsupportedProtocol",
    "LocalProtocolError",
)


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_every_transport_error_of_httpx_is_known_by_its_real_class(library: str) -> None:
    httpx = pytest.importorskip(library)

    unknown = [name for name in HTTPX_UNKNOWN if may_have_happened(getattr(httpx, name)("x"))]
    known = [name for name in HTTPX_KNOWN if not may_have_happened(getattr(httpx, name)("x"))]

    assert [*HTTPX_UNKNOWN, *HTTPX_KNOWN] == unknown + known


def test_the_wrappers_of_requests_and_urllib3_are_looked_into() -> None:
    requests, urllib3 = pytest.importorskip("requests"), pytest.importorskip("urllib3")
    pool = urllib3.HTTPConnectionPool("localhost")
    refused = urllib3.exceptions.NewConnectionError(pool, "refused")
    aborted = urllib3.exceptions.ProtocolError("aborted", http.client.RemoteDisconnected())
    unsafe = urllib3.exceptions.SSLError(ssl.SSLCertVerificationError("self-signed"))
    retried = urllib3.exceptions.MaxRetryError
    errors = requests.exceptions

    unknown = [
        aborted,
        retried(pool, "/", aborted),
        errors.ConnectionError(aborted),
        errors.ReadTimeout(urllib3.exceptions.ReadTimeoutError(pool, "/", "slow")),
        errors.ChunkedEncodingError(aborted),
        errors.ConnectionError("odd"),
    ]
    known = [
        refused,
        retried(pool, "/", refused),
        errors.ConnectionError(retried(pool, "/", refused)),
        errors.ConnectTimeout(retried(pool, "/", refused)),
        errors.SSLError(retried(pool, "/", unsafe)),
        errors.MissingSchema("x"),
    ]

    assert [True] * 6 + [False] * 6 == [may_have_happened(x) for x in unknown + known]


class MailError(Exception):
    """Of the tool itself."""


def raised(*, cause: BaseException | None, explicit: bool) -> BaseException:
    try:
        try:
            raise ConnectionResetError
        except ConnectionResetError as lost:
            if explicit:
                raise MailError("not sent") from (lost if cause is ... else cause)
            raise MailError("not sent")  # noqa: B904 - what the test is about
    except MailError as error:
        return error


def test_an_error_that_was_raised_from_a_lost_response_is_one_too() -> None:
    assert may_have_happened(raised(cause=..., explicit=True))  # type: ignore[arg-type]
    assert may_have_happened(raised(cause=None, explicit=False))


def test_an_error_raised_from_none_counts_as_the_tools_own() -> None:
    assert not may_have_happened(raised(cause=None, explicit=True))


def test_an_error_that_was_raised_from_a_refused_connection_is_a_failure() -> None:
    error = MailError("not sent")
    error.__cause__ = ConnectionRefusedError()

    assert not may_have_happened(error)


def test_a_cycle_of_errors_gives_no_evidence() -> None:
    one, other = MailError("one"), MailError("other")
    one.__cause__, other.__cause__ = other, one

    assert not may_have_happened(one)


def test_what_the_tool_declares_counts() -> None:
    assert may_have_happened(MailError("x"), unsure_on=(MailError,))
    assert not may_have_happened(ValueError("x"), unsure_on=(MailError,))
