# SPDX-License-Identifier: Apache-2.0
"""Code shared by uploads and downloads of both clients."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from gemmd.blocks import BlockScale
from gemmd.channel import Deadline
from gemmd.checks import array as checked_array
from gemmd.checks import flag, no_effect, text, whole
from gemmd.elements import typed
from gemmd.errors import DataLoss, DeadlineExceeded, Error, Unavailable, check_names, refusal
from gemmd.memory import messages
from gemmd.operands import bytes_of, lines_of, scale_values
from gemmd.part import Span
from gemmd.prepare import QuantizedMatrix, SparseMatrix, pack24
from gemmd.requests import PutOptions, keep_message
from gemmd.v1 import resident_pb2, tensors_pb2
from gemmd.wire import Buffer, fields, nested, read_varint, without

_SMALL_BYTES = 8 << 20  # Up to this size, one connection; above, several.
_LANES = 4
_MAX_LANES = 16
PIECE_BYTES = 16 << 20  # Bytes that one connection requests at a time.
_MAX_FRUITLESS_TRIES = 5
_LONGEST_PAUSE_S = 2.0
LOOK_EVERY_S = 0.1
_FACTORS_ALIGNMENT = 16  # Where factors of blocks begin after the elements.
_CHUNK_TAG = resident_pb2.GetResponse.CHUNK_FIELD_NUMBER << 3 | 2
_OFFSET_TAG = resident_pb2.GetChunk.OFFSET_FIELD_NUMBER << 3
_BYTES_TAG = resident_pb2.GetChunk.DATA_FIELD_NUMBER << 3 | 2


def lanes_for(size: int, asked: Any) -> int:
    """The number of connections for `size` bytes; `asked` comes from the caller, 0: automatic."""
    return whole("connections", asked, 0, _MAX_LANES) or (1 if size <= _SMALL_BYTES else _LANES)


@dataclass
class Upload:
    """A tensor to upload: its description and its bytes."""

    begin: resident_pb2.PutBegin
    data: memoryview
    is_stack: bool
    lanes: int  # Number of connections.
    is_restorable: bool = False

    @staticmethod
    def of(array: Any, options: PutOptions) -> Upload:
        """The upload of an array, or of a result of `pack24` or `quantize`."""
        check_names(options.keys(), PutOptions.__annotations__.keys())
        spec, scale, element_type = (
            resident_pb2.TensorSpec(),
            options.get("scale"),
            options.get("element_type"),
        )
        flags = [name for name in ("sparse", "sha256", "restorable") if options.get(name) is not None]
        wants = {name: flag(name, options[name]) for name in flags}
        if isinstance(array, QuantizedMatrix):
            no_effect(options, ["scale"], "an array that has factors")
            spec.k_along_columns = isinstance(array.scale, BlockScale) and array.k_axis == 0
            array, scale = array.array, array.scale
        if isinstance(array, SparseMatrix):
            no_effect(options, ["sparse", "element_type"], "what pack24 has made")
        if wants.get("sparse") and not isinstance(array, SparseMatrix):
            array = pack24(array, type=element_type)
        if isinstance(array, SparseMatrix):
            element, data = array.element, array.data.data
            spec.sparsity = tensors_pb2.SPARSITY_2_4
        else:
            array, element = typed(checked_array("array", array), element_type, "array")
        if len(array.shape) not in (2, 3):
            raise refusal("array.shape", tuple(array.shape), "2 or 3 dimensions")
        *matrices, rows, columns = array.shape
        if isinstance(array, np.ndarray):
            spec.order, lines = lines_of(array.reshape(math.prod(matrices), rows, columns))
            data = bytes_of(lines, element)
        spec.type, spec.rows, spec.columns = element.number, rows, columns
        if matrices:
            spec.matrices = matrices[0]
        if isinstance(scale, BlockScale):
            scale.fill(spec.scale.blocks)
            gap = bytes(-data.nbytes % _FACTORS_ALIGNMENT)
            data = memoryview(b"".join([data, gap, spec.scale.blocks.factors]))
            spec.scale.blocks.ClearField("factors")
        elif scale is not None:
            spec.scale.values.extend(scale_values(scale, "scale"))
        begin = resident_pb2.PutBegin(spec=spec, keep=keep_message(options))
        if options.get("device") is not None:
            begin.device = text("device", options["device"])
        is_restorable = wants.get("restorable", False)
        if wants.get("sha256") or is_restorable:
            begin.sha256 = hashlib.sha256(data).digest()
        lanes = lanes_for(data.nbytes, options.get("connections", 0))
        return Upload(begin, data, bool(matrices), lanes, is_restorable)


class Chunks:
    """Pieces of byte ranges, taken in turn by several connections."""

    def __init__(self, ranges: Iterable[Span], most: int) -> None:
        self._ranges = [span for span in ranges if span.count > 0]
        self._most = most
        self._lock = threading.Lock()

    def take(self) -> Span | None:
        """The next piece; None if all are taken."""
        with self._lock:
            if not self._ranges:
                return None
            first, count = self._ranges[0].first, self._ranges[0].count
            size = min(count, self._most)
            if size == count:
                del self._ranges[0]
            else:
                self._ranges[0] = Span(first + size, count - size)
            return Span(first, size)


def missing_chunks(state: resident_pb2.PutState, total: int) -> Chunks:
    """The bytes that the server lacks of a tensor of `total` bytes."""
    ranges = [Span(missing.offset, missing.bytes) for missing in state.missing]
    for span in ranges:
        if span.first < 0 or span.count < 0 or span.first + span.count > total:
            raise refusal(
                "missing", f"{span.count} bytes from {span.first} on", f"parts of {total}"
            )
    return Chunks(ranges, state.max_chunk_bytes or 1 << 20)


class Tries:
    """Counts retries of a transfer with broken connections while no byte moves."""

    def __init__(self) -> None:
        self._fruitless = 0
        self._pause = 0.1

    def pause_after(self, error: Error, has_moved: bool) -> float:
        """The seconds to wait before the next attempt; raises the error if there is none."""
        if error.code is not grpc.StatusCode.UNAVAILABLE:
            raise error
        if has_moved:
            self._fruitless, self._pause = 0, 0.1
        self._fruitless += 1
        if self._fruitless == _MAX_FRUITLESS_TRIES:
            raise error
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE_S)
        return pause


class Patience:
    """Gives up if no byte has moved for a while, or the transfer takes too long."""

    def __init__(self, patience: float, timeout: float | None) -> None:
        self._patience = patience
        self._deadline = None if timeout is None else Deadline(timeout)
        self._moved = -1
        self._since = time.monotonic()

    def look(self, moved: int) -> None:
        """Call every LOOK_EVERY_S; raises DeadlineExceeded on a timeout."""
        if moved != self._moved:
            self._moved, self._since = moved, time.monotonic()
        if self._deadline is not None and self._deadline.left() == 0:
            raise DeadlineExceeded("put: it took longer than its timeout")
        if time.monotonic() - self._since > self._patience:
            raise DeadlineExceeded(f"put: no byte has moved for {self._patience} s")


@dataclass(frozen=True)
class OutgoingChunk:
    """Bytes of an upload, in the caller's memory."""

    offset: int
    data: memoryview


class Attempt:
    """The state of one attempt at an upload over several streams, until it is complete or a connection breaks."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self.chunks: Chunks | None = None
        self.state: resident_pb2.PutState | None = None
        self.tensor: resident_pb2.TensorInfo | None = None
        self.error: Error | None = None
        self.sent = 0  # Bytes handed to gRPC.

    def missing_bytes(self) -> int:
        """The bytes that the server lacked when the attempt began. Only this measures progress: bytes handed to gRPC
        may not have arrived."""
        if self.state is None:
            return self._upload.data.nbytes
        return sum(missing.bytes for missing in self.state.missing)

    def take_state(self, state: resident_pb2.PutState) -> None:
        """Takes the first answer of a stream; only the first stream's counts."""
        if self.state is None:
            self.chunks = missing_chunks(state, self._upload.data.nbytes)
            self.state = state

    def take_tensor(self, tensor: resident_pb2.TensorInfo) -> None:
        """Takes the last answer of a stream. Only the stream that began the upload receives the factors."""
        if self.tensor is None or tensor.spec.scale.values:
            self.tensor = tensor

    def next_chunk(self) -> OutgoingChunk | None:
        """The next chunk of a stream; None if all are sent or the tensor is complete."""
        if self.chunks is None or self.tensor is not None:
            return None
        span = self.chunks.take()
        if span is None:
            return None
        return OutgoingChunk(span.first, self._upload.data[span.first : span.first + span.count])

    def note(self, error: Error | None) -> None:
        """Records how a stream ended. The server's error takes precedence over a broken connection."""
        if error is not None and (self.error is None or isinstance(self.error, Unavailable)):
            self.error = error

    def join(self) -> resident_pb2.PutRequest | None:
        """The first message of a further stream; None if the server lacks no bytes."""
        if self.state is None or not self.state.upload:
            return None
        return resident_pb2.PutRequest(join=self.state.upload)


class Arrival:
    """A range of a tensor's bytes being downloaded."""

    def __init__(self, tensor: tensors_pb2.TensorRef, piece: Span, into: np.ndarray) -> None:
        self._tensor = tensor
        self._piece = piece
        self._into = into
        self.done = 0

    @property
    def is_complete(self) -> bool:
        return self.done >= self._piece.count

    def request(self) -> resident_pb2.GetRequest:
        """The request for the bytes not received yet."""
        offset, left = self._piece.first + self.done, self._piece.count - self.done
        return resident_pb2.GetRequest(tensor=self._tensor, offset=offset, bytes=left)

    def take(self, offset: int, data: memoryview) -> None:
        """Stores received bytes. NumPy releases the GIL while it copies."""
        if data.nbytes:
            np.copyto(self.place(offset, data.nbytes), np.frombuffer(data, np.uint8))
            self.note(offset, data.nbytes)

    def place(self, offset: int, count: int) -> np.ndarray:
        """The place for bytes of the tensor."""
        at, end = offset - self._piece.first, offset - self._piece.first + count
        if at < 0 or end > self._piece.count:
            raise DataLoss(
                f"get: got bytes {offset} to {offset + count}, want {self._piece.count} from {self._piece.first} on"
            )
        return self._into[at:end]

    def note(self, offset: int, count: int) -> None:
        """Records bytes received in place."""
        self.done = offset - self._piece.first + count


def serialize_put(step: resident_pb2.PutRequest | OutgoingChunk) -> bytes:
    """A serialized message of an upload. Copies the tensor's bytes once."""
    if isinstance(step, resident_pb2.PutRequest):
        return step.SerializeToString()
    begin = resident_pb2.PutChunk(offset=step.offset).SerializeToString()
    numbers = resident_pb2.PutRequest.CHUNK_FIELD_NUMBER, resident_pb2.PutChunk.DATA_FIELD_NUMBER
    return messages.join(nested(numbers[0], begin, numbers[1], step.data))


def chunk_of(head: memoryview, size: int) -> tuple[int, int] | None:
    """The offset of a Get answer's bytes in the tensor, and in the message; `head` has the first of its `size` bytes.
    None if the bytes do not end the message."""
    offset = 0
    try:
        tag, at = read_varint(head, 0)
        count, at = read_varint(head, at)
        if tag != _CHUNK_TAG or at + count != size:
            return None
        tag, at = read_varint(head, at)
        if tag == _OFFSET_TAG:
            offset, at = read_varint(head, at)
            tag, at = read_varint(head, at)
        count, at = read_varint(head, at)
    except IndexError:
        return None
    return (offset, at) if tag == _BYTES_TAG and at + count == size else None


def parse_get(message: Buffer) -> tuple[int, memoryview]:
    """The offset of a Get answer's bytes in the tensor, and a view of the bytes. The answer with the tensor's
    description has none."""
    for number, _, contents in fields(memoryview(message)):
        if number == resident_pb2.GetResponse.CHUNK_FIELD_NUMBER:
            rest, data = without(contents, resident_pb2.GetChunk.DATA_FIELD_NUMBER)
            offset = resident_pb2.GetChunk.FromString(rest).offset
            return offset, memoryview(b"") if data is None else data
    return 0, memoryview(b"")
