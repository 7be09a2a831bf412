# SPDX-License-Identifier: Apache-2.0
"""Checks client/matrix/npy.h against the real numpy and ml_dtypes: what they write is read, and what is written
they read back, bit for bit.

usage: npy_check.py NPY_REWRITE, the helper built from npy_rewrite.cc. Needs numpy and ml_dtypes.
"""

import itertools
import os
import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy

# Element type, dtype, and whether numpy.save loses the type, so that it must be given.
TYPES = [
    ("f64", numpy.float64, False),
    ("f32", numpy.float32, False),
    ("f16", numpy.float16, False),
    ("bf16", ml_dtypes.bfloat16, False),
    ("e5m2", ml_dtypes.float8_e5m2, False),
    ("e4m3", ml_dtypes.float8_e4m3fn, True),
    ("e3m2", ml_dtypes.float6_e3m2fn, True),
    ("e2m3", ml_dtypes.float6_e2m3fn, True),
    ("e2m1", ml_dtypes.float4_e2m1fn, True),
    ("s4", ml_dtypes.int4, True),
    ("u4", ml_dtypes.uint4, True),
    ("s8", numpy.int8, False),
    ("u8", numpy.uint8, False),
    ("s32", numpy.int32, False),
    ("b1", numpy.bool_, False),
]
BITS = {"e3m2": 6, "e2m3": 6, "e2m1": 4, "s4": 4, "u4": 4, "b1": 1}
SHAPES = [(5,), (1, 1), (3, 5), (8, 9), (0, 4), (4, 0), (2, 3, 5), (1, 4, 3), (3, 0, 2)]


def rewrite(program, source, target, element_type=None):
    command = [program, source, target] + ([element_type] if element_type else [])
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def random_array(random, name, dtype, shape):
    """Every bit pattern of the type, NaN and infinities included."""
    item_bytes = numpy.dtype(dtype).itemsize
    raw = random.integers(0, 256, size=shape + (item_bytes,), dtype=numpy.uint8)
    if name in BITS:
        raw &= (1 << BITS[name]) - 1
    return raw.view(dtype).reshape(shape)


def bits(array):
    return numpy.ascontiguousarray(array).tobytes()


def check_round_trips(program, folder):
    seed = int(os.environ.get("GEMMD_TEST_SEED", 20260101))
    print(f"GEMMD_TEST_SEED={seed}", flush=True)
    random = numpy.random.default_rng(seed)
    source, target = folder / "source.npy", folder / "target.npy"
    count = 0
    for (name, dtype, needs_name), shape, order in itertools.product(TYPES, SHAPES, "CF"):
        array = numpy.array(random_array(random, name, dtype, shape), order=order)
        numpy.save(source, array)
        case = f"{name} {shape} {order}"
        result = rewrite(program, source, target, name if needs_name else None)
        assert result.returncode == 0, f"{case}: {result.stderr}"
        is_fortran = array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous
        assert result.stdout == f"{name} {'column' if is_fortran else 'row'}\n", f"{case}: {result.stdout}"
        again = numpy.load(target).view(dtype)
        assert again.shape == array.shape, case
        assert bits(again) == bits(array), case
        if is_fortran:
            assert again.flags.f_contiguous, case
        count += 1
    return count


def check_refusals(program, folder):
    source, target = folder / "source.npy", folder / "target.npy"
    count = 0
    for name, dtype, needs_name in TYPES:
        if not needs_name:
            continue
        numpy.save(source, numpy.zeros((2, 2), dtype))
        result = rewrite(program, source, target)
        assert result.returncode == 1 and "want its type named" in result.stderr, f"{name}: {result.stderr}"
        count += 1
    for dtype in ["i2", "i8", "u4", "c8", "U3", "S3", "M8[s]", [("x", "f4")]]:
        numpy.save(source, numpy.zeros((2, 2), dtype))
        result = rewrite(program, source, target)
        assert result.returncode == 1 and "npy " in result.stderr, f"{dtype}: {result.stderr}"
        count += 1
    return count


def check_formats(program, folder):
    source, target = folder / "source.npy", folder / "target.npy"
    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    count = 0
    for version, dtype in itertools.product([(1, 0), (2, 0), (3, 0)], ["<f4", ">f4", "<f8", ">f8", ">f2", ">i4"]):
        with open(source, "wb") as file:
            numpy.lib.format.write_array(file, array.astype(dtype), version=version)
        result = rewrite(program, source, target)
        assert result.returncode == 0, f"{version} {dtype}: {result.stderr}"
        assert (numpy.load(target) == array).all(), f"{version} {dtype}"
        count += 1
    # Arrays saved through a view of raw bits, as is common where a reader lacks ml_dtypes.
    for name, dtype, raw in [("bf16", ml_dtypes.bfloat16, "u2"), ("e4m3", ml_dtypes.float8_e4m3fn, "u1")]:
        values = array.astype(dtype)
        numpy.save(source, values.view(raw))
        assert rewrite(program, source, target, name).returncode == 0, name
        assert bits(numpy.load(target)) == bits(values), name
        count += 1
    return count


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        counts = [check(program, folder) for check in (check_round_trips, check_refusals, check_formats)]
    print(
        f"numpy {numpy.__version__}, ml_dtypes {ml_dtypes.__version__}: "
        f"{counts[0]} round trips, {counts[1]} refusals, {counts[2]} formats"
    )


if __name__ == "__main__":
    main()
