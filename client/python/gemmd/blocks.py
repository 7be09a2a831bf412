# SPDX-License-Identifier: Apache-2.0
"""Factors of blocks: one for so many rows of A, or columns of B, times so many elements along k."""

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
    """Factors of the blocks of an operand whose elements are floats of at most 8 bits.

    Each element counts as its value times the factor of its block. DeepGEMM's A has blocks of 1 x 128
    with factors of f32 and its B 128 x 128, OCP's MX types 1 x 32 of ue8m0, NVFP4 1 x 16 of ue4m3.

    Attributes:
        factors: for each block of rows of A, or columns of B, a line of a factor for each block along
            k; one such matrix, or one for each matrix of a batch. Blocks at the ends may be shorter.
        rows: rows of A, or columns of B, that share a factor.
        k: elements along k that share it.
        type: ``f32``, ``ue8m0`` or ``ue4m3``, where `factors` are codes (uint8); otherwise their dtype
            says it.
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
    """The codes of ue8m0 of the least powers of two that are no less than the ratios."""
    fractions, exponents = np.frexp(ratios)
    least = np.where(fractions == 0.5, exponents - 1, exponents)
    return (np.clip(least, -127, 127) + 127).astype(np.uint8)


def _min_ue4m3(ratios: np.ndarray) -> np.ndarray:
    """The codes of ue4m3 of the least factors that are no less than the ratios, 448 at most."""
    steps = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return np.clip(np.searchsorted(steps, ratios), 1, 0x7E).astype(np.uint8)


def factors_of(magnitudes: np.ndarray, largest: float, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Factors that bring the largest magnitudes of blocks within a type, as they are stored, and
    their values. Those of ue8m0 and ue4m3 are the least that do, those of f32 the nearest."""
    ratios = np.where(magnitudes == 0, 1.0, magnitudes.astype(np.float64) / largest)
    match name:
        case "f32":
            stored = ratios.astype(np.float32)
            stored[stored == 0] = 1  # A magnitude whose factor would be 0.
        case "ue8m0":
            stored = _min_power_of_two(ratios).view(ml_dtypes.float8_e8m0fnu)
        case "ue4m3":
            stored = _min_ue4m3(ratios).view(ml_dtypes.float8_e4m3fn)
        case _:
            raise refusal("factors", repr(name), "f32, ue8m0 or ue4m3")
    return stored, stored.astype(np.float64)
