# SPDX-License-Identifier: Apache-2.0
"""The session of a client, which owns its tensors: opened when needed, and resumed by its token after its connection
breaks."""

from __future__ import annotations

import threading

import grpc

from gemmd.channel import Deadline, Metadata
from gemmd.errors import DeadlineExceeded, Error, Unavailable, from_rpc_error
from gemmd.methods import OPEN_SESSION
from gemmd.v1 import resident_pb2

SESSION_KEY = "gemmd-session"
# Delays between attempts to resume a session. After its linger time the session is gone.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
_FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
)


def may_return(error: Error) -> bool:
    """Whether a stream that ended with this error may be reopened with the same token."""
    return error.code not in _FINAL


class Session:
    """A session on one connection. A thread keeps its stream open, from the first call that needs it."""

    def __init__(self, channel: grpc.Channel, token: str, metadata: Metadata = ()) -> None:
        self._channel = channel
        self._metadata = metadata
        self._condition = threading.Condition()
        self._token = token
        self._was_joined = bool(token)
        self._opened: resident_pb2.OpenSessionResponse | None = None
        self._error: Error | None = None
        self._thread: threading.Thread | None = None
        self._stream: grpc.Call | None = None
        self._is_closing = False
        self._should_check = False  # Whether to ask the server, which has refused the token.
        self.was_lost = False  # Whether a session was lost, with its tensors.

    def open(self, deadline: Deadline) -> resident_pb2.OpenSessionResponse:
        """The session as the server describes it. Blocks until it is open."""
        with self._condition:
            if self._error is not None and (not self._was_joined or may_return(self._error)):
                # A new session replaces one that is gone. A joined session may exist again.
                self._error = self._thread = None
            if self._thread is None and self._error is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._condition.wait_for(lambda: self._opened or self._error, deadline.left())
            if self._error is not None:
                raise self._error
            if self._opened is None:
                raise DeadlineExceeded("session: the server did not open it in time")
            return self._opened

    def renew(self, refused: str, deadline: Deadline) -> resident_pb2.OpenSessionResponse:
        """Opens another session if the server has refused a call with this token, and it is still the session's."""
        with self._condition:
            if self._opened is not None and self._token == refused:
                # The server decides: its answer to the same token keeps the session or ends it.
                self._opened, self._should_check = None, True
                if self._stream is not None:
                    self._stream.cancel()
                self._condition.notify_all()
            self._condition.wait_for(lambda: self._opened or self._error or not self._thread, deadline.left())
        return self.open(deadline)

    @property
    def token(self) -> str:
        """The token; empty if there is no session."""
        return self._token

    def close(self) -> None:
        """Ends the stream; the server deletes unpinned tensors some time later."""
        with self._condition:
            self._is_closing = True
            if self._stream is not None:
                self._stream.cancel()
            self._condition.notify_all()

    def _run(self) -> None:
        pause, was_open = FIRST_PAUSE_S, False
        while True:
            error, has_opened = self._serve()
            if has_opened:
                pause, was_open = FIRST_PAUSE_S, True
            with self._condition:
                # If the first attempt fails, the waiting callers get the error. A session that was open is resumed.
                if self._is_closing or not was_open or not may_return(error):
                    self._error, self._opened = error, None
                    self.was_lost = self.was_lost or was_open
                    if not self._was_joined:
                        self._token = ""
                    self._condition.notify_all()
                    return
                self._condition.wait_for(lambda: self._is_closing or self._should_check, pause)
                self._should_check = False
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _serve(self) -> tuple[Error, bool]:
        """Keeps one stream open until it ends; returns how it ended, and whether it was open."""
        has_opened = False
        try:
            with self._condition:
                if self._is_closing:
                    return Unavailable("session: the client is closed"), False
                request = resident_pb2.OpenSessionRequest(token=self._token)
                named = [(SESSION_KEY, self._token)] if self._token else []
                stream = self._channel.unary_stream(*OPEN_SESSION)(
                    request, metadata=[*self._metadata, *named]
                )
                self._stream = stream
            for opened in stream:
                has_opened = True
                with self._condition:
                    self._opened, self._token = opened, opened.token
                    self._condition.notify_all()
        except grpc.RpcError as error:
            return from_rpc_error(error), has_opened
        except Exception as failure:
            if self._is_closing:  # gRPC raises ValueError on a closed channel.
                return Unavailable("session: the client is closed"), has_opened
            # An exception must not end this thread silently: callers waiting for the session would wait until their
            # timeout.
            return Error(f"session: {failure}"), has_opened
        return Unavailable("session: the server has ended its stream"), has_opened
