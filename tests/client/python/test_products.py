# SPDX-License-Identifier: Apache-2.0
"""Products of arrays: types, orders, strides, batches and all options. Small integers make every
sum exact, so NumPy's own result is the only right one."""

import gemmd
import ml_dtypes
import numpy as np
import pytest
from elements import ELEMENTS, convert
from gemmd.product import build_request
from gemmd.v1 import gemm_pb2

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90"]

TYPES = [name for name in ELEMENTS if name not in ("s32", "tf32", "b1")]


def integers(numbers, *shape, dtype=np.float32, most=4):
    info_of = ml_dtypes.iinfo if np.dtype(dtype).name.startswith(("int", "uint")) else None
    least = 0 if info_of and info_of(dtype).min == 0 else -most
    return numbers.integers(least, most, shape, endpoint=True).astype(dtype)


def exact(a, b):
    return np.matmul(np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64))


def check(got, want, dtype=np.float32):
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert np.array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("name", TYPES)
def test_every_type(client, numbers, name):
    dtype = ELEMENTS[name].dtype
    a = integers(numbers, 5, 33, dtype=dtype)
    b = integers(numbers, 33, 7, dtype=dtype)
    accumulated = {"f64": np.float64}.get(
        name, np.int32 if ELEMENTS[name].is_integer else np.float32
    )
    check(client.matmul(a, b), exact(a, b), accumulated)
    # The other order, for operands and result.
    got = client.matmul(np.asfortranarray(a), b.T.copy().T, order="F")
    check(got, exact(a, b), accumulated)
    assert got.flags.f_contiguous


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "f64"])
def test_every_output_type(client, numbers, name):
    a, b = integers(numbers, 3, 2, most=2), integers(numbers, 2, 5, most=1)
    dtype = np.dtype(ELEMENTS[name].dtype)
    want = convert(exact(a, b), ELEMENTS[name]).astype(np.float64)
    check(client.matmul(a, b, out_type=dtype), want, dtype)
    check(client.matmul(a, b, out_type=name, order="F"), want, dtype)


@pytest.mark.parametrize("name", ["s4", "u4", "s8", "u8"])
def test_integer_output_types(client, numbers, name):
    a, b = (integers(numbers, *s, dtype=np.int8) for s in ((3, 9), (9, 5)))
    want = convert(exact(a, b), ELEMENTS[name]).astype(np.float64)
    check(client.matmul(a, b, out_type=name), want, np.dtype(ELEMENTS[name].dtype))


def test_bits(client, numbers):
    a, b = numbers.integers(0, 2, (6, 131)) == 1, numbers.integers(0, 2, (131, 9)) == 1
    check(client.matmul(a, b), a.astype(int) @ b.astype(int), np.int32)
    want = a.astype(int) @ (1 - b) + (1 - a) @ b.astype(int)
    check(client.matmul(a, b, bit_operation="xor"), want, np.int32)


def test_tf32_drops_low_bits(client):
    a = np.array([[1 + 2.0**-12]], np.float32)
    b = np.ones((1, 1), np.float32)
    assert client.matmul(a, b, a_type="tf32", b_type="tf32", device="sim:sm_90") == 1
    assert client.matmul(a, b, device="cpu") == a


def layouts(matrix):
    """The same matrix or batch in every memory layout."""
    wide = np.zeros((*matrix.shape[:-2], matrix.shape[-2] * 2, matrix.shape[-1] * 3), matrix.dtype)
    wide[..., ::2, ::3] = matrix
    padded = np.zeros((*matrix.shape[:-1], matrix.shape[-1] + 5), matrix.dtype)
    padded[..., 2:-3] = matrix
    return {
        "rows": np.ascontiguousarray(matrix),
        "columns": np.ascontiguousarray(matrix.swapaxes(-1, -2)).swapaxes(-1, -2),
        "part": padded[..., 2:-3],
        "part of columns": np.asfortranarray(padded)[..., 2:-3],
        "steps": wide[..., ::2, ::3],
        "backwards": np.ascontiguousarray(matrix[..., ::-1, ::-1])[..., ::-1, ::-1],
        "read-only": np.frombuffer(matrix.tobytes(), matrix.dtype).reshape(matrix.shape),
    }


@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.int4])
def test_any_memory(client, numbers, shape, dtype):
    a = integers(numbers, *shape, dtype=dtype)
    b = integers(numbers, 6, 5, dtype=dtype)
    want = exact(a, b)
    for how, stored in layouts(a).items():
        got = client.matmul(stored, b).astype(np.float64)
        assert np.array_equal(got, want), how


def test_big_endian(client):
    a = np.arange(6, dtype=">f4").reshape(2, 3)
    check(client.matmul(a, a.T), exact(a, a.T))


@pytest.mark.parametrize(
    "left, right",
    [
        ((3, 4, 5), (3, 5, 2)),
        ((3, 4, 5), (5, 2)),
        ((4, 5), (3, 5, 2)),
        ((1, 4, 5), (3, 5, 2)),
        ((2, 3, 4, 5), (2, 3, 5, 2)),
        ((2, 1, 4, 5), (3, 5, 2)),
        ((1, 1, 4, 5), (5, 2)),
        ((0, 4, 5), (5, 2)),
        ((2, 4, 0), (2, 0, 3)),
        ((0, 5), (5, 2)),
        ((5,), (5, 2)),
        ((4, 5), (5,)),
        ((5,), (5,)),
        ((3, 4, 5), (5,)),
        ((5,), (3, 5, 2)),
    ],
)
def test_shapes_are_those_of_numpy(client, numbers, left, right):
    a, b = integers(numbers, *left), integers(numbers, *right)
    check(client.matmul(a, b), np.asarray(exact(a, b)))


def test_one_matrix_of_a_batch_is_sent_once(client, numbers):
    a, w = integers(numbers, 8, 4, 5), integers(numbers, 5, 6)
    for b in (w, w[None], np.broadcast_to(w, (8, 5, 6))):
        product = client.multiply(a, b)
        check(product.array, exact(a, w))
        assert product.bytes_read == a.nbytes + w.nbytes


def test_epilogue(client, numbers):
    a, b, c = (integers(numbers, *s) for s in ((3, 4), (4, 5), (3, 5)))
    row, column = integers(numbers, 5), integers(numbers, 3, 1)
    product = exact(a, b)
    check(client.matmul(a, b, c=c), product + c)
    check(client.matmul(a, b, c=c.T.copy().T, alpha=2, beta=-3), 2 * product - 3 * c)
    check(client.matmul(a, b, bias=row), product + row)
    check(client.matmul(a, b, bias=column), product + column)
    check(client.matmul(a, b, bias=row.astype(np.float64)), product + row)
    check(client.matmul(a, b, bias=row, activation="relu"), np.maximum(product + row, 0))
    batch = integers(numbers, 2, 3, 4)
    check(client.matmul(batch, b, c=c), exact(batch, b) + c)


def test_scales(client, numbers):
    a = integers(numbers, 3, 4, dtype=ml_dtypes.float8_e4m3fn)
    b = integers(numbers, 4, 5, dtype=ml_dtypes.float8_e5m2)
    rows = np.array([1, 2, 4], np.float32)
    check(client.matmul(a, b, a_scale=rows, b_scale=0.5), exact(a, b) * rows[:, None] * 0.5)


def test_out(client, numbers):
    a, b = integers(numbers, 3, 4), integers(numbers, 4, 5)
    batch = integers(numbers, 2, 3, 4)
    for out, left in (
        (np.zeros((3, 5), np.float32), a),
        (np.zeros((3, 5), np.float64), a),
        (np.zeros((3, 5), ml_dtypes.bfloat16, order="F"), a),
        (np.zeros((6, 10), np.float32)[::2, ::2], a),
        (np.zeros((2, 3, 5), np.float32), batch),
        (np.zeros((2, 5, 3), np.float32).swapaxes(1, 2), batch),
    ):
        assert client.matmul(left, b, out=out) is out
        want = exact(left, b).astype(out.dtype)
        assert np.array_equal(out.astype(np.float64), want.astype(np.float64))


def test_large_matrices_and_their_memory(client, numbers):
    a, b = integers(numbers, 300, 400), integers(numbers, 400, 500)
    result = client.matmul(a, b)
    check(result, exact(a, b))
    result += 1  # It is the caller's own.
    view = client.matmul(a, b, writable=False)
    check(view, exact(a, b))
    assert not view.flags.writeable


def test_more_than_grpcs_own_limit(client, numbers):
    a, b = integers(numbers, 1200, 1000, most=1), integers(numbers, 1000, 8)
    check(client.matmul(a, b), exact(a, b))
    check(client.matmul(b.T, a.T), exact(b.T, a.T))


def test_sums_of_fp8_are_those_of_the_chip_and_its_types(client, numbers):
    a, b = (numbers.random(s).astype(ml_dtypes.float8_e4m3fn) for s in ((8, 2048), (2048, 16)))
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def multiply(rows=slice(None), **options):
        return client.multiply(a[rows], b, device="sim:sm_90", **options)

    def error(product):
        return np.abs(product.array - exact).max() / exact.max()

    usual, fast = multiply(), multiply(fast_accumulation=True)
    assert usual.kernel.endswith("_p128")
    assert not fast.kernel.endswith("_p128")
    assert error(usual) < 1e-3 < 5e-3 < error(fast)
    # A row has the same bits alone.
    assert np.array_equal(multiply(slice(3, 4)).array, usual.array[3:4])
    assert np.array_equal(multiply(kernel=fast.kernel).array, fast.array)
    explained = client.explain(a, b, device="sim:sm_90")
    assert "every 128 of k" in explained.recipe
    assert explained.candidates[0].kernel == usual.kernel
    assert any(refusal.reason.startswith("recipe: got") for refusal in explained.refusals)


def test_what_the_server_says_of_a_product(client, numbers):
    a, b = (integers(numbers, *s, dtype=ml_dtypes.bfloat16) for s in ((3, 4), (4, 5)))
    product = client.multiply(a, b, device="sim:sm_90", request_id="mine", deterministic=True)
    assert product.device == "sim:sm_90"
    assert product.kernel.startswith("mma.")
    assert product.request_id == "mine"
    assert product.operations == 2 * 3 * 4 * 5
    assert (product.bytes_read, product.bytes_written) == (a.nbytes + b.nbytes, 60)
    assert product.joined == 1
    assert 0 < product.timing.compute_ns <= product.timing.total_ns
    again = client.multiply(a, b, kernel=product.kernel, batch_invariant=True, priority="low")
    assert again.verification is None
    for verify in ("sampled", "sampled:1", "checksum", "duplicate"):
        checked = client.multiply(a, b, verify=verify).verification
        assert checked.outcome == gemm_pb2.VERIFY_OUTCOME_PASSED
        mode = gemm_pb2.VerifyMode.Name(checked.mode)
        assert mode == "VERIFY_MODE_" + verify.partition(":")[0].upper()
    assert again.kernel == product.kernel
    assert np.array_equal(again.array, product.array)
    explained = client.explain(a, b, device="sim:sm_90", deterministic=True)
    assert explained.candidates[0].kernel == product.kernel


def test_what_the_server_says_of_itself(client):
    assert [device.name for device in client.devices()] == ["cpu", "sim:sm_90"]
    assert all("bf16" in kernel.name for kernel in client.kernels("*bf16*"))
    assert client.server_info().default_device == "cpu"
    assert client.statistics().devices[0].name == "cpu"


def test_unix_sockets(daemon, numbers):
    a = integers(numbers, 4, 4)
    with gemmd.Client(daemon.unix) as client:
        check(client.matmul(a, a), exact(a, a))


def test_options_are_those_of_the_contract():
    """Each enumeration's names come from the contract, so new ones need no code."""
    from gemmd.product import _choice

    assert _choice(gemm_pb2.Activation, "ACTIVATION", "gelu_tanh", "activation") == (
        gemm_pb2.ACTIVATION_GELU_TANH
    )


REQUESTS = [
    ((3, 4), (4, 5), {}),
    ((4,), (4, 5), {"device": "cpu"}),
    ((2, 3, 4), (4, 5), {"writable": False, "out_type": "f64"}),
    ((2, 3, 4), (1, 4, 5), {"order": "F"}),
    ((2, 1, 3, 4), (3, 4, 5), {}),
    ((0, 4), (4, 5), {"deterministic": True}),
    ((3, 1), (1, 1), {"request_id": "own"}),
    ((3, 4), (4, 5), {"alpha": 2}),
]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, ">f4", ml_dtypes.bfloat16, ml_dtypes.int4, np.bool_])
@pytest.mark.parametrize(("a_shape", "b_shape", "options"), REQUESTS)
def test_a_request_that_was_made_before(numbers, a_shape, b_shape, options, dtype, transposed, monkeypatch):
    monkeypatch.setattr(gemmd.product, "_known", {})
    for turn in range(3):
        a, b = (integers(numbers, *shape).astype(dtype) for shape in (a_shape, b_shape))
        if transposed and a.ndim > 1:
            a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
        request, want = gemmd.product.request_for(a, b, options), gemmd.product.build_request(a, b, options)
        assert request.serialize() == want.serialize()
        assert (request.shape, request.writable, request.nbytes) == (want.shape, want.writable, want.nbytes)


def test_what_is_known_of_requests(monkeypatch):
    monkeypatch.setattr(gemmd.product, "_known", {})
    monkeypatch.setattr(gemmd.product, "_MAX_KNOWN", 3)
    a = np.ones((2, 2), np.float32)
    gemmd.product.request_for(a, a, {"deterministic": True})
    with pytest.raises(gemmd.InvalidArgument, match="deterministic"):
        gemmd.product.request_for(a, a, {"deterministic": 1})
    built = []
    monkeypatch.setattr(gemmd.product, "build_request", lambda *given: built.append(given) or build_request(*given))
    gemmd.product.request_for(a + 1, a, {"deterministic": True})
    assert not built
    # It keeps none of the arrays, and a limited number of requests.
    assert [len(data) for known in gemmd.product._known.values() for _, data in known.lent.values()] == [0, 0]
    for k in range(1, 9):
        gemmd.product.request_for(np.ones((2, k)), np.ones((k, 2)), {})
    assert len(built) == 8 and len(gemmd.product._known) <= 3
