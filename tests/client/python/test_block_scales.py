# SPDX-License-Identifier: Apache-2.0
"""Block factors, from arrays to answers: compared with NumPy, bit for bit if the recipe determines
each step, and exactly if every sum is exact."""

import itertools

import gemmd
import ml_dtypes
import numpy as np
import pytest
from gemmd.elements import ELEMENTS

GEMMD_FLAGS = ["--devices=cpu,sim:sm_120,sim:sm_90"]

CODES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}
NARROW = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"]


def elements(numbers, name, *shape):
    """Normal variates as elements; none is infinite."""
    return np.clip(numbers.normal(size=shape), -4, 4).astype(ELEMENTS[name].dtype)


def small_integers(numbers, name, *shape):
    return numbers.integers(-2, 3, shape).astype(ELEMENTS[name].dtype)


def factors(numbers, name, *shape):
    if name == "f32":
        return numbers.uniform(0.25, 4, shape).astype(np.float32)
    low, high = (120, 135) if name == "ue8m0" else (0x28, 0x48)
    return numbers.integers(low, high, shape).astype(np.uint8).view(CODES[name])


def simple_factors(numbers, name, *shape):
    """Powers of two near one, which every type can represent."""
    powers = 2.0 ** numbers.integers(-1, 2, shape)
    return powers.astype(np.float32 if name == "f32" else CODES[name])


def blocks(extent, per_block):
    return -(-extent // per_block)


def spread(scale, extent, k):
    """The factor of each element along k: an extent x k array, or a batch of them."""
    lines, depths = np.arange(extent) // scale.rows, np.arange(k) // scale.k
    return np.asarray(scale.factors).astype(np.float64)[..., lines[:, None], depths]


def expected(a, b, a_scale, b_scale):
    """What a kernel of `cpu` computes, one NumPy operation after the other."""
    k = a.shape[-1]
    x, y = a.astype(np.float32), b.astype(np.float32)
    fa = np.ones(a.shape) if a_scale is None else spread(a_scale, a.shape[-2], k)
    fb = np.ones((b.shape[-1], k)) if b_scale is None else spread(b_scale, b.shape[-1], k)
    ends = {k}
    for scale in (a_scale, b_scale):
        if scale is not None:
            ends |= set(range(scale.k, k, scale.k))
    total = np.zeros((a.shape[-2], b.shape[-1]), np.float32)
    first = 0
    for end in sorted(ends):
        part = np.zeros_like(total)
        for p in range(first, end):
            part = part + x[:, p, None] * y[None, p, :]
        scaled = part.astype(np.float64) * (fa[:, first, None] * fb[None, :, first])
        total = total + scaled.astype(np.float32)
        first = end
    return total


def scale_of(numbers, name, extent, k, rows, depth, draw=factors):
    return gemmd.BlockScale(
        draw(numbers, name, blocks(extent, rows), blocks(k, depth)), rows=rows, k=depth
    )


@pytest.mark.parametrize(
    "a_factors,b_factors", list(itertools.product(["f32", *CODES], repeat=2))
)
def test_the_bits_of_the_cpu(client, numbers, a_factors, b_factors):
    for m, n, k, a_block, b_block in [
        (1, 1, 1, (1, 128), (128, 128)),
        (5, 19, 70, (1, 32), (4, 32)),
        (7, 3, 33, (2, 5), (3, 7)),
        (17, 16, 200, (1, 128), (128, 128)),
    ]:
        a, b = elements(numbers, "e4m3", m, k), elements(numbers, "e4m3", k, n)
        a_scale = scale_of(numbers, a_factors, m, k, *a_block)
        b_scale = scale_of(numbers, b_factors, n, k, *b_block)
        for x, y in [(a_scale, b_scale), (a_scale, None), (None, b_scale)]:
            options = {"device": "cpu", "a_scale": x, "b_scale": y}
            options = {key: value for key, value in options.items() if value is not None}
            want = expected(a, b, x, y)
            for left, right in [(a, b), (np.asfortranarray(a), np.asfortranarray(b))]:
                got = client.matmul(left, right, **options)
                assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
                got = client.matmul(left, right, order="F", **options)
                assert np.array_equal(got, want)


@pytest.mark.parametrize("a_name,b_name", list(itertools.product(NARROW, repeat=2)))
def test_the_server_and_the_simulator_where_sums_are_exact(client, numbers, a_name, b_name):
    m, n, k = 19, 9, 75
    a, b = small_integers(numbers, a_name, m, k), small_integers(numbers, b_name, k, n)
    a_scale = scale_of(numbers, "ue8m0", m, k, 1, 32, simple_factors)
    b_scale = scale_of(numbers, "ue8m0", n, k, 2, 64, simple_factors)
    want = (a.astype(np.float64) * spread(a_scale, m, k)) @ (
        b.astype(np.float64) * spread(b_scale, n, k).T
    )
    for device in ("cpu", "sim:sm_120"):
        product = client.multiply(a, b, a_scale=a_scale, b_scale=b_scale, device=device)
        assert np.array_equal(product.array.astype(np.float64), want), product.kernel
        assert "blocks" in product.kernel or "block_scale" in product.kernel


def test_nvfp4_on_the_simulator(client, numbers):
    m, n, k = 18, 10, 80
    a, b = small_integers(numbers, "e2m1", m, k), small_integers(numbers, "e2m1", k, n)
    a_scale = scale_of(numbers, "ue4m3", m, k, 1, 16, simple_factors)
    b_scale = scale_of(numbers, "ue4m3", n, k, 1, 16, simple_factors)
    want = (a.astype(np.float64) * spread(a_scale, m, k)) @ (
        b.astype(np.float64) * spread(b_scale, n, k).T
    )
    options = {"a_scale": a_scale, "b_scale": b_scale, "alpha": 0.5}
    product = client.multiply(a, b, device="sim:sm_120", **options)
    assert "mxf4nvf4" in product.kernel and product.kernel.endswith("ue4m3")
    assert np.array_equal(product.array, want * 0.5)
    assert np.array_equal(client.matmul(a, b, device="cpu", **options), want * 0.5)


def test_batches(client, numbers):
    m, n, k = 4, 6, 40
    a, b = elements(numbers, "e5m2", 3, m, k), elements(numbers, "e4m3", k, n)
    each = gemmd.BlockScale(factors(numbers, "f32", 3, m, blocks(k, 16)), k=16)
    shared = scale_of(numbers, "ue8m0", n, k, 1, 32)
    got = client.matmul(a, b, a_scale=each, b_scale=shared, device="cpu")
    for i in range(3):
        one = gemmd.BlockScale(each.factors[i], k=16)
        assert np.array_equal(got[i], expected(a[i], b, one, shared))
    # The same factors for every matrix.
    one = gemmd.BlockScale(each.factors[0], k=16)
    got = client.matmul(a, b, a_scale=one, b_scale=shared, device="cpu")
    for i in range(3):
        assert np.array_equal(got[i], expected(a[i], b, one, shared))


def test_factors_of_rows_beside_those_of_blocks(client, numbers):
    a, b = elements(numbers, "e4m3", 5, 40), elements(numbers, "e4m3", 40, 7)
    b_scale = scale_of(numbers, "f32", 7, 40, 128, 16)
    rows = np.float32([1, 2, 4, 0.5, 8])
    got = client.matmul(a, b, a_scale=rows, b_scale=b_scale, device="cpu")
    assert np.array_equal(got, expected(a, b, None, b_scale) * rows[:, None])


def test_resident_operands(client, numbers):
    a, w = elements(numbers, "e4m3", 6, 70), elements(numbers, "e4m3", 11, 70)
    a_scale = scale_of(numbers, "f32", 6, 70, 1, 32)
    w_scale = scale_of(numbers, "f32", 11, 70, 4, 32)
    want = expected(a, w.T, a_scale, w_scale)
    tensor = client.put(w, name="weights")
    got = client.matmul(a, tensor.T, a_scale=a_scale, b_scale=w_scale, device="cpu")
    assert np.array_equal(got, want)
    # The factors of a part are those of the part.
    part = gemmd.BlockScale(w_scale.factors[1:2], rows=4, k=32)
    got = client.matmul(a, tensor[4:8].T, a_scale=a_scale, b_scale=part, device="cpu")
    assert np.array_equal(got, want[:, 4:8])
    scaled = client.put(elements(numbers, "e4m3", 70, 4), scale=np.float32([2]))
    with pytest.raises(gemmd.InvalidArgument, match="b.scale.blocks: got a value, want none"):
        client.matmul(a, scaled, b_scale=scale_of(numbers, "f32", 4, 70, 1, 32))


@pytest.mark.parametrize(
    "name,block,kind", [
        ("e4m3", (1, 128), "f32"), ("e4m3", (128, 128), "f32"), ("e5m2", (1, 32), "ue8m0"),
        ("e3m2", (1, 32), "ue8m0"), ("e2m3", (1, 32), "ue8m0"), ("e2m1", (1, 32), "ue8m0"),
        ("e2m1", (1, 16), "ue4m3"),
    ]
)
def test_quantize(numbers, name, block, kind):
    """Nothing saturates, and the largest element of each block is near the largest of its type."""
    largest = {"e4m3": 448, "e5m2": 57344, "e3m2": 28, "e2m3": 7.5, "e2m1": 6}[name]
    values = (numbers.normal(size=(37, 300)) * 10.0 ** numbers.integers(-2, 2, (37, 1))).astype(
        np.float32
    )
    values[3] = 0
    quantized = gemmd.quantize(values, name, block=block, factors=kind)
    assert quantized.array.dtype == ELEMENTS[name].dtype
    scale = quantized.scale
    assert scale.factors.shape == (blocks(37, block[0]), blocks(300, block[1]))
    factor = spread(scale, 37, 300)
    back = quantized.array.astype(np.float64) * factor
    # Half a step of the type at the element, which is at most 2^-fraction of the element, or half
    # of the smallest step.
    info = ml_dtypes.finfo(ELEMENTS[name].dtype)
    bound = np.maximum(np.abs(values) * float(info.eps) / 2, float(info.smallest_subnormal) / 2 * factor)
    assert (np.abs(back - values) <= bound * (1 + 1e-6)).all()
    assert (np.abs(quantized.array.astype(np.float64)) <= largest).all()
    for i, j in itertools.product(*map(range, scale.factors.shape)):
        part = values[i * block[0]:(i + 1) * block[0], j * block[1]:(j + 1) * block[1]]
        magnitude, f = float(np.abs(part).max()), float(scale.factors[i, j])
        if magnitude == 0:
            assert f == 1 or kind == "f32" and f == 1
        elif kind == "ue8m0":
            assert magnitude / f <= largest < 2 * magnitude / f
        elif kind == "ue4m3":
            assert magnitude / f <= largest
        else:
            assert f == pytest.approx(magnitude / largest, rel=1e-6)
    # The transposed values are the same matrix.
    other = gemmd.quantize(values.T, name, block=block, factors=kind, k_axis=0)
    assert np.array_equal(other.array.view(np.uint8), quantized.array.T.view(np.uint8))
    assert np.array_equal(other.scale.factors.view(np.uint8), scale.factors.view(np.uint8))
    assert np.array_equal(quantized.T.array.view(np.uint8), quantized.array.T.view(np.uint8))


def test_quantized_products(client, numbers):
    """The blocks of DeepGEMM, OCP and NVFP4, from values to D on a device that supports them."""
    x = numbers.normal(size=(6, 300)).astype(np.float32)
    w = numbers.normal(size=(9, 300)).astype(np.float32)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    size = np.abs(x).astype(np.float64) @ np.abs(w.T).astype(np.float64)
    forms = [
        ("cpu", "e4m3", (1, 128), (128, 128), "f32", 2**-3, 2**-16),
        ("sim:sm_90", "e4m3", (1, 128), (128, 128), "f32", 2**-3, 2**-12),
        ("sim:sm_120", "e4m3", (1, 32), (1, 32), "ue8m0", 2**-3, 2**-16),
        ("sim:sm_120", "e2m1", (1, 16), (1, 16), "ue4m3", 2**0, 2**-16),
    ]
    for device, name, a_block, b_block, kind, error, rounding in forms:
        a = gemmd.quantize(x, name, block=a_block, factors=kind)
        b = gemmd.quantize(w, name, block=b_block, factors=kind).T
        got = client.matmul(a, b, device=device)
        # The product of the represented values, up to rounding, and the product of the original
        # values as far as two roundings to the type allow.
        dequantized = (a.array.astype(np.float64) * spread(a.scale, 6, 300)) @ (
            b.array.astype(np.float64) * spread(b.scale, 9, 300).T
        )
        assert (np.abs(got - dequantized) <= rounding * size).all()
        assert (np.abs(got - exact) <= error * size).all()


def test_checks(client, numbers):
    a, b = elements(numbers, "e4m3", 20, 170), elements(numbers, "e4m3", 170, 12)
    for device, depth in (("cpu", 32), ("sim:sm_120", 32), ("sim:sm_90", 128)):
        options = {
            "a_scale": scale_of(numbers, "ue8m0", 20, 170, 1, depth),
            "b_scale": scale_of(numbers, "ue8m0", 12, 170, 3, depth),
        }
        for mode in ("sampled:1", "duplicate"):
            product = client.multiply(a, b, device=device, verify=mode, **options)
            assert product.verification.outcome == 1, (device, mode)
            assert product.verification.elements_checked == 20 * 12
        with pytest.raises(gemmd.Unimplemented, match="checksum with factors of blocks"):
            client.matmul(a, b, device=device, verify="checksum", **options)


def test_refusals(client, numbers):
    a, b = elements(numbers, "e4m3", 4, 40), elements(numbers, "e4m3", 40, 5)
    good = scale_of(numbers, "f32", 4, 40, 1, 16)

    def refused(kind, match, **options):
        with pytest.raises(kind, match=match):
            client.matmul(a, b, **options)

    bad = gemmd.BlockScale(good.factors[:, :2], k=16)
    refused(
        gemmd.InvalidArgument,
        r"a.scale.blocks.factors: got 32 bytes, want m/1 lines of k/16, each rounded up, "
        r"4 bytes each = 48",
        a_scale=bad,
    )
    refused(
        gemmd.InvalidArgument,
        "scale.k: got 0, want a whole number from 1",
        a_scale=gemmd.BlockScale(good.factors, k=0),
    )
    refused(
        gemmd.InvalidArgument,
        "scale.rows: got -1, want a whole number from 1",
        b_scale=gemmd.BlockScale(good.factors, rows=-1),
    )
    refused(
        gemmd.InvalidArgument,
        "scale.type: got uint8, want f32, ue8m0 or ue4m3",
        a_scale=gemmd.BlockScale(np.zeros((4, 3), np.uint8)),
    )
    refused(gemmd.Unimplemented, "a.scale.blocks", a_scale=good, device="sim:sm_90")
    refused(gemmd.Unimplemented, "a.scale.blocks", a_scale=good, device="sim:sm_120")
    with pytest.raises(gemmd.InvalidArgument, match="a.scale.blocks: got factors for operands of"):
        client.matmul(
            np.ones((4, 40), np.float16), np.ones((40, 5), np.float16), a_scale=good
        )
    with pytest.raises(gemmd.InvalidArgument, match="factors for elements of type f16"):
        client.put(np.ones((4, 40), np.float16), scale=good)


def test_explanations(client, numbers):
    a, b = elements(numbers, "e4m3", 4, 40), elements(numbers, "e4m3", 40, 5)
    answer = client.explain(a, b, a_scale=scale_of(numbers, "ue8m0", 4, 40, 1, 32), device="cpu")
    names = [candidate.kernel for candidate in answer.candidates]
    assert names == ["gemmd.f32.e4m3.e4m3.blocks"]
    reasons = {refusal.kernel: refusal.reason for refusal in answer.refusals}
    assert "a.scale.blocks" in reasons["onednn.f32.e4m3.e4m3.via_f32"]
