# SPDX-License-Identifier: Apache-2.0
"""A forked child ends nothing that belongs to its parent, neither by leaving a ``with`` nor by
dropping a reference. It cannot use the parent's objects either, and gets an error at once."""

import asyncio
import gc
import os
import pathlib
import signal
import subprocess
import sys
import traceback
import weakref

import gemmd
import numpy as np
import pytest

ONE = np.ones((1, 1), np.float32)
CHILD_LIMIT_S = 60


def in_child(work):
    """Runs it in a forked child, which ends without Python's cleanup."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(CHILD_LIMIT_S)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def through(context):
    """Like sys.exit() within its ``with``."""
    context.__exit__(SystemExit, SystemExit(0), None)


def through_async(context):
    """The same for awaitables, without a loop: they have nothing to wait for."""
    with pytest.raises(StopIteration):
        context.__aexit__(SystemExit, SystemExit(0), None).send(None)


def refuses(call):
    with pytest.raises(gemmd.FailedPrecondition, match="want one of this process"):
        call()


def test_tensors(client):
    with client.put(ONE) as tensor:
        in_child(lambda: through(tensor))
        in_child(lambda: refuses(tensor.delete))
        assert tensor.get() == 1
    held = [client.put(ONE)]

    def let_go():
        held.clear()
        gc.collect()
        assert not client._dropped

    in_child(let_go)
    assert held[0].get() == 1
    held.clear()
    gc.collect()
    assert len(client._dropped) == 1  # Dropped here.


def test_clients_and_their_sessions(daemon):
    with gemmd.Client(daemon.tcp) as client:
        tensor = client.put(ONE)
        in_child(lambda: through(client))
        in_child(client.close)
        assert tensor.get() == 1
        assert client.matmul(ONE, ONE) == 1


def test_clients_and_streams_that_are_let_go_of(daemon):
    """gRPC would close their connections and cancel their calls."""
    client = gemmd.Client(daemon.tcp)
    held = {"client": client, "stream": client.stream()}
    assert held["stream"].submit(ONE, ONE).result().array == 1
    seen = {name: weakref.ref(each) for name, each in held.items()}
    del client

    def let_go():
        held.clear()
        gc.collect()
        assert all(each() is not None for each in seen.values())

    in_child(let_go)
    assert held["stream"].submit(ONE, ONE).result().array == 1
    held.pop("stream").close()
    held.pop("client").close()
    gc.collect()
    assert all(each() is None for each in seen.values())  # Dropped here.


def calls_of(client, tensor):
    """Every call about products, tensors and servers."""
    return [
        lambda: client.matmul(ONE, ONE),
        lambda: client.multiply(ONE, ONE),
        lambda: client.explain(ONE, ONE),
        lambda: client.chain(ONE, tensor, name="d"),
        lambda: client.chain(tensor, ONE, into=tensor),
        lambda: client.put(ONE, lease=5),
        lambda: client.tensor("x"),
        client.tensors,
        lambda: client.compress(tensor),
        client.stream,
        client.session,
        client.devices,
        client.kernels,
        client.server_info,
        client.statistics,
        tensor.get,
        tensor[:1].T.get,
        lambda: tensor @ ONE,
        lambda: ONE @ tensor,
        lambda: tensor @ tensor,
        tensor.refresh,
        lambda: tensor.keep_alive(lease=5),
        tensor.delete,
    ]


def refuses_all(client, tensor):
    for call in calls_of(client, tensor):
        refuses(call)


def test_calls_of_inherited_clients(client):
    """None waits for a thread that the child does not have, whatever the parent did before or does
    meanwhile."""
    in_child(lambda: refuses(lambda: client.matmul(ONE, ONE)))
    tensor = client.put(ONE)
    in_child(lambda: refuses_all(client, tensor))
    with client.stream() as stream:
        under_way = [stream.submit(ONE, tensor) for _ in range(100)]
        in_child(lambda: refuses_all(client, tensor))
        assert [future.result().array for future in under_way] == [1] * 100
    for call in calls_of(client, client.put(ONE, name="x"))[:2]:
        call()


def test_calls_of_inherited_asyncio_clients(daemon):
    def awaited(call):
        result = call()
        return result.send(None) if asyncio.iscoroutine(result) else result

    def refuses_all_awaited(client, tensor):
        for call in calls_of(client, tensor):
            refuses(lambda call=call: awaited(call))

    async def main():
        async with gemmd.aio.Client(daemon.tcp) as client:
            tensor = await client.put(ONE)
            in_child(lambda: refuses_all_awaited(client, tensor))
            assert await tensor.get() == 1

    asyncio.run(main())


def test_new_clients_where_grpc_is_not_told_of_forks(daemon):
    """As conftest.py sets it: without gRPC's threads no call would ever end."""
    with gemmd.Client(daemon.tcp) as client:
        client.server_info()

        def makes_another():
            with pytest.raises(gemmd.FailedPrecondition, match="process: got one that was forked after"):
                gemmd.Client(daemon.tcp).matmul(ONE, ONE)
            with pytest.raises(gemmd.FailedPrecondition, match="process: got one that was forked after"):
                asyncio.run(gemmd.aio.Client(daemon.tcp).matmul(ONE, ONE))

        in_child(makes_another)


DASK = """
import sys
import dask
import dask.array as da
import gemmd.dask
import numpy as np

a = np.arange(16, dtype=np.float32).reshape(4, 4)
blocks = da.from_array(a, 2)
d = gemmd.dask.matmul(blocks, blocks, sys.argv[1:])
for options in (
    {"scheduler": "threads"},
    {"scheduler": "processes", "num_workers": 2, "multiprocessing.context": "fork"},
):
    with dask.config.set(options):
        assert np.array_equal(d.compute(), a @ a)
"""


def test_worker_processes_of_dask(daemon):
    """Forked processes have their own clients, which gRPC supports unless its fork support is
    switched off."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    environment["PYTHONPATH"] = str(pathlib.Path(gemmd.__file__).parents[1])
    subprocess.run([sys.executable, "-c", DASK, daemon.tcp], env=environment, check=True)
    told = subprocess.run(
        [sys.executable, "-c", DASK, daemon.tcp],
        env=environment | {"GRPC_ENABLE_FORK_SUPPORT": "0"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1
    assert "FAILED_PRECONDITION: process: got one that was forked after" in told.stderr


def test_streams(client):
    with client.stream() as stream:
        assert stream.submit(ONE, ONE).result().array == 1
        in_child(lambda: through(stream))
        for call in (stream.close, stream.cancel, lambda: stream.submit(ONE, ONE)):
            in_child(lambda call=call: refuses(call))
        assert stream.submit(ONE, ONE).result().array == 1


def test_asyncio(daemon):
    async def main():
        async with gemmd.aio.Client(daemon.tcp) as client, client.stream() as stream:
            async with await client.put(ONE) as tensor:
                for context in (tensor, stream, client):
                    in_child(lambda context=context: through_async(context))
                in_child(lambda: refuses(lambda: tensor.delete().send(None)))
                assert await tensor.get() == 1
                assert (await (await stream.submit(ONE, ONE))).array == 1

    asyncio.run(main())
