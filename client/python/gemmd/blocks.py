# SPDX-License-Identifier: Apache-2.0
"""Block factors: one factor per block of rows of A (or columns of B) by elements along k."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from gemmd.checks import text, whole
from gemmd.errors import refusal
from gemmd.v1 import tensors_pb2

MAX_PER_BLOCK = 2**63 - 1  # Messages carry it in 64 bits.
_BY_DTYPE = {
    np.dtype(np.float32): "f32",
    np.dtype(ml_dtypes.float8_e8m0fnu): "ue8m0",
    np.dtype(ml_dtypes.float8_e4m3fn): "ue4m3",
}
_WIRE_DTYPES = {"f32": np.dtype("<f4"), "ue8m0": np.dtype(np.uint8), "ue4m3": np.dtype(np.uint8)}


@dataclass(frozen=True)
class BlockScale:
    """Factors of the blocks of an operand whose elements have at most 8 bits: floats or, times f16 or bf16, integers.

    Each element stands for its value times the factor of its block. DeepGEMM uses blocks of 1 x 128 for A and 128 x 128
    for B with f32 factors; OCP MX uses 1 x 32 with ue8m0, NVFP4 1 x 16 with ue4m3.

    Attributes:
        factors: one line per block of rows of A (or columns of B), with one factor per block along k; one such matrix,
            or one per matrix of a batch. Blocks at the ends may be shorter.
        rows: rows of A, or columns of B, that share a factor.
        k: elements along k that share a factor.
        type: ``f32``, ``ue8m0`` or ``ue4m3``, needed if `factors` are codes (uint8); otherwise given by their dtype.
    """

    factors: np.ndarray = field(repr=False)
    rows: int = 1
    k: int = 128
    type: str | None = None

    def fill(self, message: tensors_pb2.BlockScale) -> None:
        """Writes the factors into a message."""
        factors = np.asarray(self.factors)
        name = _BY_DTYPE.get(factors.dtype) if self.type is None else text("scale.type", self.type)
        wire = _WIRE_DTYPES.get(name or "")
        if name is None or wire is None:
            got = str(factors.dtype) if self.type is None else repr(self.type)
            raise refusal("scale.type", got, "f32, ue8m0 or ue4m3")
        if factors.dtype != wire and _BY_DTYPE.get(factors.dtype) != name:
            raise refusal("scale.factors", str(factors.dtype), f"factors of {name}")
        if factors.ndim not in (2, 3):
            raise refusal("scale.factors", f"{factors.ndim} dimensions", "lines x blocks along k")
        message.type = tensors_pb2.FactorType.Value("FACTOR_TYPE_" + name.upper())
        message.rows_per_block = whole("scale.rows", self.rows, 1, MAX_PER_BLOCK)
        message.k_per_block = whole("scale.k", self.k, 1, MAX_PER_BLOCK)
        message.per_matrix = factors.ndim == 3
        message.factors = np.ascontiguousarray(factors).view(wire).tobytes()


def _min_power_of_two(ratios: np.ndarray) -> np.ndarray:
    """The ue8m0 codes of the smallest powers of two that are at least the ratios."""
    fractions, exponents = np.frexp(ratios)
    least = np.where(fractions == 0.5, exponents - 1, exponents)
    return (np.clip(least, -127, 127) + 127).astype(np.uint8)


def _min_ue4m3(ratios: np.ndarray) -> np.ndarray:
    """The ue4m3 codes of the smallest factors that are at least the ratios, at most 448."""
    steps = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return np.clip(np.searchsorted(steps, ratios), 1, 0x7E).astype(np.uint8)


def factors_of(magnitudes: np.ndarray, largest: float, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Factors that scale the largest magnitudes of blocks into a type's range, as stored, and their values: the
    smallest such ue8m0 or ue4m3 factors, or the nearest f32 factors."""
    ratios = np.where(magnitudes == 0, 1.0, magnitudes.astype(np.float64) / largest)
    match name:
        case "f32":
            stored = ratios.astype(np.float32)
            stored[stored == 0] = 1  # The magnitude is so small that its factor would be 0.
        case "ue8m0":
            stored = _min_power_of_two(ratios).view(ml_dtypes.float8_e8m0fnu)
        case "ue4m3":
            stored = _min_ue4m3(ratios).view(ml_dtypes.float8_e4m3fn)
        case _:
            raise refusal("factors", repr(name), "f32, ue8m0 or ue4m3")
    return stored, stored.astype(np.float64)
