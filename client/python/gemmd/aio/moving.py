# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads over several connections, by tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import grpc
import numpy as np

from gemmd.channel import Metadata
from gemmd.errors import Error, Unavailable, error_of, from_rpc_error
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

Lane: TypeAlias = Callable[[int], grpc.aio.Channel]


class _Round:
    """As that of `gemmd.moving`: streams that bring one upload together."""

    def __init__(self, upload: Upload, metadata: Metadata) -> None:
        self._upload = upload
        self._metadata = tuple(metadata)
        self._chunks: Chunks | None = None
        self._has_state = asyncio.Event()
        self._is_over = asyncio.Event()
        self.state: resident_pb2.PutState | None = None
        self.tensor: resident_pb2.TensorInfo | None = None
        self.error: Error | None = None
        self.sent = 0

    def missing_bytes(self) -> int:
        if self.state is None:
            return self._upload.data.nbytes
        return sum(missing.bytes for missing in self.state.missing)

    async def run(self, lane: Lane, first: resident_pb2.PutRequest) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve(lane(0), first))
            await self._has_state.wait()
            if self.state is not None and self.state.upload:
                join = resident_pb2.PutRequest(join=self.state.upload)
                for number in range(1, self._upload.lanes):
                    group.create_task(self._serve(lane(number), join))

    async def _serve(self, channel: grpc.aio.Channel, first: resident_pb2.PutRequest) -> None:
        call = channel.stream_stream(*PUT)(metadata=self._metadata)
        error: Error | None = None
        try:
            await call.write(first)
            if await self._take(await call.read()):
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
            self._end(error)

    async def _send(self, call: grpc.aio.StreamStreamCall) -> None:
        assert self._chunks is not None
        while self.tensor is None and (span := self._chunks.take()):
            data = self._upload.data[span.first : span.first + span.count]
            await call.write(OutgoingChunk(span.first, data))
            self.sent += span.count
        await self._is_over.wait()
        if self.tensor is None:
            await call.done_writing()

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        try:
            while await self._take(await call.read()):
                pass
        finally:
            self._is_over.set()

    async def _take(self, answer: resident_pb2.PutResponse) -> bool:
        """Whether the stream goes on after an answer."""
        if answer is grpc.aio.EOF:
            return False
        if answer.HasField("tensor"):
            self.tensor = answer.tensor
            self._end(None)
            return False
        if self.state is None:
            self._chunks = missing_chunks(answer.state, self._upload.data.nbytes)
            self.state = answer.state
            self._has_state.set()
        return True

    def _end(self, error: Error | None) -> None:
        if error is not None and (self.error is None or isinstance(self.error, Unavailable)):
            self.error = error
        self._has_state.set()
        self._is_over.set()


async def _end_of(call: grpc.aio.StreamStreamCall) -> Error:
    """Why a call has ended. A write that meets a broken connection tells so only, and gRPC then makes an
    internal error of it."""
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
    least_missing = upload.data.nbytes
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
        if attempt.state is not None and attempt.state.upload:
            first = resident_pb2.PutRequest(join=attempt.state.upload)
        missing = attempt.missing_bytes()
        await asyncio.sleep(tries.pause_after(attempt.error, missing < least_missing))
        least_missing = min(least_missing, missing)


async def download(
    lane: Lane,
    tensor: tensors_pb2.TensorRef,
    span: Span,
    lanes: int,
    metadata: Metadata,
    timeout: float,
) -> np.ndarray:
    """As `gemmd.moving.download`."""
    into = np.empty(span.count, np.uint8)
    pieces = Chunks([span], PIECE_BYTES)

    async def fetch(number: int) -> None:
        call = lane(number).unary_stream(*GET)
        while (piece := pieces.take()) is not None:
            at = piece.first - span.first
            await _fetch(call, tensor, piece, into.data[at:], tuple(metadata), timeout)

    await asyncio.gather(*(fetch(number) for number in range(lanes)))
    return into


async def _fetch(
    call: grpc.aio.UnaryStreamMultiCallable,
    tensor: tensors_pb2.TensorRef,
    piece: Span,
    into: memoryview,
    metadata: Metadata,
    timeout: float,
) -> None:
    done, tries = 0, Tries()
    while done < piece.count:
        before = done
        error: Error = Unavailable("get: the server ended the stream before the last byte")
        request = resident_pb2.GetRequest(
            tensor=tensor, offset=piece.first + done, bytes=piece.count - done
        )
        try:
            async for offset, data in call(request, timeout=timeout, metadata=metadata):
                if data.nbytes:
                    at = offset - piece.first
                    into[at : at + data.nbytes] = data
                    done = at + data.nbytes
        except grpc.RpcError as broken:
            error = from_rpc_error(broken)
        if done < piece.count:
            await asyncio.sleep(tries.pause_after(error, done > before))
