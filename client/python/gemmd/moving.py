# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads over several connections, with threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from gemmd.channel import Deadline, Metadata
from gemmd.direct import Connection, Pool, Unusable, parsed
from gemmd.errors import Error, Unavailable, from_rpc_error
from gemmd.memory import results
from gemmd.methods import GET, PUT
from gemmd.part import Span
from gemmd.transfer import (
    LOOK_EVERY_S,
    PIECE_BYTES,
    Arrival,
    Attempt,
    Chunks,
    OutgoingChunk,
    Patience,
    Tries,
    Upload,
    chunk_of,
    parse_get,
)
from gemmd.v1 import resident_pb2, tensors_pb2

Lane = Callable[[int], grpc.Channel]

_ENDED_EARLY = "get: the server ended the stream before the last byte"
_HEAD_BYTES = 32  # Max bytes before the data of a chunk.


class _Round(Attempt):
    """An attempt with one reading thread per stream; gRPC threads fetch what the streams send."""

    def __init__(self, upload: Upload, metadata: Metadata) -> None:
        super().__init__(upload)
        self._metadata = metadata
        self._condition = threading.Condition()
        self._calls: list[grpc.Call] = []
        self._open = 0
        self._is_over = False

    def start(self, channel: grpc.Channel, first: resident_pb2.PutRequest) -> None:
        call = channel.stream_stream(*PUT)(self._steps(first), metadata=self._metadata)
        with self._condition:
            self._calls.append(call)
            self._open += 1
        threading.Thread(target=self._read, args=(call,), daemon=True).start()

    def await_state(self, look: Callable[[int], None]) -> None:
        self._wait(lambda: self.state is not None or self._is_over, look)

    def await_end(self, look: Callable[[int], None]) -> None:
        self._wait(lambda: self._open == 0, look)

    def cancel(self) -> None:
        for call in self._calls:
            call.cancel()
        self._end(None)

    def _wait(self, condition: Callable[[], bool], look: Callable[[int], None]) -> None:
        with self._condition:
            while not self._condition.wait_for(condition, LOOK_EVERY_S):
                look(self.sent)

    def _steps(
        self, first: resident_pb2.PutRequest
    ) -> Iterator[resident_pb2.PutRequest | OutgoingChunk]:
        """The messages of one stream; ends once the upload is complete or has failed."""
        yield first
        with self._condition:
            self._condition.wait_for(lambda: self.state is not None or self._is_over)
        while (chunk := self.next_chunk()) is not None:
            yield chunk
            self.sent += chunk.data.nbytes
        with self._condition:
            self._condition.wait_for(lambda: self._is_over)

    def _read(self, call: grpc.Call) -> None:
        error: Error = Unavailable("put: the server ended a stream before the tensor was complete")
        try:
            for answer in call:
                with self._condition:
                    if answer.HasField("tensor"):
                        self.take_tensor(answer.tensor)
                        self._is_over = True
                    else:
                        self.take_state(answer.state)
                    self._condition.notify_all()
        except grpc.RpcError as broken:
            error = from_rpc_error(broken)
        except Error as wrong:
            error = wrong
            call.cancel()
        self._end(None if self.tensor is not None else error, streams=1)

    def _end(self, error: Error | None, streams: int = 0) -> None:
        with self._condition:
            self._is_over = True
            self._open -= streams
            self.note(error)
            self._condition.notify_all()


def upload(
    lane: Lane, upload: Upload, metadata: Metadata, patience: float, timeout: float | None
) -> resident_pb2.TensorInfo:
    """Uploads a tensor; resumes with the missing bytes after connections break."""
    first = resident_pb2.PutRequest(begin=upload.begin)
    watch, tries = Patience(patience, timeout), Tries()
    min_missing = upload.data.nbytes
    while True:
        watch.look(0)
        attempt = _Round(upload, metadata)
        try:
            attempt.start(lane(0), first)
            attempt.await_state(watch.look)
            if (join := attempt.join()) is not None:
                first = join
                for number in range(1, upload.lanes):
                    attempt.start(lane(number), join)
            attempt.await_end(watch.look)
        except BaseException:
            attempt.cancel()
            raise
        if attempt.tensor is not None:
            return attempt.tensor
        assert attempt.error is not None
        missing = attempt.missing_bytes()
        time.sleep(tries.pause_after(attempt.error, missing < min_missing))
        min_missing = min(min_missing, missing)


def download(
    lane: Lane,
    direct: Pool,
    tensor: tensors_pb2.TensorRef,
    span: Span,
    lanes: int,
    metadata: Metadata,
    timeout: float,
) -> np.ndarray:
    """Downloads bytes of a tensor. `timeout` applies to each piece of 16 MiB."""
    into = results.take(span.count)
    pieces = Chunks([span], PIECE_BYTES)

    def fetch(number: int) -> None:
        call = lane(number).unary_stream(*GET)
        while (piece := pieces.take()) is not None:
            arrival = Arrival(tensor, piece, into[piece.first - span.first :])
            tries = Tries()
            while not arrival.is_complete:
                before = arrival.done
                error = _receive(arrival, call, direct, metadata, timeout)
                if not arrival.is_complete:
                    time.sleep(tries.pause_after(error, arrival.done > before))

    with ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(fetch, number) for number in range(lanes)]:
            done.result()
    return into


def _receive(
    arrival: Arrival, call: grpc.UnaryStreamMultiCallable, direct: Pool, metadata: Metadata, timeout: float
) -> Error:
    """Takes the answers of one call, and returns how it ended."""
    try:
        deadline = Deadline(timeout)
        with direct.connection(deadline) as connection:
            _receive_direct(arrival, connection, metadata, deadline)
            return Unavailable(_ENDED_EARLY)
    except Unusable:
        pass
    except Error as failed:
        return failed
    try:
        for offset, data in call(arrival.request(), timeout=timeout, metadata=metadata):
            arrival.take(offset, data)
    except grpc.RpcError as broken:
        return from_rpc_error(broken)
    return Unavailable(_ENDED_EARLY)


def _receive_direct(arrival: Arrival, connection: Connection, metadata: Metadata, deadline: Deadline) -> None:
    """Receives bytes of a tensor in their final place."""
    connection.start(GET.path, metadata, [arrival.request().SerializeToString()], deadline)
    while (size := connection.message_bytes()) is not None:
        head = memoryview(bytearray(min(size, _HEAD_BYTES)))
        connection.read(head)
        if (chunk := chunk_of(head, size)) is not None:
            offset, start = chunk
            into = arrival.place(offset, size - start).data
            into[: len(head) - start] = head[start:]
            connection.read(into[len(head) - start :])
            arrival.note(offset, size - start)
        else:
            message = memoryview(bytearray(size))
            message[: len(head)] = head
            connection.read(message[len(head) :])
            arrival.take(*parsed(parse_get, message))
