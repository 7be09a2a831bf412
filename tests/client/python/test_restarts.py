# SPDX-License-Identifier: Apache-2.0
"""Restorable tensors of clients whose daemon is killed and started again at the same address."""

import asyncio
import gc
import signal
import threading
import weakref

import gemmd
import numpy as np
import pytest
from daemon import PATIENCE_S, wait_until
from gemmd import aio
from gemmd.v1 import admin_pb2, admin_pb2_grpc

import grpc

SETTINGS = {
    "timeout": PATIENCE_S,
    "wait_for_ready": True,
    "channel_options": [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)],
}


class Restarted:
    """A daemon that can be killed, or lose its sessions."""

    def __init__(self, daemons):
        self._daemons = daemons
        self._daemon = daemons.start("--devices=cpu")
        self.address, self.unix = self._daemon.tcp, self._daemon.unix

    def restart(self):
        self._daemon.signal(signal.SIGKILL)
        assert self._daemon.wait() == -signal.SIGKILL
        listen = f"{self.address},{self.unix}"
        self._daemon = self._daemons.start("--devices=cpu", listen=listen)

    def lose(self):
        """The server loses all sessions with their tensors, as in a restart, but at once."""
        with grpc.insecure_channel(self.unix) as channel:
            operator = admin_pb2_grpc.AdminStub(channel)
            for session in operator.ListSessions(admin_pb2.ListSessionsRequest()).sessions:
                operator.DropSession(admin_pb2.DropSessionRequest(id=session.id))


@pytest.fixture
def restarted(daemons):
    return Restarted(daemons)


@pytest.fixture
def client(restarted):
    with gemmd.Client(restarted.address, **SETTINGS) as client:
        yield client


@pytest.fixture
def arrays(numbers):
    return [numbers.integers(-4, 4, shape, endpoint=True).astype(np.float32) for shape in ((3, 64), (64, 48))]


def uploads(client):
    tensors = client.statistics().tensors
    return tensors.uploads_complete, tensors.uploads_known


def test_each_call_gets_its_tensors_back(restarted, client, arrays):
    x, w = arrays
    tensor = client.put(w, name="w", pinned=True, restorable=True)

    def keep_alive():
        tensor.keep_alive(lease=420)

    calls = [
        lambda: np.testing.assert_array_equal(x @ tensor, x @ w),
        lambda: np.testing.assert_array_equal(client.multiply(x, tensor).array, x @ w),
        lambda: np.testing.assert_array_equal(x @ tensor[:, 8:24], x @ w[:, 8:24]),
        lambda: np.testing.assert_array_equal(tensor.T @ x.T, (x @ w).T),
        lambda: np.testing.assert_array_equal(client.chain(x, tensor).get(), x @ w),
        lambda: np.testing.assert_array_equal(tensor.get(), w),
        lambda: np.testing.assert_array_equal(tensor[3:9].get(), w[3:9]),
        lambda: tensor.refresh(),
        lambda: client.tensor("w"),
        lambda: client.compress(tensor),
        lambda: client.explain(x, tensor),
        keep_alive,
    ]
    for number, call in enumerate(calls):
        restarted.lose()
        before = uploads(client)
        call()
        call()
        # The first call sends the bytes, and no other.
        assert uploads(client) == (before[0] + 1, before[1]), number
    restarted.restart()
    info = tensor.refresh()
    assert info.pinned and info.lease_ns == 420 * 10**9


def test_calls_in_flight_succeed(restarted, client, arrays):
    x, w = arrays
    tensor = client.put(w, restorable=True)
    failures, done, is_over = [], [0] * 4, threading.Event()

    def call(number):
        try:
            while not is_over.is_set():
                np.testing.assert_array_equal(x @ tensor, x @ w)
                done[number] += 1
        except BaseException as failure:
            failures.append(failure)

    def go_on():
        before = list(done)
        wait_until(
            lambda: failures or all(now >= then + 2 for now, then in zip(done, before, strict=True)),
            PATIENCE_S,
            "products",
        )

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(2):
            go_on()
            restarted.restart()
        go_on()
    finally:
        is_over.set()
        for caller in callers:
            caller.join()
    assert not failures
    # All callers wait for one upload.
    assert uploads(client) == (1, 0)


def test_bytes_that_the_session_has_are_not_sent(restarted, client, arrays):
    x, w = arrays
    first, second = (client.put(array, name=name, restorable=True) for name, array in (("a", w), ("b", w.copy())))
    restarted.lose()
    before = uploads(client)
    np.testing.assert_array_equal(x @ first, x @ w)
    np.testing.assert_array_equal(x @ second, x @ w)
    assert uploads(client) == (before[0] + 1, before[1] + 1)


def test_a_changed_array_is_an_error(restarted, client, arrays):
    x, w = arrays
    tensor = client.put(w, name="w", restorable=True)
    restarted.lose()
    w[3, 4] += 1
    with pytest.raises(gemmd.FailedPrecondition, match="restorable tensor w: got other elements in its array"):
        x @ tensor
    w[3, 4] -= 1
    np.testing.assert_array_equal(x @ tensor, x @ w)


def test_other_tensors_are_lost(restarted, client, arrays):
    x, w = arrays
    tensor, restorable = client.put(w, name="w"), client.put(w, restorable=True)
    result = client.chain(x, tensor)
    restarted.lose()
    np.testing.assert_array_equal(x @ restorable, x @ w)
    for lost in (lambda: x @ tensor, result.get, tensor.refresh, lambda: client.tensor("w")):
        with pytest.raises(gemmd.NotFound, match="put them with restorable=True"):
            lost()
    with pytest.raises(gemmd.InvalidArgument, match="restorable: got 1"):
        client.put(w, restorable=1)


def test_what_was_overwritten_replaced_or_deleted_is_not_restored(restarted, client, arrays):
    x, w = arrays
    square = w[:, :3] @ x
    into = client.put(square, restorable=True)
    replaced, deleted = (client.put(w, name=name, restorable=True) for name in ("w", "deleted"))
    replacing = client.put(square, name="w", restorable=True)
    restarted.lose()
    np.testing.assert_array_equal(x @ deleted, x @ w)
    deleted.delete()
    into.refresh()
    client.chain(square, square, into=into)
    np.testing.assert_array_equal(into.get(), square @ square)
    restarted.lose()
    np.testing.assert_array_equal(x @ replacing, x @ square)
    for lost in (into, replaced, deleted):
        with pytest.raises(gemmd.NotFound):
            lost.refresh()
    np.testing.assert_array_equal(client.tensor("w").get(), square)


def test_arrays_are_kept_as_long_as_their_tensors(restarted, client, arrays):
    x, w = arrays
    w = w.view(type("Array", (np.ndarray,), {}))
    kept = weakref.ref(w)
    tensor = client.put(w, restorable=True)
    want = np.asarray(x @ np.asarray(w))
    del w
    gc.collect()
    restarted.lose()
    np.testing.assert_array_equal(x @ tensor, want)
    assert len(client.tensors()) == 1
    del tensor
    gc.collect()
    # The next call that creates a tensor deletes this one, by the handle that it has now.
    other = client.put(x)
    assert [t.info.handle for t in client.tensors()] == [other.info.handle]
    gc.collect()
    assert kept() is None


def test_streams_use_restored_tensors(restarted, client, arrays):
    x, w = arrays
    tensor = client.put(w, restorable=True)
    restarted.lose()
    np.testing.assert_array_equal(x @ tensor, x @ w)
    with client.stream() as stream:
        np.testing.assert_array_equal(stream.submit(x, tensor).result().array, x @ w)


def test_streams_restore_tensors(restarted, client, arrays):
    """A stream that was open before, one that is opened afterwards, and one that sends no more."""
    x, w = arrays
    tensor = client.put(w, restorable=True)
    with client.stream() as stream:
        np.testing.assert_array_equal(stream.submit(x, tensor).result().array, x @ w)
        for number in range(1, 3):
            restarted.lose()
            with client.stream(timeout=PATIENCE_S) as later:
                futures = [each.submit(x, tensor, request_id=name) for each in (stream, later) for name in ("p", "p", "q")]
            products = [future.result() for future in futures]
            for product in products:
                np.testing.assert_array_equal(product.array, x @ w)
            assert [product.request_id for product in products] == 2 * ["p", "p", "q"]
            assert uploads(client) == (number + 1, 0)
        restarted.lose()
        w[0, 0] += 1
        with pytest.raises(gemmd.FailedPrecondition, match="restorable tensor"):
            stream.submit(x, tensor).result()
        w[0, 0] -= 1
        tensor.refresh()
        np.testing.assert_array_equal(stream.submit(x, tensor).result().array, x @ w)


def test_a_stream_that_is_cancelled_restores_nothing_more(restarted, client, arrays):
    x, w = arrays
    tensor = client.put(w, restorable=True)
    stream = client.stream()
    assert stream.submit(x, tensor).result().array.shape == (3, 48)
    restarted.lose()
    future = stream.submit(x, tensor)
    stream.cancel()
    # It was refused and restored before that, or not.
    assert future.exception() is None or isinstance(future.exception(), gemmd.Cancelled)


def test_streams_of_asyncio_restore_tensors(restarted, arrays):
    x, w = arrays

    async def main():
        async with asyncio.timeout(4 * PATIENCE_S), aio.Client(restarted.address, **SETTINGS) as client:
            tensor = await client.put(w, restorable=True)
            async with client.stream() as stream:
                await (await stream.submit(x, tensor))
                for lose in (restarted.lose, restarted.lose):
                    await asyncio.to_thread(lose)
                    async with client.stream() as later:
                        futures = [await each.submit(x, tensor) for each in (stream, later) for _ in range(3)]
                    for product in await asyncio.gather(*futures):
                        np.testing.assert_array_equal(product.array, x @ w)
            tensors = (await client.statistics()).tensors
            assert (tensors.uploads_complete, tensors.uploads_known) == (3, 0)

    asyncio.run(main())


def test_a_joined_session_is_not_replaced(restarted, client, arrays):
    x, w = arrays
    with gemmd.Client(restarted.address, session=client.session().token, **SETTINGS) as joined:
        tensor = joined.put(w, restorable=True)
        restarted.lose()
        with pytest.raises(gemmd.Unauthenticated):
            x @ tensor


def test_a_put_is_repeated_in_another_session(client, arrays):
    lost = client.session().token[::-1]
    client._session._token = lost  # The server does not know it, as after a restart that no stream has noticed yet.
    np.testing.assert_array_equal(client.put(arrays[0]).get(), arrays[0])
    assert client.session().token != lost


def test_asyncio_repeats_a_put_in_another_session(restarted, arrays):
    async def run():
        async with aio.Client(restarted.address, **SETTINGS) as client:
            lost = (await client.session()).token[::-1]
            client._session.token = lost
            np.testing.assert_array_equal(await (await client.put(arrays[0])).get(), arrays[0])
            assert (await client.session()).token != lost

    asyncio.run(run())


def test_asyncio(restarted, arrays):
    x, w = arrays

    async def main():
        async with asyncio.timeout(4 * PATIENCE_S), aio.Client(restarted.address, **SETTINGS) as client:
            tensor = await client.put(w, name="w", restorable=True)
            products = [asyncio.create_task(client.matmul(x, tensor)) for _ in range(8)]
            await asyncio.to_thread(restarted.restart)
            products += [asyncio.create_task(client.matmul(x, tensor)) for _ in range(8)]
            for product in await asyncio.gather(*products):
                np.testing.assert_array_equal(product, x @ w)
            uploaded = (await client.statistics()).tensors
            assert (uploaded.uploads_complete, uploaded.uploads_known) == (1, 0)
            for lose in (restarted.lose, restarted.restart):
                await asyncio.to_thread(lose)
                np.testing.assert_array_equal(await tensor.get(), w)
                np.testing.assert_array_equal(await (await client.chain(x, tensor)).get(), x @ w)
            await asyncio.to_thread(restarted.lose)
            w[0, 0] += 1
            with pytest.raises(gemmd.FailedPrecondition, match="restorable tensor w"):
                await tensor.refresh()
            w[0, 0] -= 1
            await tensor.refresh()
            await tensor.delete()
            with pytest.raises(gemmd.NotFound):
                await client.matmul(x, tensor)

    asyncio.run(main())
