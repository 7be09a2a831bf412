# SPDX-License-Identifier: Apache-2.0
"""A caller's trace can be followed into the daemon's log, and back."""

import re

import grpc
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc
from product import Product
from streams import answers_in, joint

GEMMD_FLAGS = ["--devices=cpu", "--log-level=debug"]
DEADLINE_S = 60
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def multiply(channel, traceparent, request_id, kernel=""):
    """The answer's status and the traceparent that was returned."""
    product = Product(a=np.ones((1, 4, 4)), b=np.ones((1, 4, 4)))
    request = product.request()
    request.request_id = request_id
    request.kernel = kernel
    call = gemm_pb2_grpc.GemmStub(channel).Multiply.future(
        request, timeout=DEADLINE_S, metadata=[("traceparent", traceparent)]
    )
    return call.code(), dict(call.trailing_metadata()).get("traceparent")


def line_of(daemon, request_id):
    def find():
        return [line for line in daemon.log() if line.get("id") == request_id]

    [line] = wait_until(find, DEADLINE_S, "its line in the log")
    return line


@pytest.mark.parametrize("kernel, event", [("", "request"), ("none", "refusal")])
def test_a_trace_is_logged_and_returned(daemon, channel, kernel, event):
    code, returned = multiply(channel, f"00-{TRACE}-{PARENT}-01", f"traced-{event}", kernel)
    assert (code == grpc.StatusCode.OK) == (event == "request")
    line = line_of(daemon, f"traced-{event}")
    assert line["event"] == event
    assert (line["trace_id"], line["parent_id"]) == (TRACE, PARENT)
    assert re.fullmatch("[0-9a-f]{16}", line["span_id"]) and line["span_id"] != PARENT
    assert returned == f"00-{TRACE}-{line['span_id']}-01"


def test_each_product_of_a_stream_has_a_span_of_its_own(daemon, channel):
    product = Product(a=np.ones((1, 4, 4)), b=np.ones((1, 4, 4)))
    requests = [product.request() for _ in range(3)]
    for i, request in enumerate(requests):
        request.request_id = f"streamed-{i}"
    call = gemm_pb2_grpc.GemmStub(channel).MultiplyStream(
        joint(requests, 2),
        timeout=DEADLINE_S,
        metadata=[("traceparent", f"00-{TRACE}-{PARENT}-01")],
    )
    assert len(list(answers_in(call))) == 3
    stream_span = dict(call.trailing_metadata())["traceparent"].split("-")[2]
    lines = [line_of(daemon, f"streamed-{i}") for i in range(3)]
    assert {(line["trace_id"], line["parent_id"]) for line in lines} == {(TRACE, stream_span)}
    assert len({line["span_id"] for line in lines}) == 3


@pytest.mark.parametrize(
    "traceparent",
    [
        "nonsense",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        'a="b" event=forged',
    ],
)
def test_an_invalid_one_is_as_none(daemon, channel, traceparent):
    code, returned = multiply(channel, traceparent, f"invalid {traceparent}")
    assert code == grpc.StatusCode.OK and returned is None
    escaped = f"invalid {traceparent}".replace('"', '\\"')
    assert "trace_id" not in line_of(daemon, escaped)


def test_gemmctl_sends_the_one_that_it_is_given(ctl, daemon):
    product = ["multiply", "--random", "3,4,5"]
    for request_id, flags in (("with", [f"--traceparent=00-{TRACE}-{PARENT}-01"]), ("without", [])):
        code, _, err = ctl(*product, f"--request-id={request_id}", *flags)
        assert code == 0, err
    line = line_of(daemon, "with")
    assert (line["trace_id"], line["parent_id"]) == (TRACE, PARENT)
    assert "trace_id" not in line_of(daemon, "without")
