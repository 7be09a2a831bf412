# SPDX-License-Identifier: Apache-2.0
"""Many products on one stream, for the synchronous client."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    """Products answered as they finish; products waiting for the connection share a message.

    ::

        with client.stream() as stream:
            futures = [stream.submit(a, b) for a, b in pairs]
            results = [future.result().array for future in futures]

    The end of the ``with`` block waits for all answers. Any thread may use a stream. Arrays must not change until their
    product is answered.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        timeout: float | None,
        metadata: Metadata,
        max_bytes: int,
        restorables: Restorables,
        send_alone: Callable[[Request, float | None], Answer],
    ) -> None:
        self._max_bytes = max_bytes
        self._restorables = restorables
        # Sends a product as a call of its own, which restores its tensors; on a thread, since it may take long.
        self._send_alone = send_alone
        self._alone = ThreadPoolExecutor(1, "gemmd-stream")
        self._condition = threading.Condition()
        self._queue = Queue(max_bytes)
        self._owner = Owner(self)
        self._is_closed = False
        self._error: Error | None = None
        call = channel.stream_stream(*MULTIPLY_STREAM)
        limit = None if timeout is None else checked_timeout(timeout)
        self._deadline = None if limit is None else Deadline(limit)
        self._call = call(self._messages(), timeout=limit, metadata=metadata)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def submit(self, a: Any, b: Any, **options: Unpack[ProductOptions]) -> Future[Product]:
        """Sends a product with the arguments of `gemmd.Client.multiply`. Blocks while 1024 products are unanswered."""
        self._owner.check("stream")
        request = build_request(a, b, options)
        is_restorable = bool(self._restorables.translate(request))
        request.check_size(self._max_bytes - HEAD_BYTES)
        future: Future[Product] = Future()
        future.set_running_or_notify_cancel()
        with self._condition:
            self._condition.wait_for(lambda: len(self._queue) < MAX_UNANSWERED or self._is_closed)
            if self._is_closed:
                raise self._error or Cancelled("stream: it is closed")
            self._queue.add(request, future, is_restorable)
            self._condition.notify_all()
        return future

    def map(
        self, pairs: Iterable[tuple[Any, Any]], **options: Unpack[ProductOptions]
    ) -> Iterator[Product]:
        """The products of pairs of operands, in order; at most 1024 are in progress at a time."""
        under_way: deque[Future[Product]] = deque()
        for a, b in pairs:
            if len(under_way) == MAX_UNANSWERED:
                yield under_way.popleft().result()
            under_way.append(self.submit(a, b, **options))
        while under_way:
            yield under_way.popleft().result()

    def close(self) -> None:
        """Stops sending, and waits for all answers."""
        self._owner.check("stream")
        self._close(None)
        self._reader.join()

    def cancel(self) -> None:
        """Ends the stream; products without an answer fail with `Cancelled`."""
        self._owner.check("stream")
        self._call.cancel()
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._owner.is_here:
            return
        if kind is None:
            self.close()
        else:
            self.cancel()

    def _messages(self) -> Iterator[list[Request]]:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue.has_waiting or self._is_closed)
                requests = self._queue.take()
            if not requests:
                return
            yield requests

    def _read(self) -> None:
        error: Error | None = None
        try:
            for answers in self._call:
                with self._condition:
                    for number, outcome in answers:
                        request = self._queue.restorable(number) if lost(outcome) else None
                        if request is not None:
                            self._alone.submit(self._restore, number, request)
                        else:
                            self._queue.answer(number, outcome)
                    self._condition.notify_all()
        except grpc.RpcError as ended:
            error = from_rpc_error(ended)
        # Products that are sent alone end in any case, but are not waited for once the stream has failed.
        self._alone.shutdown(wait=error is None, cancel_futures=error is not None)
        if error is None and not (self._is_closed and len(self._queue) == 0):
            error = Unavailable("stream: the server ended it")
        self._close(error)

    def _restore(self, number: str, request: Request) -> None:
        outcome: Answer | Error
        try:
            left = None if self._deadline is None else max(self._deadline.left(), MIN_TIMEOUT_S)
            outcome = self._send_alone(request, left)
        except Error as error:
            outcome = error
        with self._condition:
            self._queue.answer(number, outcome)
            self._condition.notify_all()

    def _close(self, error: Error | None) -> None:
        with self._condition:
            self._is_closed = True
            if error is not None:
                self._error = error
                self._queue.fail(error)
            self._condition.notify_all()
