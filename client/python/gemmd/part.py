# SPDX-License-Identifier: Apache-2.0
"""Tensors on the server, and parts of them: shapes and byte ranges, without calls."""

from __future__ import annotations

import dataclasses
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmd.checks import refused
from gemmd.elements import Element, numbered_element, unpack
from gemmd.errors import OutOfRange, refusal
from gemmd.operands import ROW_MAJOR, StoredOperand
from gemmd.ownership import Owner
from gemmd.v1 import resident_pb2, tensors_pb2


@dataclass(frozen=True)
class Span:
    """A range of one axis."""

    first: int
    count: int

    def part(self, index: slice, axis: str) -> Span:
        """The part of this range that a slice selects."""
        try:
            first, end, step = index.indices(self.count)
        except (TypeError, ValueError):
            raise refused(f"slice of {axis}", index, "whole numbers, and a step of 1") from None
        if step != 1:
            raise refusal(f"slice of {axis}", f"a step of {step}", "1")
        return Span(self.first + first, max(0, end - first))


@dataclass(frozen=True)
class Part:
    """A range of a tensor's matrices, rows and columns, optionally transposed. Copies nothing."""

    info: resident_pb2.TensorInfo
    matrices: Span
    rows: Span
    columns: Span
    is_stack: bool  # Whether the matrices are an axis of the shape.
    transposed: bool = False

    @staticmethod
    def whole(info: resident_pb2.TensorInfo, is_stack: bool | None = None) -> Part:
        spec = info.spec
        count = spec.matrices if spec.HasField("matrices") else 1
        stack = count != 1 if is_stack is None else is_stack
        return Part(info, Span(0, count), Span(0, spec.rows), Span(0, spec.columns), stack)

    @property
    def element(self) -> Element:
        return numbered_element(self.info.spec.type)

    @property
    def shape(self) -> tuple[int, ...]:
        matrix = (self.rows.count, self.columns.count)
        leading = (self.matrices.count,) if self.is_stack else ()
        return (*leading, *(reversed(matrix) if self.transposed else matrix))

    def transpose(self) -> Part:
        return dataclasses.replace(self, transposed=not self.transposed)

    def __getitem__(self, index: Any) -> Part:
        items = list(index) if isinstance(index, tuple) else [index]
        if dots := [at for at, item in enumerate(items) if item is Ellipsis]:
            at = dots[0]
            items[at : at + 1] = [slice(None)] * (len(self.shape) - len(items) + 1)
        items += [slice(None)] * (len(self.shape) - len(items))
        if len(items) > len(self.shape):
            raise refusal("index", f"{len(items)} axes", f"at most {len(self.shape)}")
        part = self._of_matrices(items.pop(0)) if self.is_stack else self
        names = ("columns", "rows") if self.transposed else ("rows", "columns")
        changes = {}
        for name, item in zip(names, items, strict=True):
            if not isinstance(item, slice):
                raise refusal(f"index of {name}", repr(item), "a slice: an operand is a matrix")
            changes[name] = getattr(self, name).part(item, name)
        return dataclasses.replace(part, **changes)

    def _of_matrices(self, item: Any) -> Part:
        if isinstance(item, slice):
            return dataclasses.replace(self, matrices=self.matrices.part(item, "matrices"))
        try:
            # For Python, True is the index 1.
            at = range(self.matrices.count)[None if isinstance(item, (bool, np.bool_)) else item]
        except TypeError:
            raise refused("index of matrices", item, "a whole number or a slice") from None
        except IndexError:
            want = f"one of a batch of {self.matrices.count}"
            raise OutOfRange(f"index of matrices: got {item}, want {want}") from None
        return dataclasses.replace(self, matrices=Span(self.matrices.first + at, 1), is_stack=False)

    def message(self) -> tensors_pb2.TensorPart:
        """The part as a message; a whole tensor needs no ranges, and no check."""
        part = tensors_pb2.TensorPart(tensor=tensors_pb2.TensorRef(handle=self.info.handle))
        all_of_it = Part.whole(self.info)
        if self.rows != all_of_it.rows:
            part.first_row, part.rows = self.rows.first, self.rows.count
        if self.columns != all_of_it.columns:
            part.first_column, part.columns = self.columns.first, self.columns.count
        if self.matrices != all_of_it.matrices:
            part.first_matrix, part.matrices = self.matrices.first, self.matrices.count
        return part

    def operand(self) -> tensors_pb2.Operand:
        return tensors_pb2.Operand(tensor=self.message(), transpose=self.transposed)

    def _lines(self) -> tuple[Span, Span, int, int]:
        """The range of lines in each matrix, the range of elements in a line, the number of lines per matrix, and the
        elements between starts of lines."""
        spec = self.info.spec
        if spec.order == ROW_MAJOR:
            lines, along, count, length = self.rows, self.columns, spec.rows, spec.columns
        else:
            lines, along, count, length = self.columns, self.rows, spec.columns, spec.rows
        return lines, along, count, spec.leading_dimension or length

    def byte_range(self) -> Span:
        """The bytes from the first line of the part to its last."""
        if self.info.spec.sparsity != tensors_pb2.SPARSITY_NONE:
            raise refusal("tensor", "a sparse one", "a dense one, which has an array")
        lines, _, count, leading = self._lines()
        width = self.element.line_bytes(leading)
        if not (self.matrices.count and lines.count):
            return Span(0, 0)
        first = self.matrices.first * count + lines.first
        last = (self.matrices.first + self.matrices.count - 1) * count + lines.first + lines.count
        return Span(first * width, (last - first) * width)

    def array(self, data: np.ndarray) -> np.ndarray:
        """The part as an array, from the bytes of `byte_range`."""
        lines, along, count, leading = self._lines()
        if data.size == 0:
            return np.zeros(self.shape, self.element.dtype)
        width = self.element.line_bytes(leading)
        elements = unpack(data, self.element, (data.size // width, leading))
        # As plain integers: as_strided does not support some ml_dtypes types.
        codes = elements.view(f"u{elements.itemsize}")
        # Skips the lines between the parts of consecutive matrices.
        strides = (count * codes.strides[0], *codes.strides)
        shape = (self.matrices.count, lines.count, leading)
        wanted = np.lib.stride_tricks.as_strided(codes, shape, strides).view(self.element.dtype)
        wanted = wanted[..., along.first : along.first + along.count]
        if self.info.spec.order != ROW_MAJOR:
            wanted = wanted.swapaxes(1, 2)
        if self.transposed:
            wanted = wanted.swapaxes(1, 2)
        return wanted if self.is_stack else wanted[0]


class TensorView(StoredOperand):
    """A tensor on the server, or a part of it, as an operand. Copies and owns nothing. Slices without steps (``w[:,
    64:128]``) and ``w.T`` are operands too.
    """

    # Makes NumPy leave `array @ tensor` to the tensor.
    __array_ufunc__ = None

    def __init__(self, client: Any, part: Part, owner: TensorView | None = None) -> None:
        self._client = client
        self._part = part
        # A part keeps its tensor alive: unreferenced tensors are deleted.
        self._owner = owner

    @property
    def info(self) -> resident_pb2.TensorInfo:
        """The server's last description of the tensor (gemmd.v1.TensorInfo)."""
        return self._part.info

    @property
    def name(self) -> str:
        """The tensor's name; empty if it has none."""
        return self.info.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns; for a batch, preceded by the number of matrices."""
        return self._part.shape

    @property
    def ndim(self) -> int:
        """2, or 3 for a batch."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """The dtype that arrays of its elements have."""
        return self._part.element.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return self.info.bytes

    @property
    def T(self) -> TensorView:
        """The transposed matrix, or every matrix of the batch transposed."""
        return self._view(self._part.transpose())

    def __getitem__(self, index: Any) -> TensorView:
        return self._view(self._part[index])

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__}{name} {self._part.element.name} {self.shape}>"

    def as_operand(self, batch: int) -> tuple[tensors_pb2.Operand, None]:
        """See `gemmd.operands.StoredOperand`."""
        return self._part.operand(), None

    def as_destination(self) -> tensors_pb2.TensorPart:
        """The part as the destination of a result."""
        if self._part.transposed:
            raise refusal("into", "a transposed part", "one that is not")
        return self._part.message()

    def _view(self, part: Part) -> TensorView:
        raise NotImplementedError


def _drop(owner: Owner, dropped: deque[bytes], handle: bytes) -> None:
    if owner.is_here:
        dropped.append(handle)


class OwnedTensor(TensorView):
    """A whole tensor on the server, possibly owned. A tensor that a client created without a name and unpinned is
    deleted once no reference to it or its parts remains, with the client's next call that creates a tensor. All others
    stay as long as the server keeps them: for their lease after each use, but no longer than their session, or until
    deleted if pinned. A forked child deletes none of its parent's tensors.
    """

    def __init__(
        self,
        client: Any,
        info: resident_pb2.TensorInfo,
        *,
        is_stack: bool | None = None,
        is_owned: bool = False,
    ) -> None:
        super().__init__(client, Part.whole(info, is_stack))
        self._finalizer: weakref.finalize | None = None
        if is_owned and not info.name and not info.pinned:
            self._finalizer = weakref.finalize(self, _drop, client._owner, client._dropped, info.handle)
            self._finalizer.atexit = False

    @property
    def ref(self) -> tensors_pb2.TensorRef:
        """The tensor as messages name it."""
        return tensors_pb2.TensorRef(handle=self.info.handle)

    def release(self) -> bytes:
        """Leaves the tensor on the server for its lease, and returns its current handle."""
        self._detach()
        return self._client._restorables.current(self.info.handle)

    def _detach(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
