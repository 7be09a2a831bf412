# SPDX-License-Identifier: Apache-2.0
"""Quantized weights times 16-bit floats, and MX and NVFP4 on a chip without their instructions: inline and resident."""

import gemmd
import ml_dtypes
import numpy as np
import pytest

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90", "--tensor-bytes=64MiB"]

HALVES = [np.float16, ml_dtypes.bfloat16]
WEIGHTS = ["s4", "s8", "e4m3", "e5m2", "e2m1"]
M, N, K = 5, 48, 200


def by_hand(matrix: gemmd.QuantizedMatrix, half) -> np.ndarray:
    """The elements times their factors, rounded to f32 and then to the 16-bit type."""
    scale = matrix.scale
    factors = scale.factors.astype(np.float32)
    lines, k = matrix.array.shape
    spread = np.repeat(np.repeat(factors, scale.rows, axis=0)[:lines], scale.k, axis=1)[:, :k]
    return (matrix.array.astype(np.float32) * spread).astype(half)


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_are_those_dequantized_by_hand(client, numbers, kind, half):
    a = numbers.standard_normal((M, K)).astype(half)
    weights = numbers.standard_normal((N, K)).astype(np.float32)
    matrix = gemmd.quantize(weights, kind, block=(3, 64))
    plain = by_hand(matrix, half)
    want = client.matmul(a, plain.T, device="sim:sm_90")
    assert bits(client.matmul(a, matrix.T, device="sim:sm_90")) == bits(want)
    # The CPU sums in another order.
    exact = a.astype(np.float64) @ plain.T.astype(np.float64)
    bound = np.abs(a.astype(np.float64)) @ np.abs(plain.T.astype(np.float64)) * K * 2.0**-23
    assert (np.abs(client.matmul(a, matrix.T, device="cpu") - exact) <= bound).all()


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_resident_weights_keep_their_factors(client, numbers, kind, device):
    half = ml_dtypes.bfloat16
    a = numbers.standard_normal((M, K)).astype(half)
    weights = numbers.standard_normal((N, K)).astype(np.float32)
    matrix = gemmd.quantize(weights, kind, block=(1, 64))
    want = client.matmul(a, matrix.T, device=device)
    with client.put(matrix, sha256=True) as resident:
        spec = resident.refresh().spec
        assert (spec.scale.blocks.rows_per_block, spec.scale.blocks.k_per_block) == (1, 64)
        assert not spec.scale.blocks.factors
        assert bits(resident.get()) == bits(matrix.array)
        # Kept once dequantized, from the second use on.
        for _ in range(4):
            assert bits(client.matmul(a, resident.T, device=device)) == bits(want)
        info = resident.refresh()
        assert device != "cpu" or info.kept_bytes >= info.bytes + 2 * N * K
        # Rows of the weights are columns of B.
        part = client.matmul(a, resident[16:40].T, device=device)
        assert bits(part) == bits(client.matmul(a, gemmd.QuantizedMatrix(
            matrix.array[16:40], gemmd.BlockScale(matrix.scale.factors[16:40], rows=1, k=64)).T, device=device))


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
def test_a_resident_b_as_it_is(client, numbers, device):
    """k runs down the columns."""
    a = numbers.standard_normal((M, K)).astype(np.float16)
    weights = numbers.standard_normal((K, N)).astype(np.float32)
    matrix = gemmd.quantize(weights, "s4", block=(1, 32), k_axis=0)
    want = client.matmul(a, matrix, device=device)
    with client.put(matrix) as resident:
        assert resident.refresh().spec.k_along_columns
        for _ in range(3):
            assert bits(client.matmul(a, resident, device=device)) == bits(want)


def test_batches_have_factors_of_their_own(client, numbers):
    a = numbers.standard_normal((3, M, K)).astype(np.float16)
    array = numbers.integers(-7, 8, (3, N, K)).astype(np.int8)
    factors = numbers.random((3, N, 4), np.float32)
    with client.put(array, scale=gemmd.BlockScale(factors, rows=1, k=64)) as resident:
        spread = np.repeat(factors, 64, axis=2)[..., :K]
        plain = (array.astype(np.float32) * spread).astype(np.float16)
        got = client.matmul(a, resident.T, device="sim:sm_90")
        assert bits(got) == bits(client.matmul(a, np.swapaxes(plain, 1, 2), device="sim:sm_90"))
        one = client.matmul(a[1], resident[1].T, device="sim:sm_90")
        assert bits(one) == bits(got[1])


@pytest.mark.parametrize("kind,factors,k", [("e4m3", "ue8m0", 32), ("e2m1", "ue8m0", 32), ("e2m1", "ue4m3", 16)])
def test_mx_and_nvfp4_in_bf16(client, numbers, kind, factors, k):
    """Factors of 8 bits are exact in bf16, so that the products are, too."""
    a = gemmd.quantize(numbers.standard_normal((M, K)), kind, block=(1, k), factors=factors)
    b = gemmd.quantize(numbers.standard_normal((N, K)), kind, block=(1, k), factors=factors)
    half = ml_dtypes.bfloat16
    got = client.matmul(a, b.T, device="sim:sm_90")
    want = client.matmul(by_hand(a, half), by_hand(b, half).T, device="sim:sm_90")
    assert bits(got) == bits(want)
    exact = by_hand(a, np.float64) @ by_hand(b, np.float64).T
    bound = np.abs(by_hand(a, np.float64)) @ np.abs(by_hand(b, np.float64)).T * K * 2.0**-23
    assert (np.abs(got - exact) <= bound).all()
    with client.put(b) as resident:
        assert bits(client.matmul(a, resident.T, device="sim:sm_90")) == bits(got)


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
def test_answers_are_checked(client, numbers, device):
    a = numbers.standard_normal((M, K)).astype(ml_dtypes.bfloat16)
    matrix = gemmd.quantize(numbers.standard_normal((N, K)), "s4", block=(1, 64))
    with client.put(matrix) as resident:
        for b in (matrix.T, resident.T):
            result = client.multiply(a, b, device=device, verify="sampled:1")
            assert result.verification.elements_checked == M * N


def refusal(call) -> str:
    with pytest.raises(gemmd.InvalidArgument) as caught:
        call()
    return str(caught.value)


def test_refusals(client, numbers):
    a = numbers.standard_normal((M, K)).astype(np.float16)
    matrix = gemmd.quantize(numbers.standard_normal((N, K)), "s4", block=(4, 64))
    with client.put(matrix) as resident:
        square = numbers.standard_normal((M, N)).astype(np.float16)
        assert "as its factors have it" in refusal(lambda: client.matmul(square, resident))
        assert "a part that begins at line 2" in refusal(lambda: client.matmul(a, resident[2:].T))
        assert "all 200 of a tensor" in refusal(lambda: client.matmul(a[:, :64], resident[:, :64].T))
        assert "factors" in refusal(lambda: client.chain(a, a.T, into=resident[:M, :M]))
        s8 = numbers.integers(-8, 8, (M, K)).astype(ml_dtypes.int4)
        assert "s4 and u4 times f16 or bf16" in refusal(lambda: client.matmul(s8, resident.T))
    with pytest.raises(gemmd.InvalidArgument, match="types of 4 to 8 bits"):
        client.put(a, scale=gemmd.BlockScale(np.ones((M, 4), np.float32), rows=1, k=64))
    sparse = gemmd.pack24(np.ones((4, 32), ml_dtypes.float8_e4m3fn), prune="smallest")
    with pytest.raises(gemmd.InvalidArgument, match="factors of a sparse tensor"):
        client.put(sparse, scale=gemmd.BlockScale(np.ones((4, 4), np.float32), rows=1, k=8))


def test_forms_of_one_matrix_are_not_those_of_two(client, numbers):
    """Small ones take the same room."""
    a = np.broadcast_to(np.eye(8), (2, 8, 8)).astype(ml_dtypes.bfloat16)
    weights = numbers.integers(-8, 8, (2, 8, 8)).astype(np.int8)
    for first, second in [(0, None), (None, 0)]:
        with client.put(weights) as resident:
            for part in (first, second):
                left, right = (a, resident) if part is None else (a[0], resident[part])
                for _ in range(3):
                    got = client.matmul(left, right, device="cpu")
                    assert np.array_equal(got, weights if part is None else weights[part])


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
def test_the_same_bytes_with_other_factors(client, device):
    """Tensors that share their bytes by hash share nothing that is derived from them with factors."""
    a = np.eye(64).astype(ml_dtypes.bfloat16)
    elements = np.ones((64, 64), np.int8)
    codes = np.full((64, 1), 0x38, np.uint8)
    for kind, factor in [("ue8m0", 2.0**-71), ("ue4m3", 1.0), ("ue8m0", 2.0**-71)]:
        scale = gemmd.BlockScale(codes, rows=1, k=64, type=kind)
        with client.put(elements, scale=scale, sha256=True, name=kind) as resident:
            for _ in range(3):
                assert (client.matmul(a, resident.T, device=device) == factor).all()
            tall = np.concatenate([elements, codes.view(np.int8).reshape(1, 64)])
            with client.put(tall, sha256=True) as plain:
                for _ in range(3):
                    assert (client.matmul(a, plain[:64].T, device=device) == 1).all()


def test_nothing_to_multiply(client):
    half = np.float16
    assert client.matmul(np.ones((0, 8), half), np.ones((8, 3), np.int8)).shape == (0, 3)
    assert (client.matmul(np.ones((2, 0), half), np.ones((0, 3), np.int8)) == 0).all()
    assert (client.matmul(np.ones((2, 8), half), np.ones((8, 3), np.int8), alpha=0) == 0).all()
