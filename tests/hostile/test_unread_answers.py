# SPDX-License-Identifier: Apache-2.0
"""Peers that do not read what they are sent, or slowly: what they keep of the daemon's memory is bounded,
and so is for how long."""

import contextlib
import time

import certificates
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
    """Each is there once, and each ends after the send timeout, whatever its length."""
    answer, count = 32 * MIB, 6
    timeout_s = 3
    # Answers of a GPU lie in its staging area, which stays resident.
    flags = ["--devices=cpu", "--max-queued-bytes=200MiB", f"--send-timeout={timeout_s}s"]
    flags.append("--send-least-rate=1MiB")
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
        # The daemon looks each 250 ms; the rest is for a slow machine. With the timeout's default, or the time
        # that the bytes would take beside it, nothing ends so soon.
        battery.holds(name, most=timeout_s + 5, seen=took, unit="s until they end")

        def told():
            return sum(int(event["calls"]) for event in daemon.events("silent_calls_ended"))

        # The log tells of a call once it has ended.
        wait_until(lambda: told() >= count, 10, "the calls told in the log")
        assert told() == count
        bystander.check()


def test_an_answer_that_nobody_reads_over_tls(daemons, battery, tmp_path):
    """What the peer has taken is told of these connections too: the call ends long before the time that its bytes
    have at the least rate."""
    timeout_s = 2
    world = certificates.World(tmp_path)
    flags = ["--devices=cpu", f"--send-timeout={timeout_s}s", "--send-least-rate=64KiB", *world.flags]
    daemon = daemons.start("--lame-duck=1ms", *flags, listen="tls:127.0.0.1:0")
    [address] = daemon.addresses
    credentials = grpc.ssl_channel_credentials(world.authority.cert_pem)
    with grpc.secure_channel(address.removeprefix("tls:"), credentials) as channel:
        request = gemm_pb2.MultiplyStreamRequest()
        request.requests.append(gemm_pb2.MultiplyRequest.FromString(zeros_request(32 * MIB)))
        began = time.monotonic()
        # Where no message is asked for, gRPC reads no more than its window lets through.
        call = channel.stream_stream(MULTIPLY_STREAM)(iter([request.SerializeToString()]), timeout=120)
        wait_until(lambda: daemon.events("silent_calls_ended"), 60, "the call ended")
        took = time.monotonic() - began
        call.cancel()
    battery.holds("an answer of 32 MiB over TLS, unread", most=timeout_s + 8, seen=took, unit="s until it ends")


def read_at(peer, stream, bytes_per_s, is_over, limit_s=60):
    """Reads an answer no faster until that; how long it took."""
    started = time.monotonic()
    while not is_over():
        assert time.monotonic() < started + limit_s, "not over in time"
        time.sleep(0.05)
        due = (time.monotonic() - started) * bytes_per_s
        while len(peer.answers[stream].data) < due and peer.receive(0.05):
            pass
    return time.monotonic() - started


def test_who_reads_slowly_is_served(daemons, battery):
    """The answer takes several send timeouts, but is read at more than the least rate."""
    flags = ["--max-queued-bytes=64MiB", "--send-timeout=1s", "--send-least-rate=512KiB"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start()
        peer.send(stream, message(zeros_request(12 * MIB)), end=True)
        took = read_at(peer, stream, 3 * MIB, lambda: peer.is_over(stream))
        assert peer.answers[stream].status == 0
        assert len(peer.answers[stream].data) > 12 * MIB
    battery.holds("12 MiB read for several send timeouts: served", least=3, seen=took, unit="s")


@pytest.mark.parametrize("listener", ["tcp", "unix"])
def test_who_reads_too_slowly_loses_the_call(daemons, battery, listener):
    """Always something, but less than the least rate: the call has the time of its bytes and the send timeout, where
    the system tells what is read, as over TCP, and where it does not, as over unix sockets."""
    flags = ["--max-queued-bytes=64MiB", "--send-timeout=1s", "--send-least-rate=4MiB"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with Http2Peer(getattr(daemon, listener)) as peer:
        stream = peer.start()
        peer.send(stream, message(zeros_request(16 * MIB)), end=True)
        took = read_at(peer, stream, MIB, lambda: daemon.events("silent_calls_ended"))
        assert peer.answers[stream].status in (None, CANCELLED)
    name = f"16 MiB read at a quarter of the least rate over {listener}"
    battery.holds(name, least=4, seen=took, unit="s until it ends")
    # To read all would take 16 s. The daemon looks each 250 ms; the rest is for a slow machine.
    battery.holds(name, most=10, seen=took, unit="s until it ends")


def test_an_answer_that_nobody_reads_over_a_unix_socket(daemons, battery):
    """Nothing tells that nothing is read, so it has the time of its bytes, too."""
    flags = ["--max-queued-bytes=64MiB", "--send-timeout=1s", "--send-least-rate=8MiB"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with open_with_closed_windows(daemon.unix) as peer:
        stream = peer.start()
        peer.send(stream, message(zeros_request(32 * MIB)), end=True)
        took = read_at(peer, stream, MIB, lambda: peer.is_over(stream))
        assert peer.answers[stream].reset is not None or peer.answers[stream].status == CANCELLED
    battery.holds("32 MiB over a unix socket, unread", most=10, seen=took, unit="s until it ends")
