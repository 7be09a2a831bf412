# SPDX-License-Identifier: Apache-2.0
"""Peers that do not read what they are sent, or slowly: what they keep of the daemon's memory is bounded,
and so is for how long."""

import contextlib
import time

import grpc
import pytest
from bystander import Bystander
from daemon import wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2
from http2_peer import (
    MULTIPLY,
    MULTIPLY_STREAM,
    Http2Peer,
    joint_bytes,
    message,
    open_with_closed_windows,
    varint,
)

MIB = 1 << 20

CANCELLED = 1
RESOURCE_EXHAUSTED = 8

# What malloc keeps beside what is asked of it, and what a bystander's requests take.
MALLOC_SLACK = 24 * MIB


def tag(number, wire_type):
    return varint(number << 3 | wire_type)


def field(number, payload):
    return tag(number, 2) + varint(len(payload)) + payload


def zeros_request(count):
    """A few bytes that ask for an answer of so many."""
    zeros = gemm_pb2.MultiplyRequest(m=1, n=count, k=0)
    zeros.a.type = zeros.b.type = zeros.d.type = ELEMENTS["s8"].number
    return zeros.SerializeToString()


def refused_bodies():
    """Each 4 MiB that say nothing of a product, or say it wrongly."""
    data = bytes(4 * MIB)
    good = gemm_pb2.MultiplyRequest(m=1, n=1, k=1)
    good.a.type = good.b.type = ELEMENTS["f32"].number
    wrong = gemm_pb2.MultiplyRequest()
    wrong.CopyFrom(good)
    wrong.a.data = data
    scaled = gemm_pb2.MultiplyRequest()
    scaled.CopyFrom(good)
    scaled.a.scale.values.extend([1.0] * MIB)
    return {
        "too long an operand": wrong.SerializeToString(),
        "too many scales": scaled.SerializeToString(),
        "an unknown field": good.SerializeToString() + field(1000, data),
        "unknown groups": (tag(1000, 3) + tag(1000, 4)) * MIB,
    }


@pytest.mark.resident_memory
@pytest.mark.parametrize(
    "name", ["too long an operand", "too many scales", "an unknown field", "unknown groups"]
)
def test_refused_requests_of_a_peer_that_reads_nothing(daemons, battery, name):
    """The server reads on until 256 answers of a stream wait. It keeps the refusals alone."""
    daemon = daemons.start("--lame-duck=1ms", "--max-queued-bytes=64MiB")
    body = message(joint_bytes(refused_bodies()[name]))
    with Bystander(daemon) as bystander:
        before = daemon.rss_bytes()
        with open_with_closed_windows(daemon.tcp) as peer:
            streams = [peer.start(MULTIPLY_STREAM) for _ in range(2)]
            for _ in range(40):
                for stream in streams:
                    peer.send(stream, body, limit_s=5)
            wait_until(bystander.is_served, 20, "others served")
            kept = daemon.rss_bytes() - before
        # Of each stream, one message that arrives, and one that is parsed, whose values may be there
        # three times while their array grows.
        most = 2 * 4 * len(body) + MALLOC_SLACK
        attack = f"320 MiB of {name}, no answer read"
        battery.holds(attack, most=most / MIB, seen=kept / MIB, unit="MiB kept")
        bystander.check()


@pytest.mark.resident_memory
@pytest.mark.own_device  # A GPU's staging memory is resident, too.
@pytest.mark.parametrize("path", [MULTIPLY, MULTIPLY_STREAM], ids=["unary", "stream"])
def test_answers_that_nobody_reads(daemons, battery, path):
    """Each is there once, and each ends after the send timeout."""
    answer, count = 32 * MIB, 6
    timeout_s = 4
    # Answers of a GPU lie in its staging area, which stays resident.
    flags = ["--devices=cpu", "--max-queued-bytes=200MiB", f"--send-timeout={timeout_s}s"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    usual = daemon.rss_bytes()
    with Bystander(daemon) as bystander:
        # The bystander's probe of the capacity took all of it.
        wait_until(lambda: daemon.rss_bytes() < usual + 32 * MIB, 30, "the probe's memory given back")
        before = daemon.rss_bytes()
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(open_with_closed_windows(daemon.tcp)) for _ in range(2)]
            calls = [(peers[i % 2], peers[i % 2].start(path)) for i in range(count)]
            for peer, stream in calls:
                request = zeros_request(answer)
                body = joint_bytes(request) if path == MULTIPLY_STREAM else request
                peer.send(stream, message(body), end=True)
            wait_until(lambda: daemon.rss_bytes() - before > answer * count * 9 // 10, 20, "held")
            started = time.monotonic()
            time.sleep(1)
            held = daemon.rss_bytes() - before

            def have_ended():
                for peer in peers:
                    peer.receive(0)  # Answers pings, so that the connection stays.
                return all(peer.is_over(stream) for peer, stream in calls)

            wait_until(have_ended, 60, "all calls ended")
            took = time.monotonic() - started
            endings = [peer.answers[stream] for peer, stream in calls]
        assert all(ending.reset is not None or ending.status == CANCELLED for ending in endings)
        name = f"6 {'streamed' if path == MULTIPLY_STREAM else 'unary'} answers of 32 MiB, unread"
        battery.holds(name, most=1.1 * answer * count / MIB, seen=held / MIB, unit="MiB held")
        # The daemon looks each 250 ms; the rest is for a slow machine.
        most = timeout_s + answer / (8 * MIB) + 10
        battery.holds(name, most=most, seen=took, unit="s until they end")
        assert sum(int(e["calls"]) for e in daemon.events("silent_calls_ended")) == count
        bystander.check()


def test_who_reads_slowly_is_served(daemons):
    """The answer takes several send timeouts, but is read at more than the least rate."""
    flags = ["--max-queued-bytes=64MiB", "--send-timeout=1s", "--send-least-rate=512KiB"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start()
        peer.send(stream, message(zeros_request(12 * MIB)), end=True)
        started = time.monotonic()
        while not peer.is_over(stream) and time.monotonic() < started + 60:
            time.sleep(0.05)
            due = (time.monotonic() - started) * 3 * MIB
            while len(peer.answers[stream].data) < due and peer.receive(0.05):
                pass
        assert peer.answers[stream].status == 0
        assert len(peer.answers[stream].data) > 12 * MIB
        assert time.monotonic() - started > 3, "no slow reader"


QUESTIONS = [
    "/gemmd.v1.Registry/ListKernels",
    "/gemmd.v1.Registry/ListInstructions",
    "/gemmd.v1.Registry/DescribeFragment",
    "/gemmd.v1.Registry/Explain",
    "/gemmd.v1.Tensors/List",
    "/inference.GRPCInferenceService/ServerMetadata",
    "/inference.GRPCInferenceService/RepositoryIndex",
]
OPERATORS_QUESTIONS = [
    "/gemmd.v1.Registry/GetStatistics",
    "/gemmd.v1.Registry/GetServerInfo",
    "/gemmd.v1.Registry/ListDevices",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/ModelStatistics",
]


@pytest.mark.resident_memory
@pytest.mark.own_device  # A GPU's staging memory is resident, too.
def test_pressure_on_memory(daemons, battery):
    """Near the limit products and most questions are refused, and who does not read loses the call long before the
    send timeout."""
    limit, answer, count = 400 * MIB, 32 * MIB, 13
    flags = ["--send-timeout=10m", "--max-queued-bytes=2GiB", f"--memory-limit-bytes={limit}"]
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu", *flags)

    def levels():
        return [event["pressure"] for event in daemon.events("memory_pressure")]

    with grpc.insecure_channel(daemon.tcp) as channel, open_with_closed_windows(daemon.tcp) as peer:
        multiply = channel.unary_unary("/gemmd.v1.Gemm/Multiply")
        health = channel.unary_unary("/grpc.health.v1.Health/Check")

        def refused(method, request=b""):
            with pytest.raises(grpc.RpcError) as failure:
                channel.unary_unary(method)(request, timeout=30)
            assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, method
            assert failure.value.details().startswith("memory:"), method
            return failure.value

        multiply(zeros_request(1), timeout=30)
        streams = [peer.start() for _ in range(count)]
        for stream in streams:
            peer.send(stream, message(zeros_request(answer)), end=True)
        wait_until(lambda: "critical" in levels(), 30, "the pressure noticed")
        failure = refused("/gemmd.v1.Gemm/Multiply", zeros_request(1))
        assert "grpc-retry-pushback-ms" in dict(failure.trailing_metadata())
        for method in QUESTIONS:
            refused(method)
        health(b"", timeout=30)
        for method in OPERATORS_QUESTIONS:
            channel.unary_unary(method)(b"", timeout=30)
        started = time.monotonic()
        wait_until(lambda: [peer.receive(0.05)] and any(map(peer.is_over, streams)), 60, "calls ended")
        wait_until(lambda: levels()[-1] != "critical", 30, "the pressure relieved")
        took = time.monotonic() - started
        peer.close()
        wait_until(lambda: levels()[-1] == "none", 60, "the pressure gone")
        multiply(zeros_request(1), timeout=30)
    attack = "unread answers at 95 % of the memory"
    battery.holds(attack, most=40, seen=took, unit="s until it is below")
    assert len(daemon.events("memory_pressure")) <= 8, "a line for each change alone"
