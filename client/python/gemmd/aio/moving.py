# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads over several connections, with tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
import numpy as np

from gemmd.channel import Metadata
from gemmd.errors import Error, Unavailable, error_of, from_rpc_error
from gemmd.memory import results
from gemmd.methods import GET, PUT
from gemmd.part import Span
from gemmd.transfer import (
    LOOK_EVERY_S,
    PIECE_BYTES,
    Arrival,
    Attempt,
    Chunks,
    Patience,
    Tries,
    Upload,
)
from gemmd.v1 import resident_pb2, tensors_pb2

Lane: TypeAlias = Callable[[int], grpc.aio.Channel]


class _Round(Attempt):
    """An attempt with one task per stream."""

    def __init__(self, upload: Upload, metadata: Metadata) -> None:
        super().__init__(upload)
        self._metadata = tuple(metadata)
        self._has_state = asyncio.Event()
        self._is_over = asyncio.Event()

    async def run(self, lane: Lane, first: resident_pb2.PutRequest) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve(lane(0), first))
            await self._has_state.wait()
            if (join := self.join()) is not None:
                for number in range(1, self._upload.lanes):
                    group.create_task(self._serve(lane(number), join))

    async def _serve(self, channel: grpc.aio.Channel, first: resident_pb2.PutRequest) -> None:
        call = channel.stream_stream(*PUT)(metadata=self._metadata)
        error: Error | None = None
        try:
            await call.write(first)
            if self._goes_on(await call.read()):
                reading = asyncio.create_task(self._read(call))
                try:
                    await self._send(call)
                    await reading
                finally:
                    reading.cancel()
            if self.tensor is None:
                error = Unavailable("put: the server ended a stream before the tensor was complete")
        except (grpc.RpcError, asyncio.InvalidStateError):
            error = await _end_of(call)
        except Error as wrong:
            error = wrong
        finally:
            call.cancel()
            self.note(error)
            self._has_state.set()
            self._is_over.set()

    async def _send(self, call: grpc.aio.StreamStreamCall) -> None:
        while (chunk := self.next_chunk()) is not None:
            await call.write(chunk)
            self.sent += chunk.data.nbytes
        await self._is_over.wait()
        if self.tensor is None:
            await call.done_writing()

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        try:
            while self._goes_on(await call.read()):
                pass
        finally:
            self._is_over.set()

    def _goes_on(self, answer: Any) -> bool:
        """Takes an answer, and returns whether the stream continues after it."""
        if answer is grpc.aio.EOF:
            return False
        if answer.HasField("tensor"):
            self.take_tensor(answer.tensor)
            return False
        self.take_state(answer.state)
        self._has_state.set()
        return True


async def _end_of(call: grpc.aio.StreamStreamCall) -> Error:
    """Why a call has ended. gRPC reports a write to a broken connection as an internal error; only its text tells."""
    code, details = await call.code(), await call.details() or ""
    if code is grpc.StatusCode.INTERNAL and details.startswith("Internal error from Core"):
        return Unavailable(f"the connection broke: {details}")
    return error_of(code, details)


async def upload(
    lane: Lane, upload: Upload, metadata: Metadata, patience: float, timeout: float | None
) -> resident_pb2.TensorInfo:
    """As `gemmd.moving.upload`."""
    first = resident_pb2.PutRequest(begin=upload.begin)
    watch, tries = Patience(patience, timeout), Tries()
    min_missing = upload.data.nbytes
    while True:
        watch.look(0)
        attempt = _Round(upload, metadata)
        running = asyncio.create_task(attempt.run(lane, first))
        try:
            while not (await asyncio.wait({running}, timeout=LOOK_EVERY_S))[0]:
                watch.look(attempt.sent)
        finally:
            running.cancel()
        await running
        if attempt.tensor is not None:
            return attempt.tensor
        assert attempt.error is not None
        first = attempt.join() or first
        missing = attempt.missing_bytes()
        await asyncio.sleep(tries.pause_after(attempt.error, missing < min_missing))
        min_missing = min(min_missing, missing)


async def download(
    lane: Lane,
    tensor: tensors_pb2.TensorRef,
    span: Span,
    lanes: int,
    metadata: Metadata,
    timeout: float,
) -> np.ndarray:
    """As `gemmd.moving.download`."""
    into = results.take(span.count)
    pieces = Chunks([span], PIECE_BYTES)

    async def fetch(number: int) -> None:
        call = lane(number).unary_stream(*GET)
        while (piece := pieces.take()) is not None:
            arrival = Arrival(tensor, piece, into[piece.first - span.first :])
            tries = Tries()
            while not arrival.is_complete:
                before = arrival.done
                error = await _receive(arrival, call, metadata, timeout)
                if not arrival.is_complete:
                    await asyncio.sleep(tries.pause_after(error, arrival.done > before))

    await asyncio.gather(*(fetch(number) for number in range(lanes)))
    return into


async def _receive(
    arrival: Arrival, call: grpc.aio.UnaryStreamMultiCallable, metadata: Metadata, timeout: float
) -> Error:
    try:
        answers = call(arrival.request(), timeout=timeout, metadata=tuple(metadata))
        async for offset, data in answers:
            arrival.take(offset, data)
    except grpc.RpcError as broken:
        return from_rpc_error(broken)
    return Unavailable("get: the server ended the stream before the last byte")
