# SPDX-License-Identifier: Apache-2.0
"""Many products on one stream, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self, Unpack

import grpc

from gemmd.channel import Deadline, Metadata, checked_timeout
from gemmd.errors import Cancelled, Error, Unavailable, from_rpc_error
from gemmd.joint import HEAD_BYTES, MAX_UNANSWERED, Queue
from gemmd.methods import MULTIPLY_STREAM
from gemmd.ownership import Owner
from gemmd.product import Answer, Product, ProductOptions, Request, build_request
from gemmd.restore import MIN_TIMEOUT_S, Restorables, lost


class Stream:
    """As `gemmd.Stream`.

    ::

        async with client.stream() as stream:
            futures = [await stream.submit(a, b) for a, b in pairs]
            results = [(await future).array for future in futures]
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        timeout: float | None,
        metadata: Metadata,
        max_bytes: int,
        restorables: Restorables,
        send_alone: Callable[[Request, float | None], Awaitable[Answer]],
    ) -> None:
        self._max_bytes = max_bytes
        self._restorables = restorables
        self._send_alone = send_alone
        self._alone: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._queue = Queue(max_bytes)
        self._owner = Owner(self)
        self._is_closed = False
        self._error: Error | None = None
        method = channel.stream_stream(*MULTIPLY_STREAM)
        limit = None if timeout is None else checked_timeout(timeout)
        self._deadline = None if limit is None else Deadline(limit)
        self._call = method(timeout=limit, metadata=tuple(metadata))
        self._writer = asyncio.create_task(self._write())
        self._reader = asyncio.create_task(self._read())

    async def submit(
        self, a: Any, b: Any, **options: Unpack[ProductOptions]
    ) -> asyncio.Future[Product]:
        """As `gemmd.Stream.submit`; the future is to be awaited."""
        self._owner.check("stream")
        request = build_request(a, b, options)
        is_restorable = bool(self._restorables.translate(request))
        request.check_size(self._max_bytes - HEAD_BYTES)
        async with self._changed:
            await self._changed.wait_for(
                lambda: len(self._queue) < MAX_UNANSWERED or self._is_closed
            )
            if self._is_closed:
                raise self._error or Cancelled("stream: it is closed")
            future: asyncio.Future[Product] = asyncio.get_running_loop().create_future()
            self._queue.add(request, future, is_restorable)
            self._changed.notify_all()
        return future

    async def close(self) -> None:
        """Stops sending, and waits for all answers."""
        self._owner.check("stream")
        await self._close(None)
        await self._reader

    async def cancel(self) -> None:
        """Ends the stream; products without an answer fail with `gemmd.Cancelled`."""
        self._owner.check("stream")
        self._call.cancel()
        await self._reader

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._owner.is_here:
            return
        await (self.close() if kind is None else self.cancel())

    async def _write(self) -> None:
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._queue.has_waiting or self._is_closed)
                    requests = self._queue.take()
                if not requests:
                    await self._call.done_writing()
                    return
                await self._call.write(requests)
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # The reader gets the reason.

    async def _read(self) -> None:
        error: Error | None = None
        try:
            while (answers := await self._call.read()) is not grpc.aio.EOF:
                async with self._changed:
                    for number, outcome in answers:
                        request = self._queue.restorable(number) if lost(outcome) else None
                        if request is not None:
                            self._alone.add(asyncio.create_task(self._restore(number, request)))
                        else:
                            self._queue.answer(number, outcome)
                    self._changed.notify_all()
        except grpc.RpcError as ended:
            error = from_rpc_error(ended)
        except asyncio.CancelledError:
            error = Cancelled("stream: it was cancelled")
        if error is not None:
            for task in self._alone:
                task.cancel()
        await asyncio.gather(*self._alone, return_exceptions=True)
        if error is None and not (self._is_closed and len(self._queue) == 0):
            error = Unavailable("stream: the server ended it")
        await self._close(error)
        self._writer.cancel()

    async def _restore(self, number: str, request: Request) -> None:
        outcome: Answer | Error
        try:
            left = None if self._deadline is None else max(self._deadline.left(), MIN_TIMEOUT_S)
            outcome = await self._send_alone(request, left)
        except Error as error:
            outcome = error
        async with self._changed:
            self._queue.answer(number, outcome)
            self._changed.notify_all()

    async def _close(self, error: Error | None) -> None:
        async with self._changed:
            self._is_closed = True
            if error is not None:
                self._error = error
                self._queue.fail(error)
            self._changed.notify_all()
