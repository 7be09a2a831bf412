# SPDX-License-Identifier: Apache-2.0
"""Arrays as operands: their order in memory and their bytes, copied only if the lines of a matrix are not
contiguous."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gemmd.blocks import BlockScale
from gemmd.checks import array as checked_array
from gemmd.checks import no_effect, real, refused
from gemmd.elements import Element, pack, typed, unpack
from gemmd.errors import DataLoss, refusal
from gemmd.v1 import tensors_pb2

ROW_MAJOR = tensors_pb2.ORDER_ROW_MAJOR
COLUMN_MAJOR = tensors_pb2.ORDER_COLUMN_MAJOR


class StoredOperand:
    """An operand that is not an array: a tensor on the server, or packed bytes. Has a shape."""

    __slots__ = ()
    has_scale = False  # Whether it includes its factors.

    def as_operand(self, batch: int) -> tuple[tensors_pb2.Operand, memoryview | None]:
        """The operand message for a product of `batch` matrices, and the bytes to put into it."""
        raise NotImplementedError


def as_matrix(operand: Any, field: str, *, vector_is_column: bool) -> tuple[Any, bool]:
    """An operand of two dimensions or more, and whether it was a vector."""
    if isinstance(operand, StoredOperand):
        return operand, False
    array = checked_array(field, operand)
    if array.ndim == 0:
        raise refusal(field, "a number", "an array of 1 dimension or more")
    if array.ndim > 1:
        return array, False
    return array[:, None] if vector_is_column else array[None, :], True


def lines_of(stack: np.ndarray) -> tuple[tensors_pb2.Order, np.ndarray]:
    """The order of the matrices of a batch, and their lines without gaps, the last axis along a
    line. Copies the elements only if necessary."""
    if stack.dtype.byteorder == ">":
        stack = stack.astype(stack.dtype.newbyteorder("<"))
    if stack.flags.c_contiguous:
        return ROW_MAJOR, stack
    columns = stack.swapaxes(1, 2)
    if columns.flags.c_contiguous or abs(stack.strides[1]) < abs(stack.strides[2]):
        return COLUMN_MAJOR, np.ascontiguousarray(columns)
    return ROW_MAJOR, np.ascontiguousarray(stack)


def bytes_of(lines: np.ndarray, element: Element) -> memoryview:
    """The bytes of lines without gaps."""
    return pack(lines, element).data


def _is_one_matrix(array: np.ndarray) -> bool:
    """Whether all matrices of the array share the same memory."""
    leading = zip(array.shape[:-2], array.strides[:-2], strict=True)
    return array.size > 0 and all(count == 1 or stride == 0 for count, stride in leading)


def scale_values(scale: Any, field: str) -> list[float]:
    """Factors rounded to float32. Raises InvalidArgument for values that are not numbers, or would become infinite or
    0."""
    try:
        given = np.asarray(scale)
    except ValueError:  # Lists of different lengths.
        raise refused(field, scale, "numbers") from None
    if given.dtype.kind == "O":  # Such as integers of more than 64 bits.
        given = np.array([real(field, each) for each in given.flat], np.float64)
    if given.dtype.kind in "bcmMSU":
        raise refused(field, scale, "numbers")
    with np.errstate(over="ignore", under="ignore"):
        values = given.astype(np.float32).reshape(-1)
    given = given.astype(np.float64).reshape(-1)
    is_lost = np.isinf(values) & np.isfinite(given) | (values == 0) & (given != 0)
    if is_lost.any():
        raise refused(field, float(given[is_lost][0]), "numbers of the range of float32")
    return values.tolist()


def operand_of(
    operand: Any, leading: tuple[int, ...], type_name: object, scale: Any, field: str
) -> tuple[tensors_pb2.Operand, memoryview | None]:
    """The message for an operand of a batch of the shape `leading`, without bytes, and its bytes."""
    batch = math.prod(leading)
    if not isinstance(operand, np.ndarray):
        no_effect({f"{field}_type": type_name}, [f"{field}_type"], f"{field}, which has a type")
        if operand.has_scale:
            no_effect({f"{field}_scale": scale}, [f"{field}_scale"], f"{field}, which has factors")
        message, data = operand.as_operand(batch)
    else:
        array, element = typed(operand, type_name, field)
        message = tensors_pb2.Operand(type=element.number)
        if array.ndim == 2 and batch == 1:
            stack = array[None]
        elif _is_one_matrix(array) and batch > 0:
            stack = array[(0,) * (array.ndim - 2)][None]
            if batch != 1:
                message.batch_stride = 0
        else:
            stack = np.broadcast_to(array, (*leading, *array.shape[-2:]))
            stack = stack.reshape(batch, *array.shape[-2:])
        message.order, lines = lines_of(stack)
        data = bytes_of(lines, element)
    if isinstance(scale, BlockScale):
        scale.fill(message.scale.blocks)
    elif scale is not None:
        message.scale.values.extend(scale_values(scale, f"{field}_scale"))
    return message, data


def array_of(
    data: memoryview, element: Element, order: int, shape: tuple[int, int, int]
) -> np.ndarray:
    """Matrices without gaps, batch x rows x columns: a view of the bytes if possible."""
    batch, rows, columns = shape
    lines = (batch, rows, columns) if order == ROW_MAJOR else (batch, columns, rows)
    want = lines[0] * lines[1] * element.line_bytes(lines[2])
    if data.nbytes != want:
        raise DataLoss(f"d.data: got {data.nbytes} bytes, want {want}")
    array = unpack(data, element, lines)
    return array if order == ROW_MAJOR else array.swapaxes(1, 2)
