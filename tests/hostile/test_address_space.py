# SPDX-License-Identifier: Apache-2.0
"""A daemon that the system gives no more memory, though its account has room: whatever is asked of it is
refused with RESOURCE_EXHAUSTED, and it lives on."""

import concurrent.futures
import re
import resource
import time

import grpc
import pytest
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from small_product import multiply
from tensors import Session, bytes_spec, refusal

MIB = 1 << 20
# What the daemon may take beside what it has when it is ready: room for threads and gRPC's own messages.
ROOM = 512 * MIB
FLAGS = [
    "--lame-duck=1ms",
    "--devices=cpu,sim:sm_90",
    "--max-queued-bytes=64GiB",
    "--tensor-bytes=64GiB",
    "--memory-limit-bytes=256GiB",
    "--memory-quota-bytes=128MiB",
]


def large_result(device, bytes_wanted):
    """A few bytes that ask for a D of so many."""
    request = gemm_pb2.MultiplyRequest(m=1, n=bytes_wanted // 4, k=0, device=device)
    request.a.type = request.b.type = ELEMENTS["f16"].number
    request.accumulation_type = request.d.type = ELEMENTS["f32"].number
    return request


def code_of(call, *arguments):
    try:
        call(*arguments)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.resident_memory
def test_a_daemon_without_more_memory(daemons, battery):
    daemon = daemons.start(*FLAGS)
    multiply(daemon.tcp)
    with open(f"/proc/{daemon.pid}/status") as status:
        size = int(re.search(r"VmSize:\s+(\d+) kB", status.read()).group(1)) << 10
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    options = [("grpc.max_receive_message_length", -1)]
    codes = []
    with grpc.insecure_channel(daemon.tcp, options) as channel, concurrent.futures.ThreadPoolExecutor(16) as pool:
        stub = gemm_pb2_grpc.GemmStub(channel)

        def product(device):
            return code_of(lambda: stub.Multiply(large_result(device, 400 * MIB), timeout=60))

        def stream(device):
            requests = gemm_pb2.MultiplyStreamRequest(requests=[large_result(device, 400 * MIB)] * 4)
            answers = [one for joint in stub.MultiplyStream(iter([requests]), timeout=60) for one in joint.answers]
            assert len(answers) == 4
            return [grpc.StatusCode.RESOURCE_EXHAUSTED for one in answers if one.error.code == 8]

        devices = ["cpu", "sim:sm_90"] * 6
        codes += pool.map(product, devices)
        for refusals in pool.map(stream, devices[:4]):
            codes += refusals
        with Session(channel) as session:
            upload = session.put_stream()
            begun = refusal(upload.begin, bytes_spec(8 << 30))
            codes.append(begun[0])
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
    refused = codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
    battery.holds("products and uploads without memory", least=3, seen=refused, unit="refused")
    begun_s = time.monotonic()
    multiply(daemon.tcp)
    battery.holds("a small product afterwards", most=10, seen=time.monotonic() - begun_s, unit="s")
