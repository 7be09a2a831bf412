# SPDX-License-Identifier: Apache-2.0
"""gemmctl convert beside NumPy and ml_dtypes: every element type into every other one, bit for bit, with the counts
of what changed."""

import io
import json

import ml_dtypes
import numpy
import pytest

GEMMD_FLAGS = ("--devices=cpu", "--cpu-threads=1")

FLOATS = {
    "f64": numpy.float64,
    "f32": numpy.float32,
    "tf32": numpy.float32,
    "f16": numpy.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
INTEGERS = {
    "s8": (numpy.int8, -128, 127),
    "u8": (numpy.uint8, 0, 255),
    "s4": (ml_dtypes.int4, -8, 7),
    "u4": (ml_dtypes.uint4, 0, 15),
    "b1": (numpy.bool_, 0, 1),
    "s32": (numpy.int32, -(2**31), 2**31 - 1),
}
BITS = {"e3m2": 6, "e2m3": 6, "e2m1": 4, "s4": 4, "u4": 4, "b1": 1}
SATURATING = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"]
WITHOUT_NAN = ["e3m2", "e2m3", "e2m1"]
TYPES = list(FLOATS) + list(INTEGERS)


def dtype_of(name):
    return FLOATS[name] if name in FLOATS else INTEGERS[name][0]


def every_pattern(name):
    dtype = numpy.dtype(dtype_of(name))
    if dtype.itemsize == 2:
        return numpy.arange(1 << 16, dtype=numpy.uint16).view(dtype)
    return numpy.arange(1 << BITS.get(name, 8), dtype=numpy.uint8).view(dtype)


def finite_values(name):
    values = every_pattern(name).astype(numpy.float64)
    return numpy.unique(values[numpy.isfinite(values)])


def interesting_values():
    """Values of f32: the midpoints between all neighbours of each narrow type and the values next
    to them, powers of two over the whole range, and random patterns."""
    random = numpy.random.default_rng(20260102)
    midpoints = [(values[1:] + values[:-1]) / 2 for values in map(finite_values, SATURATING + ["s8", "u8"])]
    largest = [finite_values(name)[-1] for name in SATURATING + ["f16"]]
    beyond = [factor * value for factor in (1, 1 + 1 / 64, 1 + 1 / 32, 1 + 1 / 16, 1 + 1 / 8, 2) for value in largest]
    powers = numpy.ldexp(1.0, numpy.arange(-149, 128))
    values = numpy.concatenate(midpoints + [beyond, powers, [0.5, 1.5, 2.5, 2**31, 2**31 - 128]])
    values = numpy.concatenate([values, -values]).astype(numpy.float32)
    beside = [numpy.nextafter(values, numpy.float32(limit)) for limit in (numpy.inf, -numpy.inf)]
    patterns = random.integers(0, 1 << 32, size=20000, dtype=numpy.uint64).astype(numpy.uint32).view(numpy.float32)
    return numpy.concatenate([values, *beside, patterns, numpy.float32([numpy.nan, -numpy.nan, numpy.inf])])


def input_of(name):
    if name in ("f32", "tf32"):
        values = interesting_values()
        return values if name == "f32" else (values.view(numpy.uint32) & 0xFFFFE000).view(numpy.float32)
    if name == "f64":
        edges = [2.0**31 - 0.5, 2.0**31 - 0.75, -(2.0**31) - 0.5, -(2.0**31) - 0.75, 0.5, 1.5]
        return numpy.concatenate([interesting_values().astype(numpy.float64), edges])
    if name == "s32":
        random = numpy.random.default_rng(20260103)
        return numpy.concatenate(
            [random.integers(-(2**31), 2**31, size=5000), numpy.arange(-600, 600), [-(2**31), 2**31 - 1]]
        ).astype(numpy.int32)
    return every_pattern(name)


def rounded_to_tf32(values):
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000).view(numpy.float32)


def expected(values, name):
    """The array of type `name` that the values (f64) are converted to."""
    if name in INTEGERS:
        dtype, least, most = INTEGERS[name]
        return numpy.clip(numpy.rint(numpy.nan_to_num(values, nan=0, posinf=most, neginf=least)), least, most).astype(dtype)
    if name in SATURATING:
        largest = finite_values(name)[-1]
        if name in WITHOUT_NAN:
            values = numpy.where(numpy.isnan(values), numpy.copysign(largest, values), values)
        return numpy.clip(values, -largest, largest).astype(FLOATS[name])
    return rounded_to_tf32(values) if name == "tf32" else values.astype(FLOATS[name])


def is_beyond(values, name):
    """Which values would round beyond the largest or smallest value of the type if its range were
    unbounded."""
    if name in INTEGERS:
        _, least, most = INTEGERS[name]
        return (numpy.rint(values) < least) | (numpy.rint(values) > most)
    if name not in SATURATING:
        return numpy.zeros(values.shape, bool)
    largest = finite_values(name)
    edge = largest[-1] + (largest[-1] - largest[-2]) / 2
    # A tie rounds to the largest value if its pattern is even, which is the case only in e4m3.
    is_even = name == "e4m3"
    return (abs(values) > edge) if is_even else (abs(values) >= edge)


def check(ctl, folder, source, target, order):
    values = input_of(source)
    # Lines of odd length end within a byte; the first values are repeated at the end.
    values = numpy.resize(values, (5, -(-len(values) // 5) | 1))
    if target not in ("f64", "f32", "f16", *INTEGERS):
        # Other types are converted through f32 here, so only values that f32 represents are rounded
        # once.
        if source == "f64":
            values = values.astype(numpy.float32).astype(numpy.float64)
        elif source == "s32":
            values = numpy.where(abs(values.astype(numpy.int64)) < 1 << 24, values, values & ~0xFF)
    numpy.save(folder / "in.npy", numpy.array(values, order="F" if order == "column" else "C"))
    case = f"{source} to {target}, {order}"
    flags = ["--input-type", source, "--type", target, "--order", order, "--json"]
    code, out, err = ctl("convert", "in.npy", *flags, "-o", "out.npy")
    assert code == 0, f"{case}: {err}"
    report = json.loads(out)
    got = numpy.load(folder / "out.npy").view(dtype_of(target))
    before = values.astype(numpy.float64)
    want = expected(before, target)
    if source == target:
        want = values
    assert got.shape == values.shape, case
    if got.shape[1] > 1:
        assert got.flags.f_contiguous == (order == "column"), case
    after = got.astype(numpy.float64)
    differs = (after != want.astype(numpy.float64)) & ~(numpy.isnan(after) & numpy.isnan(want.astype(numpy.float64)))
    assert not differs.any(), f"{case}: {before[differs][:5]} became {after[differs][:5]}, want {want[differs][:5]}"
    is_nan = numpy.isnan(before)
    is_changed = ~is_nan & (after != before)
    becomes_infinite = is_changed & numpy.isinf(after)
    saturates = is_changed & ~becomes_infinite & is_beyond(before, target)
    counts = {
        "values": before.size,
        "rounded": int((is_changed & ~becomes_infinite & ~saturates).sum()),
        "saturated": int(saturates.sum()),
        "became_infinite": int(becomes_infinite.sum()),
        "nan": int((is_nan & numpy.isnan(after)).sum()),
        "nan_lost": int((is_nan & ~numpy.isnan(after)).sum()),
    }
    for key, count in counts.items():
        assert report[key] == count, f"{case}: {key}: got {report[key]}, want {count}"


@pytest.mark.parametrize("source", TYPES)
def test_every_type_becomes_every_other(ctl, tmp_path, source):
    with numpy.errstate(all="ignore"):
        for i, target in enumerate(TYPES):
            check(ctl, tmp_path, source, target, ("row", "column")[(i + TYPES.index(source)) % 2])


def test_arrays_in_pipes(ctl):
    """What numpy writes into a pipe can be read from it, and a vector is a row."""
    array = numpy.arange(24, dtype=numpy.float32)
    for shape in ((2, 3, 4), (24,)):
        source = io.BytesIO()
        numpy.save(source, array.reshape(shape))
        flags = ["--type", "s8", "--json", "-o", "-"]
        code, out, err = ctl("convert", "-", *flags, stdin=source.getvalue(), is_binary=True)
        assert code == 0, err
        assert numpy.array_equal(numpy.load(io.BytesIO(out)), array.reshape(shape))
        told = json.loads(err)
        assert (told["batch"], told["rows"], told["columns"]) == (shape if len(shape) == 3 else (1, 1, 24))
        flags += ["--shape", "8,3"]
        code, out, err = ctl("convert", "-", *flags, stdin=source.getvalue(), is_binary=True)
        assert code == 0, err
        assert numpy.array_equal(numpy.load(io.BytesIO(out)), array.reshape(8, 3))
