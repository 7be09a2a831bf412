# SPDX-License-Identifier: Apache-2.0
"""Messages of megabytes to methods that take no operand: each is refused, and nothing is parsed of
it."""

import pytest
from bystander import Bystander
from gemmd.v1 import admin_pb2, gemm_pb2, registry_pb2, resident_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from http2_peer import Http2Peer, message, varint
from kserve.v2 import inference_pb2

MIB = 1 << 20

RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12

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

# One text, as most of these methods take one; and groups, of which protobuf makes 16 times as much.
BODIES = {
    "a text": lambda size: varint(1 << 3 | 2) + varint(size) + b"x" * size,
    "unknown groups": lambda size: (varint(1000 << 3 | 3) + varint(1000 << 3 | 4)) * (size // 4),
}


def answers(daemon, methods, body):
    """The answers of each method, one after the other."""
    seen = {}
    for path in methods:
        # Operators' calls are local.
        with Http2Peer(daemon.unix) as peer:
            stream = peer.start(path)
            peer.send(stream, message(body), end=True)
            seen[path] = peer.wait(stream).status
    return seen


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
        seen = answers(daemon, QUESTIONS, BODIES[body](size))
        grown = daemon.peak_rss_bytes() - before
        print(seen)
        refused = {path for path, status in seen.items() if status == RESOURCE_EXHAUSTED}
        # KServe's methods that gemmd does not have, and health's of newer versions, do not read
        # their requests.
        unknown = {path for path, status in seen.items() if status == UNIMPLEMENTED}
        assert all(path.startswith(("/inference.", "/grpc.health.v1.Health/List")) for path in unknown)
        what = f"{len(seen)} methods asked with {size // MIB} MiB of {body}"
        battery.holds(f"{what}: refused", least=len(seen), seen=len(refused | unknown))
        # The message as it arrives.
        most = size + MALLOC_SLACK
        battery.timed(what, most=most / MIB, seen=grown / MIB, unit="MiB")
        bystander.check()
