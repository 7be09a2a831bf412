# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio: products, errors, tensors, streams."""

import asyncio
import gc

import gemmd
import numpy as np
import pytest
from breaking_proxy import BreakingProxy
from gemmd import aio

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90"]
ONE = np.ones((1, 1), np.float32)


def integers(numbers, *shape):
    return numbers.integers(-4, 4, shape, endpoint=True).astype(np.float32)


@pytest.fixture
def run(daemon):
    """Runs a coroutine with a new client."""

    def run(program, **settings):
        async def main():
            async with asyncio.timeout(120), aio.Client(daemon.unix, **settings) as client:
                await program(client)

        asyncio.run(main())

    return run


def test_products(run, numbers):
    pairs = [(integers(numbers, 3, n), integers(numbers, n, 4)) for n in range(1, 50)]

    async def program(client):
        products = await asyncio.gather(*(client.multiply(a, b, alpha=2) for a, b in pairs))
        for (a, b), product in zip(pairs, products, strict=True):
            assert np.array_equal(product.array, 2 * (a @ b))
        out = np.zeros((3, 4), np.float32)
        assert await client.matmul(*pairs[0], out=out) is out

    run(program)


def test_what_the_server_says(run):
    async def program(client):
        assert [device.name for device in await client.devices()] == ["cpu", "sim:sm_90"]
        assert await client.kernels("*bf16*")
        assert (await client.server_info()).default_device == "cpu"
        assert (await client.statistics()).devices[0].name == "cpu"
        assert (await client.explain(ONE, ONE)).candidates
        with pytest.raises(gemmd.NotFound):
            await client.matmul(ONE, ONE, device="cuda:99")
        large = np.ones((1500, 1500), np.float32)
        with pytest.raises(gemmd.DeadlineExceeded):
            await client.matmul(large, large, timeout=0.001)

    run(program)


def test_nobody_there(tmp_path):
    async def main():
        async with aio.Client(f"unix:{tmp_path}/none", max_attempts=1) as client:
            with pytest.raises(gemmd.Unavailable):
                await client.devices()
            with pytest.raises(gemmd.Unavailable):
                await client.put(ONE)

    asyncio.run(main())


def test_tensors(run, numbers):
    x, w, v = (integers(numbers, *shape) for shape in ((3, 8), (8, 6), (6, 5)))

    async def program(client):
        rw, rv = await client.put(w, name="w"), await client.put(v)
        assert np.array_equal(await (x @ rw), x @ w)
        assert np.array_equal(await (rw @ v), w @ v)
        product = await (rw @ rv)
        assert np.array_equal(await product.get(), w @ v)
        assert np.array_equal(await (x @ rw[:, 2:4]), x @ w[:, 2:4])
        await client.chain(x, rw, into=(await client.put(np.zeros((3, 6), np.float32))))
        assert (await (await client.tensor("w")).refresh()).products >= 2
        await rw.keep_alive(lease=100)
        assert (await rw.refresh()).lease_ns == 100 * 10**9
        async with await client.put(w) as gone:
            assert len(await client.tensors()) == 4
        with pytest.raises(gemmd.NotFound):
            await gone.get()
        del rv, product, gone
        gc.collect()
        assert [tensor.name for tensor in await client.tensors()] == ["w"]
        half = (w * (np.arange(6) % 4 < 2)).astype(np.float16)
        dense = await client.put(half)
        sparse = await client.compress(dense)
        want = half @ v.astype(np.float16)
        assert np.array_equal(await (sparse @ v.astype(np.float16)), want)

    run(program)


def test_sessions(daemon, run):
    async def program(client):
        tensor = await client.put(ONE, name="shared")
        token = (await client.session()).token
        async with aio.Client(daemon.tcp, session=token) as other:
            assert await (await other.tensor("shared")).get() == 1
        async with aio.Client(daemon.tcp, session="0" * 32) as stranger:
            with pytest.raises(gemmd.Unauthenticated):
                await stranger.tensors()
        await tensor.delete()

    run(program)


def test_large_transfers_and_broken_connections(daemon, numbers):
    array = numbers.integers(0, 256, (12, 1 << 20), np.uint8)

    async def main(connections):
        with BreakingProxy(daemon.port, after_bytes=3 << 20, breaks=2) as proxy:
            async with aio.Client(proxy.address) as client:
                tensor = await client.put(array, connections=connections)
                assert proxy.broken >= 1
                assert np.array_equal(await tensor.get(connections=connections), array)
                proxy.stall()
                with pytest.raises(gemmd.DeadlineExceeded):
                    await client.put(array, timeout=0.2)

    for connections in (1, 3):
        asyncio.run(main(connections))


def test_streams(run, numbers):
    pairs = [(integers(numbers, n % 7 + 1, 9), integers(numbers, 9, 5)) for n in range(1500)]

    async def program(client):
        async with client.stream() as stream:
            futures = [await stream.submit(a, b) for a, b in pairs]
            bad = await stream.submit(ONE, ONE, kernel="no.such")
            for (a, b), future in zip(pairs, futures, strict=True):
                assert np.array_equal((await future).array, a @ b)
            with pytest.raises(gemmd.NotFound):
                await bad
        with pytest.raises(gemmd.Cancelled):
            await stream.submit(ONE, ONE)
        stream = client.stream()
        await (await stream.submit(ONE, ONE))
        await stream.cancel()
        with pytest.raises(gemmd.Cancelled):
            await stream.submit(ONE, ONE)

    run(program)
