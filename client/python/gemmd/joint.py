# SPDX-License-Identifier: Apache-2.0
"""Messages that carry several products of a stream."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from gemmd.errors import Error, numbered_error
from gemmd.memory import messages
from gemmd.product import Answer, Product, Request
from gemmd.v1 import gemm_pb2
from gemmd.wire import Buffer, fields, head, without

MAX_UNANSWERED = 1024  # The server stops reading while this many are unanswered.
_MAX_PRODUCTS = 256
HEAD_BYTES = 32  # Max overhead of a product in a joint message.
_MAX_BYTES = 4 << 20  # Max size of a message of several products.

AnyFuture: TypeAlias = "concurrent.futures.Future[Product] | asyncio.Future[Product]"


@dataclass
class Pending:
    """A product of a stream."""

    request: Request
    future: AnyFuture
    own_id: str  # The caller's id; on the stream, a number replaces it.
    is_restorable: bool  # Names tensors that the client can put again.


class Queue:
    """The products of a stream that wait to be sent, and those that wait for an answer. The caller locks it. No message
    is longer than `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = min(_MAX_BYTES, max_bytes)
        self._waiting: deque[Pending] = deque()
        self._unanswered: dict[str, Pending] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._unanswered)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, request: Request, future: AnyFuture, is_restorable: bool = False) -> None:
        own_id, number = request.message.request_id, str(self._count)
        request.set_request_id(number)
        self._count += 1
        self._unanswered[number] = pending = Pending(request, future, own_id, is_restorable)
        self._waiting.append(pending)

    def take(self) -> list[Request]:
        """The products of the next message: one product, or several small ones."""
        taken: list[Request] = []
        size = 0
        while self._waiting and len(taken) < _MAX_PRODUCTS:
            size += self._waiting[0].request.nbytes + HEAD_BYTES
            if taken and size > self._max_bytes:
                break
            taken.append(self._waiting.popleft().request)
        return taken

    def restorable(self, number: str) -> Request | None:
        """An unanswered product, if it names restorable tensors."""
        pending = self._unanswered.get(number)
        return pending.request if pending is not None and pending.is_restorable else None

    def answer(self, number: str, outcome: Answer | Error) -> None:
        """Gives a product's future its result."""
        pending = self._unanswered.pop(number, None)
        if pending is None or pending.future.cancelled():
            return
        if isinstance(outcome, Error):
            pending.future.set_exception(outcome)
            return
        try:
            product = pending.request.result(outcome)
        except Exception as error:  # A malformed answer must not affect other products.
            pending.future.set_exception(error)
            return
        product.request_id = pending.own_id
        pending.future.set_result(product)

    def fail(self, error: Error) -> None:
        """Fails every product that has no answer."""
        self._waiting.clear()
        for number in list(self._unanswered):
            self.answer(number, error)


def serialize_joint(requests: list[Request]) -> bytes:
    """A message of several products. Matrices are copied once."""
    pieces: list[Buffer] = []
    for request in requests:
        of_request = request.pieces()
        pieces.append(head(gemm_pb2.MultiplyStreamRequest.REQUESTS_FIELD_NUMBER, request.nbytes))
        pieces += of_request
    return messages.join(pieces)


def parse_joint(message: Buffer) -> list[tuple[str, Answer | Error]]:
    """The answers of a message, each with its product's number."""
    return list(_answers(memoryview(message)))


def _answers(message: memoryview) -> Iterator[tuple[str, Answer | Error]]:
    for _, _, contents in fields(message):
        response_number = gemm_pb2.MultiplyStreamAnswer.RESPONSE_FIELD_NUMBER
        rest, response = without(contents, response_number)
        answer = gemm_pb2.MultiplyStreamAnswer.FromString(rest)
        if response is not None:
            yield answer.request_id, Answer.parse(response)
        else:
            yield answer.request_id, numbered_error(answer.error.code, answer.error.message)
