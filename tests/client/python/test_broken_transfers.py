# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads resume when their connections break."""

import gemmd
import numpy as np
import pytest
from breaking_proxy import BreakingProxy
from gemmd.part import Span
from gemmd.transfer import Arrival
from gemmd.v1 import tensors_pb2

GEMMD_FLAGS = ["--devices=cpu"]
MIB = 1 << 20


@pytest.fixture
def array(numbers):
    return numbers.integers(0, 256, (12, MIB), np.uint8)


@pytest.mark.parametrize("connections", [1, 3])
def test_uploads_go_on(daemon, client, array, connections):
    with (
        BreakingProxy(daemon.port, after_bytes=3 * MIB, breaks=2) as proxy,
        gemmd.Client(proxy.address) as broken,
    ):
        sha256 = bool(connections == 3)
        tensor = broken.put(array, connections=connections, sha256=sha256)
        assert proxy.broken >= 1
        assert np.array_equal(tensor.get(), array)


@pytest.mark.parametrize("connections", [1, 3])
def test_downloads_go_on(daemon, client, array, connections):
    tensor = client.put(array, name="w")
    with (
        BreakingProxy(daemon.port, after_bytes=3 * MIB, breaks=2) as proxy,
        gemmd.Client(proxy.address, session=client.session().token) as broken,
    ):
        assert np.array_equal(broken.tensor("w").get(connections=connections), array)
        assert proxy.broken >= 1
    tensor.delete()


def test_what_breaks_again_and_again_ends(daemon, array):
    with (
        BreakingProxy(daemon.port, after_bytes=1000, breaks=10**6) as proxy,
        gemmd.Client(proxy.address, timeout=60) as broken,
    ):
        with pytest.raises((gemmd.Unavailable, gemmd.NotFound)):
            broken.put(array)


def test_bytes_out_of_place_are_refused():
    into = np.zeros(10, np.uint8)
    arrival = Arrival(tensors_pb2.TensorRef(), Span(100, 4), into[:4])
    arrival.take(100, memoryview(b"ab"))
    for offset, data in ((99, b"x"), (103, b"xy"), (104, b"x"), (0, b"xxxx")):
        with pytest.raises(gemmd.DataLoss, match="want 4 from 100 on"):
            arrival.take(offset, memoryview(data))
    assert arrival.done == 2
    arrival.take(102, memoryview(b"cd"))
    assert arrival.is_complete
    assert bytes(into) == b"abcd" + bytes(6)
