# SPDX-License-Identifier: Apache-2.0
"""Spans of products in a file, parsed with OpenTelemetry's own messages."""

import base64
import json
import time

import grpc
import numpy as np
import pytest
from gemmd.v1 import gemm_pb2_grpc
from google.protobuf import json_format
from opentelemetry.proto.trace.v1 import trace_pb2
from product import Product

DEADLINE_S = 60
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{TRACE}-{PARENT}-00"


@pytest.fixture
def start(daemons, tmp_path):
    def start(share=""):
        traces = f"--traces={tmp_path / 'traces'}{share}"
        daemon = daemons.start("--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms", traces)
        daemon.traces = tmp_path / "traces"
        return daemon

    return start


def multiply(daemon, traceparent=None, count=1, **fields):
    """The answers, and the traceparent returned with the last."""
    product = Product(a=np.ones((1, 24, 24)), b=np.ones((1, 24, 24)))
    request = product.request()
    for name, value in fields.items():
        setattr(request, name, value)
    metadata = [("traceparent", traceparent)] if traceparent else []
    with grpc.insecure_channel(daemon.tcp, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        for _ in range(count):
            call = stub.Multiply.future(request, timeout=DEADLINE_S, metadata=metadata)
            answer = call.result()
        return answer, dict(call.trailing_metadata()).get("traceparent")


def parsed(line):
    """A line as OpenTelemetry's message. OTLP writes ids in hexadecimal, while protobuf's JSON
    writes bytes in base64."""

    def with_ids(value):
        if isinstance(value, list):
            return [with_ids(each) for each in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64encode(bytes.fromhex(each)).decode() if key in ids else with_ids(each)
            for key, each in value.items()
        }

    # An unknown field, or a wrong type, is an error.
    return json_format.ParseDict(with_ids(json.loads(line)), trace_pb2.TracesData())


def products_in(*paths):
    """The spans of each product: its own first."""
    found = []
    for path in paths:
        for line in path.read_text().splitlines():
            [resource] = parsed(line).resource_spans
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert names["service.name"] == "gemmd" and names["service.version"]
            [scope] = resource.scope_spans
            found.append(list(scope.spans))
    return found


def attributes(span):
    return {each.key: each.value.string_value for each in span.attributes}


def test_a_sampled_product_has_a_span_for_each_stage(start):
    daemon = start()
    before_ns = time.time_ns()
    answer, returned = multiply(daemon, SAMPLED, request_id="traced")
    multiply(daemon, NOT_SAMPLED)
    multiply(daemon)
    daemon.stop()
    after_ns = time.time_ns()
    [[own, *stages]] = products_in(daemon.traces)
    assert own.trace_id.hex() == TRACE and own.parent_span_id.hex() == PARENT
    assert returned == f"00-{TRACE}-{own.span_id.hex()}-01"
    assert own.name == "Multiply" and own.kind == trace_pb2.Span.SPAN_KIND_SERVER
    told = attributes(own)
    assert (told["gemmd.kernel"], told["gemmd.device"]) == (answer.kernel, "cpu")
    assert told["gemmd.request_id"] == "traced" and "24x24x24" in told["gemmd.problem"]
    assert own.status.code == trace_pb2.Status.STATUS_CODE_UNSET
    assert before_ns <= own.start_time_unix_nano < own.end_time_unix_nano <= after_ns
    assert own.end_time_unix_nano - own.start_time_unix_nano >= answer.timing.total_ns
    times = {span.name: span.end_time_unix_nano - span.start_time_unix_nano for span in stages}
    assert times["compute"] == answer.timing.compute_ns
    assert times["queue"] == answer.timing.queue_ns
    assert len({span.span_id for span in stages} | {own.span_id}) == len(stages) + 1
    at_ns = own.start_time_unix_nano
    for span in stages:
        assert (span.trace_id, span.parent_span_id) == (own.trace_id, own.span_id)
        assert at_ns <= span.start_time_unix_nano < span.end_time_unix_nano
        at_ns = span.end_time_unix_nano
    assert at_ns <= own.end_time_unix_nano


def test_a_share_of_products_without_a_trace(start):
    daemon = start(share=":1")
    multiply(daemon, count=3)
    multiply(daemon, NOT_SAMPLED)
    daemon.stop()
    products = products_in(daemon.traces)
    assert len(products) == 3
    assert len({own.trace_id for own, *_ in products}) == 3
    assert not any(own.parent_span_id for own, *_ in products)


def test_a_file_that_cannot_be_had_is_told_at_the_start(daemons, tmp_path):
    daemon = daemons.launch("--devices=cpu", f"--traces={tmp_path}")
    assert daemon.wait() == 1
    assert daemon.events("stop")[0]["reason"] == f"traces: got {tmp_path}, want a regular file"
