# SPDX-License-Identifier: Apache-2.0
"""Element types and matrices on the wire in terms of NumPy, without any code of gemmd."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from gemmd.v1 import tensors_pb2

ROW_MAJOR = tensors_pb2.ORDER_ROW_MAJOR
COLUMN_MAJOR = tensors_pb2.ORDER_COLUMN_MAJOR


@dataclass(frozen=True)
class Element:
    name: str
    bits: int
    dtype: type  # The dtype of one element; B1 has one byte, 0 or 1, per element.
    low: int  # All integers from here to `high` are exact, and so are their products in f32.
    high: int
    unit: float = 0.0  # The largest relative rounding error; 0 for integers.
    least: float = 0.0  # The smallest positive number.

    @property
    def number(self):
        return tensors_pb2.ElementType.Value("ELEMENT_TYPE_" + self.name.upper())

    @property
    def is_integer(self):
        return self.unit == 0


def _float(name, bits, dtype, high):
    info = ml_dtypes.finfo(dtype)
    least = float(info.smallest_subnormal)
    return Element(name, bits, dtype, -high, high, float(info.eps) / 2, least)


_ALL = (
    _float("f64", 64, np.float64, 9),
    _float("f32", 32, np.float32, 9),
    Element("tf32", 32, np.float32, -9, 9, 2.0**-11, 2.0**-136),
    _float("f16", 16, np.float16, 9),
    _float("bf16", 16, ml_dtypes.bfloat16, 9),
    _float("e4m3", 8, ml_dtypes.float8_e4m3fn, 9),
    _float("e5m2", 8, ml_dtypes.float8_e5m2, 8),
    _float("e3m2", 6, ml_dtypes.float6_e3m2fn, 8),
    _float("e2m3", 6, ml_dtypes.float6_e2m3fn, 7),
    _float("e2m1", 4, ml_dtypes.float4_e2m1fn, 4),
    Element("s8", 8, np.int8, -128, 127),
    Element("u8", 8, np.uint8, 0, 255),
    Element("s4", 4, ml_dtypes.int4, -8, 7),
    Element("u4", 4, ml_dtypes.uint4, 0, 15),
    Element("b1", 1, np.uint8, 0, 1),
    Element("s32", 32, np.int32, -1000, 1000),
)
ELEMENTS = {element.name: element for element in _ALL}
BY_NUMBER = {element.number: element for element in _ALL}


def convert(values, element):
    """The nearest values of the type, ties to even; saturates as the contract says."""
    values = np.asarray(values)
    if element.is_integer:
        info = ml_dtypes.iinfo(element.dtype)
        limits = (0, 1) if element.name == "b1" else (int(info.min), int(info.max))
        return np.clip(np.rint(values), *limits).astype(element.dtype)
    if element.name == "tf32":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
    if element.bits <= 8:
        largest = float(ml_dtypes.finfo(element.dtype).max)
        values = np.clip(values, -largest, largest)
    with np.errstate(over="ignore"):  # Overflow gives infinity.
        return values.astype(element.dtype)


def line_bytes(element, leading_dimension):
    return (leading_dimension * element.bits + 7) // 8


def _pack(lines, element):
    """Lines of elements, the last axis along the line, as bytes."""
    codes = np.ascontiguousarray(lines).view(np.uint8)  # Little-endian, as on the wire.
    if element.bits >= 8:
        return codes
    bits = codes[..., None] >> np.arange(element.bits, dtype=np.uint8) & 1
    return np.packbits(bits.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def _unpack(data, element, length):
    if element.bits >= 8:
        return data[..., : length * element.bits // 8].copy().view(element.dtype)
    bits = np.unpackbits(data, axis=-1, bitorder="little", count=length * element.bits)
    bits = bits.reshape(*data.shape[:-1], length, element.bits)
    weights = 1 << np.arange(element.bits, dtype=np.uint8)
    return (bits * weights).sum(axis=-1, dtype=np.uint8).view(element.dtype)


def store(matrices, element, order=ROW_MAJOR, padding=0, gap=0, filler=0):
    """The bytes of a batch of matrices (batch x rows x columns, of the element's dtype), their
    leading dimension and their batch stride in elements (None where there is no gap).

    `padding` elements follow each line and at least `gap` bytes each matrix but the last; they, and
    the unused bits of a line's last byte, are those of the byte `filler`.
    """
    lines = matrices if order == ROW_MAJOR else matrices.swapaxes(1, 2)
    batch, count, length = lines.shape
    leading = length + padding
    width = line_bytes(element, leading)
    granule = int(np.lcm(element.bits, 8)) // 8  # A stride is a whole number of elements.
    stride = -(-(count * width + gap) // granule) * granule if gap else count * width
    image = np.full((batch, stride), filler, np.uint8)
    if lines.size:
        packed = _pack(lines, element)
        unused = 0xFF << ((length * element.bits - 1) % 8 + 1) & 0xFF
        packed[..., -1] |= filler & unused
        image[:, : count * width].reshape(batch, count, width)[..., : packed.shape[-1]] = packed
    data = image.tobytes()[: max(0, batch - 1) * stride + count * width]
    return data, leading, stride * 8 // element.bits if gap else None


def load(matrix):
    """The values of a gemmd.v1.Matrix, batch x rows x columns."""
    element = BY_NUMBER[matrix.type]
    lines, length = matrix.rows, matrix.columns
    if matrix.order == COLUMN_MAJOR:
        lines, length = length, lines
    width = line_bytes(element, matrix.leading_dimension)
    image = np.zeros(matrix.batch * matrix.batch_stride, np.uint8)
    image[: len(matrix.data)] = np.frombuffer(matrix.data, np.uint8)
    image = image.reshape(matrix.batch, matrix.batch_stride)[:, : lines * width]
    values = _unpack(image.reshape(matrix.batch, lines, width), element, length)
    return values if matrix.order == ROW_MAJOR else values.swapaxes(1, 2)
