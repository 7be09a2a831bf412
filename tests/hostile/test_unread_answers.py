# SPDX-License-Identifier: Apache-2.0
"""Peers that do not read their answers, or read them slowly: the memory that they occupy is
limited, and so is the time."""

import contextlib
import time

import certificates
import grpc
import metrics_page
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

# The memory that malloc keeps in addition, and that of a bystander's requests.
MALLOC_SLACK = 24 * MIB


def tag(number, wire_type):
    return varint(number << 3 | wire_type)


def field(number, payload):
    return tag(number, 2) + varint(len(payload)) + payload


def zeros_request(count):
    """A few bytes that ask for an answer of this size."""
    zeros = gemm_pb2.MultiplyRequest(m=1, n=count, k=0)
    zeros.a.type = zeros.b.type = zeros.d.type = ELEMENTS["s8"].number
    return zeros.SerializeToString()


def refused_bodies(size):
    """Each has this many MiB with no product, or with an invalid one."""
    data = bytes(size * MIB)
    good = gemm_pb2.MultiplyRequest(m=1, n=1, k=1)
    good.a.type = good.b.type = ELEMENTS["f32"].number
    wrong = gemm_pb2.MultiplyRequest()
    wrong.CopyFrom(good)
    wrong.a.data = data
    scaled = gemm_pb2.MultiplyRequest()
    scaled.CopyFrom(good)
    scaled.a.scale.values.extend([1.0] * (size * MIB // 4))
    return {
        "too long an operand": wrong.SerializeToString(),
        "too many scales": scaled.SerializeToString(),
        "an unknown field": good.SerializeToString() + field(1000, data),
        "unknown groups": (tag(1000, 3) + tag(1000, 4)) * (size * MIB // 4),
    }


def admitted_bytes(daemon):
    """Of products whose answer has not left."""
    return metrics_page.scrape(daemon).value("gemmd_admitted_bytes")


def refused_requests(daemon):
    """The invalid ones."""
    return metrics_page.scrape(daemon).value("gemmd_refusals_total", reason="invalid")


def silent_calls(daemon):
    """Calls that were ended because nobody read their answers, from the log, which reports them
    once they have ended."""
    return sum(int(event["calls"]) for event in daemon.events("silent_calls_ended"))


@pytest.mark.parametrize(
    "name", ["too long an operand", "too many scales", "an unknown field", "unknown groups"]
)
def test_refused_requests_of_a_peer_that_reads_nothing(daemons, battery, is_timed, name):
    """The server continues to read until 256 answers of a stream wait. It keeps only the
    refusals."""
    size, count = (4, 80) if is_timed else (1, 20)
    daemon = daemons.start(
        "--lame-duck=1ms", "--devices=cpu", f"--max-queued-bytes={16 * size}MiB", "--send-timeout=1h"
    )
    body = message(joint_bytes(refused_bodies(size)[name]))
    with Bystander(daemon) as bystander:
        before = daemon.rss_bytes()
        with open_with_closed_windows(daemon.tcp) as peer:
            streams = [peer.start(MULTIPLY_STREAM) for _ in range(2)]
            for _ in range(count // 2):
                for stream in streams:
                    assert peer.send(stream, body, limit_s=60) == len(body)
            wait_until(bystander.is_served, 60, "others served")
            # Only then do no more of them arrive.
            wait_until(lambda: refused_requests(daemon) == count, 60, "all refused")
            wait_until(lambda: admitted_bytes(daemon) == 0, 60, "no message counts")
            assert not any(map(peer.is_over, streams))
            kept = daemon.rss_bytes() - before
        attack = f"{size * count} MiB of {name}, no answer read"
        battery.holds(attack, most=0, seen=admitted_bytes(daemon), unit="bytes admitted")
        # Per stream, one message that arrives and one that is being parsed, whose values may exist
        # three times while their array grows.
        most = 2 * 4 * len(body) + MALLOC_SLACK
        battery.timed(attack, most=most / MIB, seen=kept / MIB, unit="MiB kept")
        bystander.check()


def send_zeros(stack, daemon, path, answer, count):
    """Asks for `count` answers of `answer` bytes on connections of two hosts, because one may have
    half of the room. Returns the calls."""
    hosts = ("127.0.0.2", "127.0.0.3")
    peers = [stack.enter_context(open_with_closed_windows(daemon.tcp, host)) for host in hosts]
    calls = [(peers[i % 2], peers[i % 2].start(path)) for i in range(count)]
    for peer, stream in calls:
        request = zeros_request(answer)
        peer.send(stream, message(joint_bytes(request) if path == MULTIPLY_STREAM else request), end=True)
    return calls


def answer_bytes(is_timed):
    """Large if resident memory is measured. The bystander takes as much as six of them at a
    time."""
    return (32 if is_timed else 4) * MIB


def room_for_six(answer):
    """The smallest room in which one connection of each of two hosts may hold three answers."""
    return answer * 55 // 8


UNREAD = {MULTIPLY: "unary", MULTIPLY_STREAM: "streamed"}


@pytest.mark.own_device  # A GPU's staging memory is resident, too.
@pytest.mark.parametrize("path", UNREAD, ids=["unary", "stream"])
def test_answers_that_nobody_reads_are_there_once(daemons, battery, is_timed, path):
    answer, count = answer_bytes(is_timed), 6
    # Answers of a GPU are in its staging area, which stays resident.
    flags = ["--devices=cpu", f"--max-queued-bytes={room_for_six(answer)}", "--send-timeout=1h"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    # The answers of `cpu` are in memory that the daemon shares with its worker, which wrote them.
    usual = daemon.memory_bytes()
    with Bystander(daemon) as bystander:
        if is_timed:
            # The bystander's probe of the capacity took all of it.
            wait_until(lambda: daemon.memory_bytes() < usual + 32 * MIB, 60, "the probe's memory given back")
        before = daemon.memory_bytes()
        with contextlib.ExitStack() as stack:
            send_zeros(stack, daemon, path, answer, count)
            wait_until(lambda: admitted_bytes(daemon) >= answer * count, 60, "held")
            attack = f"6 {UNREAD[path]} answers of {answer // MIB} MiB, unread"
            admitted = admitted_bytes(daemon) / MIB
            battery.holds(attack, most=1.1 * answer * count / MIB, seen=admitted, unit="MiB admitted")
            if is_timed:
                wait_until(lambda: daemon.memory_bytes() - before > answer * count * 9 // 10, 60, "resident")
                time.sleep(1)
                held = daemon.memory_bytes() - before
                battery.timed(attack, most=1.1 * answer * count / MIB, seen=held / MIB, unit="MiB held")
        bystander.check()


@pytest.mark.own_device
@pytest.mark.parametrize("path", UNREAD, ids=["unary", "stream"])
def test_answers_of_one_peer_leave_room_for_others(daemons, battery, path):
    """They hold half of the room, on however many connections; the others are refused at once."""
    answer, count = 4 * MIB, 8
    flags = ["--devices=cpu", f"--max-queued-bytes={count * answer}", "--send-timeout=1h"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with contextlib.ExitStack() as stack:
        request = zeros_request(answer)
        body = message(joint_bytes(request) if path == MULTIPLY_STREAM else request)
        for _ in range(count):
            peer = stack.enter_context(open_with_closed_windows(daemon.tcp, "127.0.0.2"))
            peer.send(peer.start(path), body, end=True)
        wait_until(lambda: share_refusals(daemon) >= count // 2, 60, "those beyond are refused")
        wait_until(lambda: admitted_bytes(daemon) >= answer * (count // 2), 60, "held")
        attack = f"{count} {UNREAD[path]} answers of an eighth of the room for one peer, unread"
        battery.holds(attack, most=0.51 * count, seen=admitted_bytes(daemon) / answer, unit="eighths held")
        battery.holds(attack, most=count // 2, seen=share_refusals(daemon), unit="refused")
        with Http2Peer(daemon.tcp) as other:
            stream = other.start()
            other.send(stream, message(zeros_request(answer * (count // 2 - 1))), end=True)
            ending = other.wait(stream)
        assert ending.status == 0, ending.headers
        battery.holds(attack, least=answer * (count // 2 - 1), seen=len(ending.data), unit="bytes for another")


def share_refusals(daemon):
    return metrics_page.scrape(daemon).value("gemmd_refusals_total", reason="share")


@pytest.mark.own_device
@pytest.mark.parametrize("path", UNREAD, ids=["unary", "stream"])
def test_answers_that_nobody_reads_end(daemons, battery, is_timed, path):
    """Each ends after the send timeout, whatever its length."""
    answer, count = answer_bytes(is_timed), 6
    timeout_s = 1
    flags = ["--devices=cpu", f"--max-queued-bytes={room_for_six(answer)}", f"--send-timeout={timeout_s}s:4KiB"]
    # The minimum rate would give each of them hours.
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with Bystander(daemon) as bystander:
        with contextlib.ExitStack() as stack:
            calls = send_zeros(stack, daemon, path, answer, count)
            started = time.monotonic()

            def have_ended():
                for peer, _ in calls:
                    peer.receive(0)  # Answers pings, so that the connection stays open.
                return all(peer.is_over(stream) for peer, stream in calls)

            wait_until(have_ended, 120, "all calls ended")
            took = time.monotonic() - started
            endings = [peer.answers[stream] for peer, stream in calls]
        assert all(ending.reset is not None or ending.status == CANCELLED for ending in endings)
        name = f"6 {UNREAD[path]} answers of {answer // MIB} MiB, unread"
        # The daemon checks each 250 ms; the rest is for a slow machine.
        battery.timed(name, most=timeout_s + 5, seen=took, unit="s until they end")
        wait_until(lambda: silent_calls(daemon) >= count, 60, "the calls told in the log")
        battery.holds(name, most=count, seen=silent_calls(daemon), unit="calls ended")
        bystander.check()


def test_an_answer_that_nobody_reads_over_tls(daemons, battery, tmp_path):
    """The peer's acknowledged bytes are known for these connections, too: the call ends long before
    the time that its bytes have at the minimum rate."""
    timeout_s = 1
    world = certificates.World(tmp_path)
    flags = ["--devices=cpu", f"--send-timeout={timeout_s}s:4KiB", *world.flags]
    daemon = daemons.start("--lame-duck=1ms", *flags, listen="tls:127.0.0.1:0")
    [address] = daemon.addresses
    credentials = grpc.ssl_channel_credentials(world.authority.cert_pem)
    with grpc.secure_channel(address.removeprefix("tls:"), credentials) as channel:
        request = gemm_pb2.MultiplyStreamRequest()
        request.requests.append(gemm_pb2.MultiplyRequest.FromString(zeros_request(32 * MIB)))
        began = time.monotonic()
        # If no message is requested, gRPC reads no more than fits into its window.
        call = channel.stream_stream(MULTIPLY_STREAM)(iter([request.SerializeToString()]), timeout=600)
        wait_until(lambda: silent_calls(daemon), 120, "the call ended")
        took = time.monotonic() - began
        call.cancel()
    attack = "an answer of 32 MiB over TLS, unread"
    battery.holds(attack, least=1, seen=silent_calls(daemon), unit="calls ended")
    battery.timed(attack, most=timeout_s + 8, seen=took, unit="s until it ends")


def read_at(peer, stream, bytes_per_s, is_over, limit_s=120):
    """Reads an answer at this rate until `is_over`. Returns how long it took."""
    started = time.monotonic()
    while not is_over():
        assert time.monotonic() < started + limit_s, "not over in time"
        time.sleep(0.05)
        due = (time.monotonic() - started) * bytes_per_s
        while len(peer.answers[stream].data) < due and peer.receive(0.05):
            pass
    return time.monotonic() - started


@pytest.mark.timed
def test_who_reads_slowly_is_served(daemons, battery):
    """The answer takes several send timeouts, but is read faster than the minimum rate. A reader
    that pauses for one of them, as on a busy machine, loses the call; SendWatchTest has the same
    with its own clock."""
    flags = ["--devices=cpu", "--max-queued-bytes=64MiB", "--send-timeout=1s:512KiB"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start()
        peer.send(stream, message(zeros_request(12 * MIB)), end=True)
        took = read_at(peer, stream, 3 * MIB, lambda: peer.is_over(stream))
        assert peer.answers[stream].status == 0
        assert len(peer.answers[stream].data) > 12 * MIB
    battery.timed("12 MiB read for several send timeouts: served", least=3, seen=took, unit="s")


@pytest.mark.parametrize("listener", ["tcp", "unix"])
def test_who_reads_too_slowly_loses_the_call(daemons, battery, listener):
    """Always reads something, but more slowly than the minimum rate: the call has the time of its
    bytes plus the send timeout, both over TCP, where acknowledged bytes are known, and over unix
    sockets, where they are not."""
    flags = ["--devices=cpu", "--max-queued-bytes=64MiB", "--send-timeout=1s:8MiB"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with Http2Peer(getattr(daemon, listener)) as peer:
        stream = peer.start()
        peer.send(stream, message(zeros_request(16 * MIB)), end=True)
        # Reading everything would take a minute; the daemon waits for 3 s.
        took = read_at(peer, stream, MIB // 4, lambda: silent_calls(daemon))
        assert peer.answers[stream].status in (None, CANCELLED)
        assert len(peer.answers[stream].data) < 16 * MIB
    name = f"16 MiB read at a thirty-second of the least rate over {listener}"
    battery.holds(name, least=1, seen=silent_calls(daemon), unit="calls ended")
    battery.timed(name, least=2, seen=took, unit="s until it ends")
    # The daemon checks each 250 ms; the rest is for a slow machine.
    battery.timed(name, most=8, seen=took, unit="s until it ends")


def test_an_answer_that_nobody_reads_over_a_unix_socket(daemons, battery):
    """Nothing shows that the peer reads nothing, so the call also has the time of its bytes."""
    flags = ["--devices=cpu", "--max-queued-bytes=64MiB", "--send-timeout=1s:16MiB"]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with open_with_closed_windows(daemon.unix) as peer:
        stream = peer.start()
        peer.send(stream, message(zeros_request(32 * MIB)), end=True)
        took = read_at(peer, stream, MIB, lambda: peer.is_over(stream))
        assert peer.answers[stream].reset is not None or peer.answers[stream].status == CANCELLED
    attack = "32 MiB over a unix socket, unread"
    wait_until(lambda: silent_calls(daemon), 60, "the call told in the log")
    battery.holds(attack, least=1, seen=silent_calls(daemon), unit="calls ended")
    battery.timed(attack, most=8, seen=took, unit="s until it ends")
