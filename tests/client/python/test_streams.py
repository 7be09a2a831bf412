# SPDX-License-Identifier: Apache-2.0
"""Many products on one stream."""

import threading

import gemmd
import numpy as np
import pytest
from gemmd.product import build_request
from gemmd.v1 import gemm_pb2

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90"]


def integers(numbers, *shape):
    return numbers.integers(-4, 4, shape, endpoint=True).astype(np.float32)


def test_many_products(client, numbers):
    pairs = [(integers(numbers, n % 7 + 1, 9), integers(numbers, 9, 5)) for n in range(3000)]
    with client.stream() as stream:
        for (a, b), product in zip(pairs, stream.map(pairs, alpha=2), strict=True):
            assert np.array_equal(product.array, 2 * (a @ b))


def test_large_and_small_products(client, numbers):
    large = integers(numbers, 1100, 1000)
    with client.stream() as stream:
        futures = [stream.submit(large, large.T[:, :n], request_id=f"r{n}") for n in (1, 1100, 2)]
        products = [future.result(60) for future in futures]
    for n, product in zip((1, 1100, 2), products, strict=True):
        assert product.request_id == f"r{n}"
        assert np.array_equal(product.array, large @ large.T[:, :n])


def test_a_bad_product_fails_alone(client):
    one = np.ones((1, 1), np.float32)
    with client.stream() as stream:
        bad = stream.submit(one, one, kernel="no.such")
        good = stream.submit(one, one)
        assert good.result(60).array == 1
        with pytest.raises(gemmd.NotFound, match="no.such"):
            bad.result(60)
        with pytest.raises(gemmd.InvalidArgument):
            stream.submit(one, np.ones((2, 1), np.float32))
    with pytest.raises(gemmd.Cancelled):
        stream.submit(one, one)


def test_tensors_on_a_stream(client, numbers):
    w, x = integers(numbers, 8, 6), integers(numbers, 5, 8)
    tensor = client.put(w)
    with client.stream() as stream:
        assert np.array_equal(stream.submit(x, tensor).result(60).array, x @ w)


def test_threads_share_a_stream(client, numbers):
    w = integers(numbers, 8, 6)
    failures = []

    def work(seed, stream):
        x = integers(np.random.default_rng(seed), 100, 8)
        for row in x:
            if not np.array_equal(stream.submit(row, w).result(60).array, row @ w):
                failures.append(seed)

    with client.stream() as stream:
        threads = [threading.Thread(target=work, args=(seed, stream)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_the_end_of_a_stream(client, daemons):
    one = np.ones((1, 1), np.float32)
    stream = client.stream()
    stream.submit(one, one).result(60)
    stream.cancel()
    with pytest.raises(gemmd.Cancelled):
        stream.submit(one, one)
    with pytest.raises(gemmd.DeadlineExceeded), client.stream(timeout=0.2) as late:
        late._reader.join(60)
        late.submit(one, one)
    with gemmd.Client(daemons.start("--devices=cpu", "--lame-duck=1ms").tcp) as other:
        broken = other.stream()
        broken.submit(one, one).result(60)
        for daemon in daemons._started:
            daemon.kill()
        broken._reader.join(60)
        with pytest.raises(gemmd.Unavailable):
            broken.submit(one, one)
        daemons._started.clear()


def test_a_request_takes_another_id():
    request = build_request(np.ones((2, 3)), np.ones((3, 4)), {"request_id": "own"})
    for request_id in ("own", "7", ""):
        request.set_request_id(request_id)
        assert gemm_pb2.MultiplyRequest.FromString(request.serialize()).request_id == request_id
        assert request.nbytes == len(request.serialize())
