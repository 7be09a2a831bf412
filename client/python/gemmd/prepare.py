# SPDX-License-Identifier: Apache-2.0
"""Prepares matrices on the client: prunes and packs to 2:4, or quantizes to 8 bits or fewer.

The bytes equal those of the C++ client's Pack24, Quantize and QuantizeBlocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gemmd.blocks import MAX_PER_BLOCK, BlockScale, factors_of
from gemmd.checks import array as checked_array
from gemmd.checks import no_effect, refused, text, whole
from gemmd.elements import Element, named_element, pack, typed
from gemmd.errors import refusal
from gemmd.operands import StoredOperand, operand_of
from gemmd.v1 import tensors_pb2

# The value to which a factor scales the largest magnitude; s8 is symmetric.
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "s8": 127.0, "u8": 255.0}
_LARGEST_IN_BLOCKS = {
    "e4m3": 448.0,
    "e5m2": 57344.0,
    "e3m2": 28.0,
    "e2m3": 7.5,
    "e2m1": 6.0,
    "s8": 127.0,
    "s4": 7.0,
}


@dataclass(frozen=True)
class SparseMatrix(StoredOperand):
    """A 2:4 sparse A, or a batch of them, made by `pack24`.

    Attributes:
        element: the type of its elements.
        shape: that of the dense array.
        data: the bytes, as Sparsity in tensors.proto says.
        dropped: nonzero elements that pruning dropped.
    """

    element: Element
    shape: tuple[int, ...]
    data: np.ndarray = field(repr=False)
    dropped: int = 0

    def as_operand(self, batch: int) -> tuple[tensors_pb2.Operand, memoryview]:
        """See `gemmd.operands.StoredOperand`."""
        message = tensors_pb2.Operand(type=self.element.number, sparsity=tensors_pb2.SPARSITY_2_4)
        if batch != 1 and int(np.prod(self.shape[:-2])) == 1:
            message.batch_stride = 0
        return message, self.data.data


@dataclass(frozen=True)
class QuantizedMatrix(StoredOperand):
    """A matrix of at most 8 bits per element and the factors that restore its values; an operand of a product.

    Attributes:
        array: the elements.
        scale: one factor, or one per row or column, or block factors.
        k_axis: the axis of `array` along k, for block factors.
    """

    array: np.ndarray
    scale: np.ndarray | BlockScale
    k_axis: int = 1
    has_scale = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.array.shape

    @property
    def T(self) -> QuantizedMatrix:
        """The transposed matrix: a B if this is an A. Factors belong to rows of A or columns of B, so they do not
        change."""
        return QuantizedMatrix(self.array.T, self.scale, 1 - self.k_axis)

    def as_operand(self, batch: int) -> tuple[tensors_pb2.Operand, memoryview | None]:
        """See `gemmd.operands.StoredOperand`."""
        return operand_of(self.array, (batch,), None, self.scale, "array")


def _group(element: Element) -> tuple[int, int]:
    """Units per group, of which half are kept, and elements per unit."""
    if element.name in ("f64", "b1", "s32"):
        raise refusal("type", element.name, "a type that has a sparse form")
    if element.bits == 32:
        return 2, 1
    return 4, 2 if element.bits == 4 else 1


def _values(codes: np.ndarray, element: Element) -> np.ndarray:
    if element.name == "tf32":
        codes = (codes.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return codes.astype(np.float64)


def _kept_units(values: np.ndarray, kept: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices of kept units, ascending (rows x groups x kept), and whether each unit has a nonzero. `values` is
    rows x groups x units x elements. Keeps the largest magnitudes; NaN is larger than infinity, and among equals the
    first is kept."""
    is_nan = np.isnan(values)
    magnitude = np.where(is_nan, 0, np.abs(values)).sum(axis=-1)
    is_nonzero = (values != 0).any(axis=-1)
    rank = np.where(is_nan.any(axis=-1), 0, np.where(is_nonzero, 1, 2))
    best_first = np.lexsort((-magnitude, rank), axis=-1)
    return np.sort(best_first[..., :kept], axis=-1), is_nonzero


def _refuse(is_nonzero: np.ndarray, kept: int, unit: int) -> None:
    """Names the first group that has more than may be kept."""
    counts = is_nonzero.sum(axis=-1)
    too_many = np.argwhere(counts > kept)
    if len(too_many):
        row, group = too_many[0]
        what = "nonzero pairs" if unit == 2 else "nonzero elements"
        raise refusal(
            f"dense.data: row {row}, group {group}",
            f"{counts[row, group]} {what}",
            f"at most {kept}",
        )


def pack24(
    dense: npt.ArrayLike, *, type: Any = None, prune: Literal["smallest", "refuse"] = "smallest"
) -> SparseMatrix:
    """The 2:4 form of an A: half of the elements of each row, and their positions.

    Drops the smallest magnitudes of each group; among equals, the last. With ``prune="refuse"``, a group with too many
    nonzero elements raises InvalidArgument. `type` is for types without a dtype (``tf32``).
    """
    if prune not in ("smallest", "refuse"):
        raise refused("prune", prune, "smallest or refuse")
    array, element = typed(checked_array("dense", dense), type, "dense")
    if array.ndim < 2:
        raise refusal("dense.shape", array.shape, "2 dimensions or more")
    units, unit = _group(element)
    kept = units // 2
    rows = int(np.prod(array.shape[:-1]))
    columns = array.shape[-1]
    groups = -(-columns // (units * unit))
    padded = np.zeros((rows, groups * units * unit), array.dtype)
    padded[:, :columns] = array.reshape(rows, columns)
    elements = padded.reshape(rows, groups, units, unit)
    values = _values(elements, element)
    places, is_nonzero = _kept_units(values, kept)
    if prune == "refuse":
        _refuse(is_nonzero, kept, unit)
    elements[~is_nonzero] = 0
    lines = np.take_along_axis(elements, places[..., None], axis=2).reshape(rows, groups * kept * unit)
    kept_nonzeros = np.count_nonzero(np.take_along_axis(values, places[..., None], axis=2) != 0)
    data = _matrices(array.shape, lines, places.reshape(rows, groups * kept).astype(np.uint8), element)
    return SparseMatrix(
        element, array.shape, data, int(np.count_nonzero(values != 0) - kept_nonzeros)
    )


def _matrices(
    shape: tuple[int, ...], lines: np.ndarray, places: np.ndarray, element: Element
) -> np.ndarray:
    """The bytes of a batch: for each matrix its elements, then its two-bit indices."""
    matrices = int(np.prod(shape[:-2]))
    bits = np.stack([places & 1, places >> 1], axis=-1).reshape(len(places), 2 * places.shape[1])
    indices = np.packbits(bits, axis=-1, bitorder="little")
    stored = [pack(lines, element), indices.reshape(-1)]
    if not len(lines):
        return np.concatenate(stored)
    return np.concatenate([part.reshape(matrices, -1) for part in stored], axis=1).reshape(-1)


def _nearest(values: np.ndarray, element: Element) -> np.ndarray:
    """The nearest elements, ties to even, of values within the type's range. Rounds only once, from float64; a
    conversion through float32 would round twice."""
    if element.name in ("s8", "u8"):
        return np.rint(values).astype(element.dtype)
    if element.name == "s4":
        return np.rint(values).astype(np.int8).astype(element.dtype)
    sign = element.bits - 1
    codes = np.arange(1 << sign, dtype=np.uint8).view(element.dtype).astype(np.float64)
    steps = codes[np.isfinite(codes)]
    middles = (steps[:-1] + steps[1:]) / 2
    magnitudes = np.abs(values)
    nearest = np.searchsorted(middles, magnitudes)
    is_tie = (nearest < len(middles)) & (
        middles[np.minimum(nearest, len(middles) - 1)] == magnitudes
    )
    nearest += is_tie & (nearest % 2 == 1)
    signs = np.signbit(values).astype(np.uint8) << sign
    return (nearest.astype(np.uint8) | signs).view(element.dtype)


def _quantize_blocks(
    array: np.ndarray, element: Element, block: tuple[int, int], factors: str, along_rows: bool
) -> QuantizedMatrix:
    if element.name not in _LARGEST_IN_BLOCKS:
        raise refusal("type", element.name, "e4m3, e5m2, e3m2, e2m3, e2m1, s8 or s4 with blocks")
    try:
        lines_per_block, k_per_block = block
    except (TypeError, ValueError):
        raise refused("block", block, "two whole numbers: lines, and elements along k") from None
    lines_per_block = whole("block", lines_per_block, 1, MAX_PER_BLOCK)
    k_per_block = whole("block", k_per_block, 1, MAX_PER_BLOCK)
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise refusal("values", f"{array[row, column]} at [{row}, {column}]", "a finite value")
    lines = array if along_rows else array.T
    line_blocks = -(-lines.shape[0] // lines_per_block)
    depth_blocks = -(-lines.shape[1] // k_per_block)
    magnitudes = np.zeros((line_blocks, depth_blocks))
    at = np.arange(lines.shape[0]) // lines_per_block, np.arange(lines.shape[1]) // k_per_block
    np.maximum.at(magnitudes, (at[0][:, None], at[1][None, :]), np.abs(lines))
    largest = _LARGEST_IN_BLOCKS[element.name]
    stored, values = factors_of(magnitudes, largest, factors)
    scaled = np.clip(lines / values[at[0]][:, at[1]], -largest, largest)
    elements = _nearest(scaled, element)
    scale = BlockScale(stored, rows=lines_per_block, k=k_per_block)
    return QuantizedMatrix(elements if along_rows else elements.T, scale, 1 if along_rows else 0)


def quantize(
    values: npt.ArrayLike,
    type: Any,
    *,
    per: Literal["matrix", "row", "column"] = "matrix",
    block: tuple[int, int] | None = None,
    factors: Literal["f32", "ue8m0", "ue4m3"] = "f32",
    k_axis: Literal[0, 1] = 1,
) -> QuantizedMatrix:
    """A matrix as elements of an 8-bit type (``e4m3``, ``e5m2``, ``s8``, ``u8``) times factors.

    Each factor scales the largest magnitude that it covers to the largest value of the type (127 for s8). ``row`` is
    for A, ``column`` for B: the server scales rows of op(A) and columns of op(B).

    With `block`, each block has a factor, and the type is a float of at most 8 bits, ``s8`` or ``s4`` (whose largest
    value is then 7); the integers are for products with f16 or bf16. ``block=(1, 128)`` means one factor per row and
    128 elements along k. `k_axis` is the axis of the values along k: 1 for an A, and for a B stored
    as n x k and used as ``.T``; 0 for a B stored as k x n, whose columns then take the role of rows. `factors` is the
    type of the factors; ``ue8m0`` and ``ue4m3`` factors are the smallest that avoid saturation, if any does. OCP's MX
    is ``block=(1, 32), factors="ue8m0"``, NVFP4 is ``e2m1`` with ``block=(1, 16), factors="ue4m3"``.
    """
    element = named_element(type, "type")
    if block is not None:
        no_effect({"per": None if per == "matrix" else per}, ["per"], "block")
        array = checked_array("values", values, np.float32)
        if array.ndim != 2:
            raise refusal("values.shape", array.shape, "rows and columns")
        along_rows = whole("k_axis", k_axis, 0, 1) == 1
        return _quantize_blocks(array, element, block, factors, along_rows)
    only_with_blocks = {"factors": None if factors == "f32" else factors, "k_axis": None if k_axis == 1 else k_axis}
    no_effect(only_with_blocks, only_with_blocks, "no block")
    if element.name not in _LARGEST:
        raise refusal("type", element.name, "e4m3, e5m2, s8 or u8")
    array = checked_array("values", values, np.float32)
    if array.ndim != 2:
        raise refusal("values.shape", array.shape, "rows and columns")
    is_bad = ~np.isfinite(array)
    if element.name == "u8":
        is_bad |= array < 0
    if is_bad.any():
        row, column = np.argwhere(is_bad)[0]
        want = "a finite value" + (" of at least 0" if element.name == "u8" else "")
        raise refusal("values", f"{array[row, column]} at [{row}, {column}]", want)
    largest = _LARGEST[element.name]
    axes: dict[str, Any] = {"matrix": (0, 1), "row": 1, "column": 0}
    if text("per", per) not in axes:
        raise refusal("per", repr(per), "matrix, row or column")
    magnitude = np.abs(array).max(axis=axes[per], keepdims=True, initial=0)
    scale = (magnitude.astype(np.float64) / largest).astype(np.float32)
    # Zeros, and magnitudes so small that their factor would be 0, use the factor 1.
    scale[scale == 0] = 1
    scaled = np.clip(array / scale.astype(np.float64), -largest, largest)
    return QuantizedMatrix(_nearest(scaled, element), scale.reshape(-1))
