# SPDX-License-Identifier: Apache-2.0
"""Messages of megabytes to methods that take no operand: each is refused, and nothing is parsed of
it."""

from functools import partial

import pytest
from bystander import Bystander
from daemon import PATIENCE_S, wait_until
from gemmd.v1 import admin_pb2, gemm_pb2, registry_pb2, resident_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from http2_peer import Http2Peer, message, varint
from kserve.v2 import inference_pb2

MIB = 1 << 20

RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
CLOSED = "closed"  # The connection, instead of an answer.

# The memory that malloc keeps in addition, and that of a bystander's requests.
MALLOC_SLACK = 24 * MIB

# These have the limits of what they carry.
WITH_OPERANDS = {
    "/gemmd.v1.Gemm/Multiply",
    "/gemmd.v1.Gemm/MultiplyStream",
    "/gemmd.v1.Tensors/Put",
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStreamInfer",
}


# KServe's methods that gemmd does not have, and health's of newer versions, do not read their requests.
HEALTH_LIST = "/grpc.health.v1.Health/List"  # Answered as its headers come, before its message is looked at.
UNREAD = ("/inference.", HEALTH_LIST)


def paths(*modules):
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}"


ALL = {
    *paths(admin_pb2, gemm_pb2, registry_pb2, resident_pb2, inference_pb2, health_pb2, reflection_pb2),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
}
QUESTIONS = sorted(ALL - WITH_OPERANDS)

# What each takes, and whether a message that declares more than 64 KiB ends its connection.
KIB = 1 << 10
OF_TOOLS = ("/grpc.", "/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady")


def longest(path):
    if path.startswith("/grpc."):
        return 64 * KIB
    return MIB if path == "/gemmd.v1.Registry/Explain" else 4 * KIB


# One text, as most of these methods take one; and groups, of which protobuf makes 16 times as much.
BODIES = {
    "a text": lambda size: varint(1 << 3 | 2) + varint(size) + b"x" * size,
    "unknown groups": lambda size: (varint(1000 << 3 | 3) + varint(1000 << 3 | 4)) * (size // 4),
}


def is_answered(peer, stream):
    peer.receive(0.05)
    return peer.is_over(stream) or bool(peer.answers[stream].data)


def answers(daemon, methods, body):
    """The status of each method's answer, one after the other, or CLOSED."""
    seen = {}
    for path in methods:
        # Operators' calls are local.
        with Http2Peer(daemon.unix) as peer:
            stream = peer.start(path)
            peer.send(stream, message(body(path)), end=True)
            answer = peer.answers[stream]
            # A session and a watch last.
            wait_until(partial(is_answered, peer, stream), PATIENCE_S, f"{path} answered")
            seen[path] = CLOSED if peer.closed and not answer.data else answer.status
    return seen


def bodies(text_bytes):
    """A message for each path, in which a text occurs several times: the last one counts, and is short."""
    short = varint(1 << 3 | 2) + b"\1x"

    def body(path):
        # The key and the length of a text of more than 127 bytes take three bytes, of more than 16,383 four.
        size = text_bytes(path) - len(short)
        head = 3 if size - 3 < 1 << 14 else 4
        return varint(1 << 3 | 2) + varint(size - head) + b"x" * (size - head) + short

    return body


def test_the_longest_questions(daemons, battery):
    """Each method takes as much as an honest caller may send, and a byte more is refused."""
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu")
    for more in (0, 1):
        body = bodies(lambda path, more=more: longest(path) + more)
        assert all(len(body(path)) == longest(path) + more for path in QUESTIONS)
        seen = answers(daemon, QUESTIONS, body)
        unknown = {path for path, status in seen.items() if status == UNIMPLEMENTED}
        assert all(path.startswith(UNREAD) for path in unknown)
        refused = {path for path, status in seen.items() if status in (RESOURCE_EXHAUSTED, CLOSED)}
        if more == 0:
            battery.holds("the longest questions: refused", most=0, seen=len(refused))
        else:
            battery.holds("questions a byte longer: refused", least=len(QUESTIONS), seen=len(refused | unknown))
        closed = {path for path, status in seen.items() if status == CLOSED}
        # Of health's and reflection's 64 KiB, unlike of KServe's 4, the connection is the price.
        assert closed - {HEALTH_LIST} == {path for path in QUESTIONS if more and path.startswith("/grpc.")} - {HEALTH_LIST}


@pytest.mark.resident_memory
@pytest.mark.own_device  # A GPU's staging memory is resident, too.
@pytest.mark.parametrize("body", BODIES)
def test_long_questions(daemons, battery, is_timed, body):
    assert WITH_OPERANDS < ALL
    # Such a small capacity that the bystander's probe of it does not matter for the measurement.
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu", "--max-queued-bytes=1000000")
    with Bystander(daemon) as bystander:
        before = daemon.peak_rss_bytes()
        size = 16 * MIB if is_timed else 2 * MIB
        seen = answers(daemon, QUESTIONS, lambda _: BODIES[body](size))
        grown = daemon.peak_rss_bytes() - before
        print(seen)
        refused = {path for path, status in seen.items() if status == RESOURCE_EXHAUSTED}
        closed = {path for path, status in seen.items() if status == CLOSED}
        assert closed - {HEALTH_LIST} == {path for path in QUESTIONS if path.startswith(OF_TOOLS)} - {HEALTH_LIST}
        unknown = {path for path, status in seen.items() if status == UNIMPLEMENTED}
        assert all(path.startswith(UNREAD) for path in unknown)
        what = f"{len(seen)} methods asked with {size // MIB} MiB of {body}"
        battery.holds(f"{what}: refused", least=len(seen), seen=len(refused | closed | unknown))
        # The message as it arrives.
        most = size + MALLOC_SLACK
        battery.timed(what, most=most / MIB, seen=grown / MIB, unit="MiB")
        bystander.check()
