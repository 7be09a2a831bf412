# SPDX-License-Identifier: Apache-2.0
"""A forked child ends nothing that is its parent's: neither by leaving a ``with``, nor by letting go of it."""

import asyncio
import gc
import os
import signal
import sys
import traceback

import gemmd
import numpy as np
import pytest

ONE = np.ones((1, 1), np.float32)
CHILD_LIMIT_S = 60


def in_child(work):
    """Runs it in a forked child, which ends without what Python does at its end."""
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
    """As sys.exit() within its ``with``."""
    context.__exit__(SystemExit, SystemExit(0), None)


def through_async(context):
    """The same for what is awaited, without a loop: it has nothing to wait for."""
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
    assert len(client._dropped) == 1  # Here it is gone.


def test_clients_and_their_sessions(daemon):
    with gemmd.Client(daemon.tcp) as client:
        tensor = client.put(ONE)
        in_child(lambda: through(client))
        in_child(client.close)
        assert tensor.get() == 1
        assert client.matmul(ONE, ONE) == 1


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
