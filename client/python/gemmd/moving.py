# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads over several connections, by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from gemmd.channel import Metadata
from gemmd.errors import Error, Unavailable, from_rpc_error
from gemmd.methods import GET, PUT
from gemmd.part import Span
from gemmd.transfer import (
    LOOK_EVERY_S,
    PIECE_BYTES,
    Chunks,
    OutgoingChunk,
    Patience,
    Tries,
    Upload,
    missing_chunks,
)
from gemmd.v1 import resident_pb2, tensors_pb2

Lane = Callable[[int], grpc.Channel]


class _Round:
    """Streams that bring one upload together, until it is complete or a connection breaks."""

    def __init__(self, data: memoryview, metadata: Metadata) -> None:
        self._data = data
        self._metadata = metadata
        self._condition = threading.Condition()
        self._calls: list[grpc.Call] = []
        self._open = 0
        self._chunks: Chunks | None = None
        self._is_over = False
        self.state: resident_pb2.PutState | None = None
        self.tensor: resident_pb2.TensorInfo | None = None
        self.error: Error | None = None
        self.sent = 0

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

    def missing_bytes(self) -> int:
        """What the server wanted when the round began."""
        if self.state is None:
            return self._data.nbytes
        return sum(missing.bytes for missing in self.state.missing)

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
        """What one stream sends; it closes its side once the upload is complete or cannot be."""
        yield first
        with self._condition:
            self._condition.wait_for(lambda: self._chunks is not None or self._is_over)
            chunks = self._chunks
        while chunks is not None and self.tensor is None and (span := chunks.take()):
            yield OutgoingChunk(span.first, self._data[span.first : span.first + span.count])
            self.sent += span.count
        with self._condition:
            self._condition.wait_for(lambda: self._is_over)

    def _read(self, call: grpc.Call) -> None:
        error: Error | None = Unavailable(
            "put: the server ended a stream before the tensor was complete"
        )
        try:
            for answer in call:
                if answer.HasField("tensor"):
                    self.tensor = answer.tensor
                    self._end(None)
                else:
                    self._take_state(answer.state)
        except grpc.RpcError as broken:
            error = from_rpc_error(broken)
        except Error as wrong:
            error = wrong
            call.cancel()
        self._end(None if self.tensor is not None else error, is_stream=True)

    def _take_state(self, state: resident_pb2.PutState) -> None:
        with self._condition:
            if self.state is None:
                self._chunks = missing_chunks(state, self._data.nbytes)
                self.state = state
            self._condition.notify_all()

    def _end(self, error: Error | None, is_stream: bool = False) -> None:
        with self._condition:
            self._is_over = True
            self._open -= is_stream
            # What the server says weighs more than that another connection broke.
            if error is not None and (self.error is None or isinstance(self.error, Unavailable)):
                self.error = error
            self._condition.notify_all()


def upload(
    lane: Lane,
    upload: Upload,
    metadata: Metadata,
    patience: float,
    timeout: float | None,
) -> resident_pb2.TensorInfo:
    """Brings a tensor to the server; goes on with what is missing where connections broke."""
    first = resident_pb2.PutRequest(begin=upload.begin)
    watch, tries = Patience(patience, timeout), Tries()
    least_missing = upload.data.nbytes
    while True:
        watch.look(0)
        attempt = _Round(upload.data, metadata)
        try:
            attempt.start(lane(0), first)
            attempt.await_state(watch.look)
            if attempt.state is not None and attempt.state.upload:
                first = resident_pb2.PutRequest(join=attempt.state.upload)
                for number in range(1, upload.lanes):
                    attempt.start(lane(number), first)
            attempt.await_end(watch.look)
        except BaseException:
            attempt.cancel()
            raise
        if attempt.tensor is not None:
            return attempt.tensor
        assert attempt.error is not None
        # What was handed to gRPC may not have arrived: only the server knows what has moved.
        missing = attempt.missing_bytes()
        time.sleep(tries.pause_after(attempt.error, missing < least_missing))
        least_missing = min(least_missing, missing)


def download(
    lane: Lane,
    tensor: tensors_pb2.TensorRef,
    span: Span,
    lanes: int,
    metadata: Metadata,
    timeout: float,
) -> np.ndarray:
    """Bytes of a tensor. `timeout` is for each piece of 16 MiB."""
    into = np.empty(span.count, np.uint8)
    pieces = Chunks([span], PIECE_BYTES)

    def fetch(number: int) -> None:
        call = lane(number).unary_stream(*GET)
        while (piece := pieces.take()) is not None:
            _fetch(call, tensor, piece, into.data[piece.first - span.first :], metadata, timeout)

    with ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(fetch, number) for number in range(lanes)]:
            done.result()
    return into


def _fetch(
    call: grpc.UnaryStreamMultiCallable,
    tensor: tensors_pb2.TensorRef,
    piece: Span,
    into: memoryview,
    metadata: Metadata,
    timeout: float,
) -> None:
    done, tries = 0, Tries()
    while done < piece.count:
        before = done
        request = resident_pb2.GetRequest(
            tensor=tensor, offset=piece.first + done, bytes=piece.count - done
        )
        error: Error = Unavailable("get: the server ended the stream before the last byte")
        try:
            for offset, data in call(request, timeout=timeout, metadata=metadata):
                if data.nbytes:
                    at = offset - piece.first
                    into[at : at + data.nbytes] = data
                    done = at + data.nbytes
        except grpc.RpcError as broken:
            error = from_rpc_error(broken)
        if done < piece.count:
            time.sleep(tries.pause_after(error, done > before))
