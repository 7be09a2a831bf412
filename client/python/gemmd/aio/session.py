# SPDX-License-Identifier: Apache-2.0
"""The session of a client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc

from gemmd.channel import Deadline, Metadata
from gemmd.errors import Cancelled, DeadlineExceeded, Error, Unavailable, from_rpc_error
from gemmd.methods import OPEN_SESSION
from gemmd.session import FIRST_PAUSE_S, LONGEST_PAUSE_S, SESSION_KEY, may_return
from gemmd.v1 import resident_pb2


class Session:
    """As `gemmd.session.Session`, with a task that keeps the stream open."""

    def __init__(
        self, lane: Callable[[int], grpc.aio.Channel], token: str, metadata: Metadata = ()
    ) -> None:
        self._lane = lane
        self._metadata = metadata
        self._was_joined = bool(token)
        self._opened: asyncio.Future[resident_pb2.OpenSessionResponse] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stream: grpc.aio.UnaryStreamCall | None = None
        self._should_check = asyncio.Event()  # Whether to ask the server, which has refused the token.
        self.was_lost = False  # Whether a session was lost, with its tensors.
        self.token = token

    async def open(self, timeout: float) -> resident_pb2.OpenSessionResponse:
        """The session as the server describes it, once opened."""
        error = self._opened.exception() if self._opened is not None and self._opened.done() else None
        is_gone = isinstance(error, Error) and (not self._was_joined or may_return(error))
        if self._opened is None or is_gone:
            self._opened = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run())
        try:
            return await asyncio.wait_for(asyncio.shield(self._opened), timeout)
        except TimeoutError as late:
            if isinstance(late, Error):
                raise
            raise DeadlineExceeded("session: the server did not open it in time") from None

    async def renew(self, refused: str, deadline: Deadline) -> resident_pb2.OpenSessionResponse:
        """As `gemmd.session.Session.renew`."""
        opened = self._opened
        if opened is not None and opened.done() and opened.exception() is None and self.token == refused:
            self._opened = asyncio.get_running_loop().create_future()
            self._should_check.set()
            if self._stream is not None:
                self._stream.cancel()
        with contextlib.suppress(Error):
            await self.open(deadline.left())
        return await self.open(deadline.left())

    async def close(self) -> None:
        """Ends the stream."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._opened is not None and self._opened.done():
            self._opened.exception()  # Possibly never retrieved otherwise.

    async def _run(self) -> None:
        self._should_check.clear()
        pause, was_open = FIRST_PAUSE_S, False
        while True:
            error, has_opened = await self._serve()
            if has_opened:
                pause, was_open = FIRST_PAUSE_S, True
            if not was_open or not may_return(error):
                self.was_lost = self.was_lost or was_open
                self._fail(error)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._should_check.wait(), pause)
            self._should_check.clear()
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _serve(self) -> tuple[Error, bool]:
        has_opened = False
        metadata = (*self._metadata, *(((SESSION_KEY, self.token),) if self.token else ()))
        try:
            request = resident_pb2.OpenSessionRequest(token=self.token)
            self._stream = self._lane(0).unary_stream(*OPEN_SESSION)(request, metadata=metadata)
            async for opened in self._stream:
                has_opened = True
                self.token = opened.token
                self._take(opened)
        except grpc.RpcError as error:
            return from_rpc_error(error), has_opened
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not self._should_check.is_set():
                raise
            return Cancelled("session: its token was refused"), has_opened
        except Exception as failure:
            # An exception must not end this task silently: callers waiting for the session would wait until their
            # timeout.
            return Error(f"session: {failure}"), has_opened
        return Unavailable("session: the server has ended its stream"), has_opened

    def _take(self, opened: resident_pb2.OpenSessionResponse) -> None:
        if self._opened is None or self._opened.done():
            self._opened = asyncio.get_running_loop().create_future()
        self._opened.set_result(opened)

    def _fail(self, error: Error) -> None:
        if self._opened is None or self._opened.done():
            self._opened = asyncio.get_running_loop().create_future()
        self._opened.set_exception(error)
        if not self._was_joined:
            self.token = ""
