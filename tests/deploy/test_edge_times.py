# SPDX-License-Identifier: Apache-2.0
"""How long a call may last at the edge: a day in its configuration is two seconds here."""

import queue
import threading
import time

import grpc
import pytest
from gemmd.v1 import gemm_pb2_grpc

from callers import multiply, product
from edge import bearer, channel, edge_fixture  # noqa: F401
from streams import joint
from tensors import Session

DAY_S = 86400
SHORT_DAY_S = 2
# For a client that intends to stay for a month.
MONTH_S = 30 * DAY_S


def shortened(config):
    """Divides every limit on a stream's whole life by the same factor; 0 still means none."""
    (chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
    (host,) = chain["filters"][-1]["typed_config"]["route_config"]["virtual_hosts"]
    for route in host["routes"]:
        limits = {
            name: f"{float(value.removesuffix('s')) * SHORT_DAY_S / DAY_S}s"
            for name, value in route["route"]["max_stream_duration"].items()
        }
        route["route"] = route["route"] | {"max_stream_duration": limits}


edge = edge_fixture(shortened)


def check_ended_by_the_edge(stream, began):
    """Waits until the edge ends the stream, which began at `began`; within a minute."""
    giving_up = threading.Timer(60, stream.cancel)
    giving_up.start()
    with pytest.raises(grpc.RpcError):
        for _ in stream:
            pass
    giving_up.cancel()
    assert stream.code() != grpc.StatusCode.CANCELLED, "this side gave up"
    # However slow the machine is, no day is shorter than that.
    assert time.monotonic() - began > 0.5 * SHORT_DAY_S


@pytest.mark.parametrize("deadline_s", [None, MONTH_S], ids=["no deadline", "of a month"])
def test_a_stream_of_products_ends_after_a_day(edge, channel, deadline_s):
    requests = queue.SimpleQueue()
    requests.put(product(4))
    sent = joint(iter(requests.get, None))
    metadata = bearer(edge.issuer.token())
    stub = gemm_pb2_grpc.GemmStub(channel)
    began = time.monotonic()
    stream = stub.MultiplyStream(sent, metadata=metadata, timeout=deadline_s)
    try:
        assert next(stream).answers
        check_ended_by_the_edge(stream, began)
    finally:
        stream.cancel()
        requests.put(None)


def test_a_session_ends_after_a_day_and_others_go_on(edge, channel):
    metadata = bearer(edge.issuer.token())
    began = time.monotonic()
    with Session(channel, credentials=metadata) as session:
        check_ended_by_the_edge(session.stream, began)
        assert multiply(channel, metadata).d.data
