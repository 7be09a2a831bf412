# SPDX-License-Identifier: Apache-2.0
"""Exceptions of failed calls. The server's messages give the refused field, what it got and what it wants: ``a.data:
got 4096 bytes, want m*k*4 = 8192``. Exceptions have these three as attributes, if the message has them::

    try:
        client.matmul(a, b, kernel="no.such")
    except gemmd.NotFound as error:
        print(error.field, error.got, error.want)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import KeysView

import grpc

_REFUSAL = re.compile(r"(?P<field>[^;]+?): got (?P<got>.*), want (?P<want>.*)", re.DOTALL)


class Error(Exception):
    """A call that failed.

    Attributes:
        code: the gRPC status code.
        message: the text, from the server or from this client's own checks.
        field, got, want: the parts of a refusal; None if the message has no such parts.
        pushback_s: the retry delay in seconds that the server asked for; None if it did not.
    """

    code = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode | None = None,
        pushback_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.pushback_s = pushback_s
        parts = _REFUSAL.fullmatch(message)
        self.field = parts["field"] if parts else None
        self.got = parts["got"] if parts else None
        self.want = parts["want"] if parts else None

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class InvalidArgument(Error, ValueError):
    """A shape, type, number of bytes or option is invalid."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(Error, LookupError):
    """No such kernel, device or tensor."""

    code = grpc.StatusCode.NOT_FOUND


class OutOfRange(Error, IndexError):
    """A part lies outside of its tensor."""

    code = grpc.StatusCode.OUT_OF_RANGE


class FailedPrecondition(Error):
    """A tensor is lost, or must not be overwritten."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unimplemented(Error, NotImplementedError):
    """No kernel of the device supports the product."""

    code = grpc.StatusCode.UNIMPLEMENTED


class ResourceExhausted(Error):
    """The queue is full, a quota is used up, or a message would be too long."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(Error, TimeoutError):
    """The call exceeded its timeout, or the server predicted that it would."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(Error):
    """The call was cancelled."""

    code = grpc.StatusCode.CANCELLED


class Unavailable(Error, ConnectionError):
    """The server cannot be reached, is draining, or has lost the device."""

    code = grpc.StatusCode.UNAVAILABLE


class Aborted(Error):
    """The device's worker was replaced while the product ran."""

    code = grpc.StatusCode.ABORTED


class DataLoss(Error):
    """Data is corrupt, or D failed the server's check."""

    code = grpc.StatusCode.DATA_LOSS


class PermissionDenied(Error, PermissionError):
    """The caller may not make this call, or only from the server's host."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(Error, PermissionError):
    """The server does not know the session's token."""

    code = grpc.StatusCode.UNAUTHENTICATED


class Internal(Error):
    """A fault of the server."""

    code = grpc.StatusCode.INTERNAL


# Advice if a message would be too long.
WHERE_TOO_LONG = (
    "put large operands on the server first and keep large results there, for which there is no such limit, or raise "
    "it (max_message_bytes, and --max-message-bytes of gemmd)"
)

_CLASSES = {kind.code: kind for kind in Error.__subclasses__()}


def error_of(code: grpc.StatusCode, message: str, pushback_s: float | None = None) -> Error:
    """The exception for a status."""
    return _CLASSES.get(code, Error)(message, code, pushback_s)


def numbered_error(number: int, message: str) -> Error:
    """The exception for a status code as messages carry it."""
    code = next((c for c in grpc.StatusCode if c.value[0] == number), grpc.StatusCode.UNKNOWN)
    return error_of(code, message)


def refusal(field: str, got: object, want: str) -> InvalidArgument:
    """The exception for an argument that this client refuses, worded as the server does."""
    return InvalidArgument(f"{field}: got {got}, want {want}")


def check_names(given: KeysView[str], known: KeysView[str]) -> None:
    """Raises TypeError for unknown option names, as Python does for unknown keywords."""
    if given <= known:
        return
    unknown = sorted(given - known)
    alike = difflib.get_close_matches(unknown[0], sorted(known), n=1)
    hint = f": did you mean {alike[0]}?" if alike else ""
    raise TypeError(f"unknown options: {', '.join(unknown)}{hint}")


def from_rpc_error(error: grpc.RpcError) -> Error:
    """The exception for a failed call of grpcio, synchronous or not."""
    trailers = {key: value for key, value in error.trailing_metadata() or ()}
    pushback = trailers.get("grpc-retry-pushback-ms", "")
    pushback_s = int(pushback) / 1000 if pushback.isdigit() else None
    return error_of(error.code(), _text_of(error), pushback_s)


def _text_of(error: grpc.RpcError) -> str:
    """The text of an error. Replaces gRPC texts that say neither what happened nor what to do."""
    text = error.details() or ""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED and text in ("", "Method not found!"):
        return "the server does not know this call: it is no gemmd, or one of another version"
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in text:
        return f"{text}: {WHERE_TOO_LONG}"
    return text
