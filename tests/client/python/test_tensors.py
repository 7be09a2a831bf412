# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay on the server: uploads, downloads, parts, products that leave their results
there."""

import gc
import pathlib
import subprocess
import sys

import gemmd
import ml_dtypes
import numpy as np
import pytest
from daemon import PATIENCE_S, wait_until
from elements import ELEMENTS
from gemmd.v1 import tensors_pb2

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90", "--session-linger=1s"]


def integers(numbers, *shape, dtype=np.float32, least=-4):
    return numbers.integers(least, 4, shape, endpoint=True).astype(dtype)


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    return np.array_equal(got.view(np.uint8), want.view(np.uint8))


def handles(client):
    return {tensor.info.handle for tensor in client.tensors()}


@pytest.mark.parametrize("name", [name for name in ELEMENTS if name not in ("tf32", "b1")])
def test_what_is_put_comes_back(client, numbers, name):
    least = 0 if name in ("u4", "u8") else -4
    array = integers(numbers, 5, 7, dtype=ELEMENTS[name].dtype, least=least)
    tensor = client.put(array)
    assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
    assert np.array_equal(tensor.get().astype(float), array.astype(float))
    assert np.array_equal(client.put(array.T).get().astype(float), array.T.astype(float))


def test_bits_come_back(client, numbers):
    array = numbers.integers(0, 2, (3, 5, 19)) == 1
    assert np.array_equal(client.put(array).get(), array)


def test_parts(client, numbers):
    array = integers(numbers, 4, 6, 10)
    for stored in (array, array.swapaxes(1, 2).copy().swapaxes(1, 2)):
        tensor = client.put(stored)
        for part in (
            np.s_[...],
            np.s_[1:3],
            np.s_[2],
            np.s_[-1, 2:5],
            np.s_[:, 1:-1, 3:],
            np.s_[1:, ..., :4],
            np.s_[0:0],
        ):
            assert same(tensor[part].get(), array[part])
        assert same(tensor.T[:, 2:5].get(), array.swapaxes(1, 2)[:, 2:5])
        x = integers(numbers, 3, 6)
        assert np.array_equal(x @ tensor[1, :, 2:8], x @ array[1, :, 2:8])
        y = integers(numbers, 10, 2)
        assert np.array_equal(tensor @ y, array @ y)
        assert np.array_equal(y.T @ tensor.T, y.T @ array.swapaxes(1, 2))


@pytest.mark.parametrize("index", [np.s_[::2], np.s_[1], np.s_[:, :, :]])
def test_parts_that_are_none(client, index):
    tensor = client.put(np.ones((4, 4), np.float32))
    with pytest.raises(gemmd.InvalidArgument):
        tensor[index]


def test_products_of_tensors(client, numbers):
    x, w, v = (integers(numbers, *shape) for shape in ((3, 8), (8, 6), (6, 5)))
    rw, rv = client.put(w, name="w"), client.put(v)
    assert np.array_equal(x @ rw, x @ w)
    assert np.array_equal(rw @ v, w @ v)
    product = rw @ rv
    assert isinstance(product, gemmd.RemoteTensor) and product.shape == (8, 5)
    assert np.array_equal(product.get(), w @ v)
    # A chain of which only the last result is sent back.
    result = client.multiply(client.put(x), rw @ rv, activation="relu")
    assert np.array_equal(result.array, np.maximum(x @ w @ v, 0))
    d = client.chain(x, rw, bias=np.ones(6, np.float32), name="d", out_type="bf16", order="F")
    assert (d.name, d.dtype) == ("d", ml_dtypes.bfloat16)
    want = (x @ w + 1).astype(ml_dtypes.bfloat16)
    assert same(client.tensor("d").get().copy(order="C"), want)


def test_operands_of_every_kind(client, numbers):
    """Each operand and the result may be an array, a tensor, a part of one, or a prepared
    matrix."""
    dense = integers(numbers, 8, 8, dtype=np.float16)
    half = dense.copy()
    half[:, ::2] = 0  # A valid 2:4 matrix.
    wide, high = client.put(np.hstack([half, half])), client.put(np.vstack([dense, dense]))
    lefts = (half, client.put(half), wide[:, 8:], client.put(half.T).T, gemmd.pack24(half))
    rights = (dense, client.put(dense), high[8:], client.put(dense.T).T)
    want = half.astype(np.float32) @ dense
    with client.stream() as stream:
        for a in lefts:
            for b in rights:
                assert same(client.matmul(a, b), want)
                assert same(client.chain(a, b).get(), want)
                assert same(stream.submit(a, b).result().array, want)
                assert same(client.matmul(a, b, c=client.put(want)), 2 * want)
                assert client.explain(a, b).candidates


def test_results_over_tensors(client, numbers):
    x, w = integers(numbers, 3, 8), integers(numbers, 8, 6)
    place = client.put(np.zeros((6, 6), np.float32))
    got = client.chain(x, w, into=place[1:4])
    assert got.info.handle == place.info.handle
    want = np.zeros((6, 6), np.float32)
    want[1:4] = x @ w
    assert same(place.get(), want)
    client.chain(x, w, c=place[1:4], into=place[1:4])
    assert same(place[1:4].get(), 2 * (x @ w))
    with pytest.raises(gemmd.InvalidArgument):
        client.chain(x, w, into=place.T)


def test_batches(client, numbers):
    x, w = integers(numbers, 4, 3, 8), integers(numbers, 8, 6)
    stack = client.put(x)
    assert np.array_equal(stack @ w, x @ w)
    one = client.put(w)
    assert np.array_equal(x @ one, x @ w)
    kept = client.chain(stack, one)
    assert same(kept.get(), x @ w)
    single = client.put(x[:1])
    assert single.shape == (1, 3, 8)
    assert (single @ w).shape == (1, 3, 6)


def test_quantized_and_sparse_operands(client, numbers):
    x = numbers.standard_normal((16, 32)).astype(np.float32)
    w = numbers.standard_normal((32, 8)).astype(np.float32)
    w8 = gemmd.quantize(w, "e4m3", per="column")
    x8 = gemmd.quantize(x, "e4m3", per="row")
    # An element is off by at most a sixteenth of its size: in a product, about an eighth.
    bound = np.abs(x) @ np.abs(w) / 7 + 1e-3
    assert (np.abs(client.matmul(x8, w8) - x @ w) <= bound).all()
    assert np.array_equal(client.matmul(x8, client.put(w8)), client.matmul(x8, w8))
    half = integers(numbers, 16, 32)
    half[:, 2::4] = half[:, 3::4] = 0
    packed = gemmd.pack24(half.astype(np.float16), prune="refuse")
    b = integers(numbers, 32, 8, dtype=np.float16)
    want = half @ b.astype(np.float32)
    assert np.array_equal(client.matmul(packed, b), want)
    sparse = client.put(half.astype(np.float16), sparse=True)
    assert sparse.info.spec.sparsity == tensors_pb2.SPARSITY_2_4
    assert np.array_equal(sparse @ b, want)
    dense = client.put(half.astype(np.float16))
    assert np.array_equal(client.compress(dense, name="sparse") @ b, want)
    mask = client.put(half != 0)
    assert np.array_equal(client.compress(dense, mask=mask) @ b, want)
    with pytest.raises(gemmd.InvalidArgument, match="sparse"):
        sparse.get()


def test_large_tensors_over_several_connections(client, numbers):
    array = numbers.integers(0, 256, (3001, 4097), np.uint8)
    for connections in (0, 1, 3):
        tensor = client.put(array, connections=connections)
        assert same(tensor.get(connections=connections), array)
        tensor.delete()


def test_bytes_that_the_server_has_are_not_sent(client, numbers):
    array = numbers.integers(0, 256, (1024, 1024), np.uint8)
    before = client.statistics().tensors.uploads_known
    tensors = [client.put(array, sha256=True) for _ in range(2)]
    assert client.statistics().tensors.uploads_known == before + 1
    assert same(tensors[1].get(), array)


def test_how_long_tensors_live(client):
    array = np.ones((4, 4), np.float32)
    with client.put(array) as tensor:
        assert tensor.info.handle in handles(client)
        handle = tensor.info.handle
    assert handle not in handles(client)
    with pytest.raises(gemmd.NotFound):
        tensor.get()
    # A tensor without references is deleted with the next call; one with a name stays, and so does
    # a part's tensor.
    handle = client.put(array).info.handle
    client.put(array, name="stays")
    part = client.put(array)[:2]
    released = client.put(array).release()
    gc.collect()
    assert handles(client) == {
        client.tensor("stays").info.handle,
        part.info.handle,
        released,
    }
    client.tensor("stays").delete()
    client.tensor(released).delete()
    assert handles(client) == {part.info.handle}


def test_lists_and_leases(client):
    client.put(np.ones((2, 3), np.float32), name="a/1")
    client.put(np.ones((2, 3), np.float32), name="a/2", lease=1000)
    client.put(np.ones((2, 3), np.float32), name="b")
    assert [tensor.name for tensor in client.tensors("a/*")] == ["a/1", "a/2"]
    tensor = client.tensor("a/2")
    assert tensor.info.lease_ns == 1000 * 10**9
    tensor.keep_alive(lease=2000, pinned=True)
    info = tensor.refresh()
    assert (info.lease_ns, info.pinned) == (2000 * 10**9, True)
    for each in client.tensors():
        each.delete()


@pytest.mark.parametrize("shape", [(0, 8), (0, 0), (0, 4, 8)])
def test_sparse_tensors_of_nothing(client, shape):
    tensor = client.put(np.zeros(shape, np.float16), sparse=True)
    assert (tensor.shape, tensor.nbytes) == (shape, 0)
    product = client.matmul(tensor, np.ones((shape[-1], 3), np.float16))
    assert product.shape == (*shape[:-1], 3)


def test_sessions_are_joined(daemon, client):
    client.put(np.ones((2, 2), np.float32), name="shared")
    with gemmd.Client(daemon.unix, session=client.session().token) as other:
        assert other.tensor("shared").shape == (2, 2)
    with gemmd.Client(daemon.unix, session="0" * 32) as stranger:
        with pytest.raises(gemmd.Unauthenticated):
            stranger.tensors()


def test_a_session_ends_with_its_client(daemon, client):
    with gemmd.Client(daemon.unix) as other:
        other.put(np.ones((2, 2), np.float32), name="gone")
        sessions = client.statistics().tensors.sessions
    wait_until(lambda: client.statistics().tensors.sessions < sessions, PATIENCE_S, "the session's end")


def test_a_client_that_is_not_closed_holds_no_program_up(daemon):
    script = (
        "import gemmd, sys, numpy as np\n"
        "client = gemmd.Client(sys.argv[1])\n"
        "t = client.put(np.ones((2, 2)))\n"
        "print((t @ np.ones((2, 2)))[0, 0])\n"
    )
    folder = pathlib.Path(gemmd.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, daemon.tcp],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("2.0\n", "")


def test_a_daemon_that_starts_anew(daemons, numbers, tmp_path):
    """Its tensors are gone, which is reported; a new session begins with the next tensor."""
    address = f"unix:{tmp_path}/socket"
    first = daemons.start("--devices=cpu", "--lame-duck=1ms", listen=address)
    with gemmd.Client(address) as client:
        tensor = client.put(np.ones((2, 2), np.float32), name="w")
        first.stop()
        daemons.start("--devices=cpu", "--lame-duck=1ms", listen=address)

        def is_new():
            try:
                client.put(np.ones((2, 2), np.float32), name="new")
                return True
            except (gemmd.Unauthenticated, gemmd.Unavailable):
                return False

        wait_until(is_new, PATIENCE_S, "a new session")
        with pytest.raises(gemmd.NotFound):
            tensor.get()
        assert [each.name for each in client.tensors()] == ["new"]
