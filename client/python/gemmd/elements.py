# SPDX-License-Identifier: Apache-2.0
"""The wire's element types as types of NumPy and ml_dtypes, and the packing of their elements."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from gemmd.errors import refusal
from gemmd.v1 import tensors_pb2


@dataclass(frozen=True)
class Element:
    """One element type: its name (``bf16``), its width on the wire, and its type in arrays. An array has at least one
    byte per element; narrower elements are packed for sending.
    """

    name: str
    bits: int
    dtype: np.dtype

    @functools.cached_property
    def number(self) -> tensors_pb2.ElementType:
        """The value of gemmd.v1.ElementType."""
        return tensors_pb2.ElementType.Value("ELEMENT_TYPE_" + self.name.upper())

    def line_bytes(self, length: int) -> int:
        """The bytes of a line of `length` elements."""
        return (length * self.bits + 7) // 8


ELEMENTS: dict[str, Element] = {
    name: Element(name, bits, np.dtype(dtype))
    for name, bits, dtype in (
        ("f64", 64, np.float64),
        ("f32", 32, np.float32),
        ("f16", 16, np.float16),
        ("bf16", 16, ml_dtypes.bfloat16),
        ("e4m3", 8, ml_dtypes.float8_e4m3fn),
        ("e5m2", 8, ml_dtypes.float8_e5m2),
        ("e3m2", 6, ml_dtypes.float6_e3m2fn),
        ("e2m3", 6, ml_dtypes.float6_e2m3fn),
        ("e2m1", 4, ml_dtypes.float4_e2m1fn),
        ("s8", 8, np.int8),
        ("u8", 8, np.uint8),
        ("s4", 4, ml_dtypes.int4),
        ("u4", 4, ml_dtypes.uint4),
        ("b1", 1, np.bool_),
        ("s32", 32, np.int32),
        # Last, so that an array of float32 is f32 by default.
        ("tf32", 32, np.float32),
    )
}
_BY_NUMBER = {element.number: element for element in ELEMENTS.values()}
_BY_DTYPE = {element.dtype: element for element in reversed(ELEMENTS.values())}


def element_of(dtype: np.dtype, field: str) -> Element:
    """The element type of an array; errors name `field`."""
    element = _BY_DTYPE.get(dtype.newbyteorder("=") if dtype.byteorder in "<>" else dtype)
    if element is None:
        raise refusal(f"{field}.dtype", dtype, "one of " + ", ".join(str(d) for d in _BY_DTYPE))
    return element


def named_element(name: Any, field: str) -> Element:
    """The element type for a name (``"bf16"``) or anything that NumPy accepts as a dtype."""
    if isinstance(name, str) and name in ELEMENTS:
        return ELEMENTS[name]
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):  # NumPy raises any of these for unknown names.
        raise refusal(field, repr(name), "a dtype or one of " + ", ".join(ELEMENTS)) from None
    return element_of(dtype, field)


def numbered_element(number: tensors_pb2.ElementType) -> Element:
    """The element type of a value of gemmd.v1.ElementType."""
    return _BY_NUMBER[number]


def typed(array: np.ndarray, name: object, field: str) -> tuple[np.ndarray, Element]:
    """An array and its element type. `name`, if given, must be a type that the array's dtype can hold (``"tf32"`` in
    float32), or one of the width of an array of unsigned codes."""
    if name is None:
        return array, element_of(array.dtype, field)
    element = named_element(name, f"{field}_type")
    if array.dtype == element.dtype:
        return array, element
    is_codes = array.dtype.kind == "u" and array.dtype.itemsize == element.dtype.itemsize
    if not is_codes:
        raise refusal(f"{field}.dtype", array.dtype, f"{element.dtype} for {element.name}")
    return array.view(element.dtype), element


def pack(lines: np.ndarray, element: Element) -> np.ndarray:
    """The bytes of lines without gaps; the last axis runs along a line. Copies only elements narrower than a byte."""
    if element.bits >= 8:
        return lines.reshape(-1).view(np.uint8)
    codes: np.ndarray = lines.view(np.uint8) & np.uint8((1 << element.bits) - 1)
    length = codes.shape[-1]
    if element.bits == 4:
        if length % 2:
            codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], axis=-1)
        return (codes[..., 0::2] | codes[..., 1::2] << 4).reshape(-1)
    if element.bits > 1:
        codes = codes[..., None] >> np.arange(element.bits, dtype=np.uint8) & 1
        codes = codes.reshape(*lines.shape[:-1], length * element.bits)
    return np.packbits(codes, axis=-1, bitorder="little").reshape(-1)


def unpack(data: Any, element: Element, shape: tuple[int, ...]) -> np.ndarray:
    """An array of the shape, the last axis along the line, from a buffer of packed bytes. A view of the bytes unless
    elements are narrower than a byte."""
    if element.bits >= 8:
        return np.frombuffer(data, element.dtype).reshape(shape)
    *lines, length = shape
    data = np.frombuffer(data, np.uint8).reshape(*lines, element.line_bytes(length))
    if element.bits == 4:
        pairs = np.stack([data & 0xF, data >> 4], axis=-1).reshape(*lines, -1)
        return np.ascontiguousarray(pairs[..., :length]).view(element.dtype)
    bits = np.unpackbits(data, axis=-1, bitorder="little", count=length * element.bits)
    if element.bits == 1:
        return bits.view(element.dtype)
    weights = np.uint8(1) << np.arange(element.bits, dtype=np.uint8)
    bits = bits.reshape(*lines, length, element.bits)
    return (bits * weights).sum(axis=-1, dtype=np.uint8).view(element.dtype)
