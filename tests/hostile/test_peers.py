# SPDX-License-Identifier: Apache-2.0
"""Peers that send garbage, break off, flood, fall silent or die. After each attack, all of them
limited in count and time, a bystander is served as before and the daemon keeps nothing of it."""

import contextlib
import itertools
import pathlib
import socket
import struct
import subprocess
import sys
import time

import doomed_client
import grpc
import numpy as np
import pytest
from bystander import Bystander
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc
from http2_peer import MULTIPLY, MULTIPLY_STREAM, Http2Peer, message, open_socket
from product import Product, check_bytes
from streams import joint

LIMIT_S = 120
# On a busy machine a bystander's own handshake may take seconds.
GEMMD_FLAGS = ["--max-queued-bytes=32MiB", "--handshake-timeout=60s"]
# For peers that send nothing, or no handshake.
SHORT_HANDSHAKE_S = 2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
OPEN_SESSION = "/gemmd.v1.Tensors/OpenSession"
CANCELLED = 8  # The error code of HTTP/2.


def wait_until_closed(peers):
    """Reads until the other side has closed all of them. Returns the time."""
    began = time.monotonic()
    for peer in peers:
        while True:
            left = began + LIMIT_S - time.monotonic()
            assert left > 0, f"still open after {LIMIT_S} s"
            peer.settimeout(left)
            with contextlib.suppress(TimeoutError):
                try:
                    if not peer.recv(1 << 16):
                        break
                except ConnectionError:
                    break
    return time.monotonic() - began


def send_what_is_taken(peer, data):
    with contextlib.suppress(OSError):  # The daemon may have shut the peer out already.
        peer.sendall(data)


def large_product(size=400):
    """Its operands and its result are each larger than the windows of HTTP/2."""
    return Product(a=np.ones((1, size, size)), b=np.ones((1, size, size)))


def check_served_at(address):
    """A new client's product is right. At first its handshake may come too late."""
    product = large_product(8)
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        answer = gemm_pb2_grpc.GemmStub(channel).Multiply(product.request(), timeout=LIMIT_S, wait_for_ready=True)
        check_bytes(answer.d, product)


def test_garbage_and_silence_are_shut_out(daemons, rng, battery):
    """A hundred silent connections, and some that send garbage. They keep no descriptor."""
    nonsense = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100f5010000f10303") + rng.randbytes(242),  # The start of TLS.
        b"\0" * 4096,
        PREFACE[:-1] + b"x" * 100,
        PREFACE + b"\xff" * 4096,
        PREFACE + SETTINGS + b"\xff" * 4096,
        *(rng.randbytes(rng.randrange(30, 5000)) for _ in range(40)),
        *(PREFACE + rng.randbytes(rng.randrange(30, 5000)) for _ in range(40)),
    ]
    daemon = daemons.start("--lame-duck=1ms", f"--handshake-timeout={SHORT_HANDSHAKE_S}s")
    check_served_at(daemon.tcp)
    open_files = daemon.open_files()
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(open_socket(daemon.tcp, LIMIT_S)) for _ in range(100)]
        silent = len(peers)
        for data in nonsense:
            for address in daemon.addresses:
                peers.append(stack.enter_context(open_socket(address, LIMIT_S)))
                send_what_is_taken(peers[-1], data)
        for address in daemon.addresses:
            check_served_at(address)
        took_s = wait_until_closed(peers)
        wait_until(lambda: daemon.open_files() <= open_files, LIMIT_S, "files closed")
    attack = f"{silent} silent connections and {len(peers) - silent} that say nonsense"
    battery.holds(f"{attack}: descriptors kept", most=open_files, seen=daemon.open_files())
    check_served_at(daemon.tcp)
    battery.timed(f"{attack}: closed", most=SHORT_HANDSHAKE_S + 10, seen=took_s, unit="s")


def test_random_frames(attacked, rng):
    """Frames of every type, well-formed or not: some peers are disconnected for them, some not."""
    for _ in range(100):
        with open_socket(attacked.daemon.tcp) as peer:
            send_what_is_taken(peer, PREFACE + SETTINGS)
            for _ in range(rng.randrange(1, 20)):
                payload = rng.randbytes(rng.choice((0, 1, 4, 5, 8, 64, 1000)))
                frame_type, flags = rng.randrange(12), rng.choice((0, 1, 4, 5, 0x25, 0xFF))
                stream = rng.choice((0, 1, 3, 2, 0x7FFFFFFF))
                length = len(payload) if rng.random() < 0.8 else rng.randrange(1 << 24)
                header = length.to_bytes(3, "big") + bytes((frame_type, flags))
                send_what_is_taken(peer, header + stream.to_bytes(4, "big") + payload)
    attacked.check_served()


@pytest.mark.parametrize("path", [MULTIPLY, MULTIPLY_STREAM])
def test_half_sent_messages(attacked, path):
    """A quarter of a message of 4 MB; then the connection is dropped, at once or after others were
    served, or the streams are reset or closed."""
    part = message(bytes(1 << 20), declared=4 << 20)
    for turn in range(12):
        with Http2Peer(attacked.daemon.addresses[turn % 2]) as peer:
            streams = [peer.start(path) for _ in range(4)]
            for stream in streams:
                assert peer.send(stream, part, limit_s=LIMIT_S) == len(part)
            if turn % 4 == 1:
                for stream in streams:
                    peer.reset(stream)
            elif turn % 4 == 2:
                for stream in streams:
                    peer.end(stream)
                for stream in streams:
                    assert peer.wait(stream, LIMIT_S).status in ((3,) if path == MULTIPLY else (0,))
            elif turn % 4 == 3:
                attacked.check_served()


def test_half_sent_messages_end_at_their_deadline(attacked, battery):
    with Http2Peer(attacked.daemon.tcp) as peer:
        streams = [peer.start(headers=[("grpc-timeout", "300m")]) for _ in range(20)]
        for stream in streams:
            peer.send(stream, message(bytes(1000), declared=4 << 20))
        began = time.monotonic()
        for stream in streams:
            answer = peer.wait(stream, LIMIT_S)
            assert answer.reset is not None or answer.status in (1, 4), answer.headers
        took = time.monotonic() - began
    battery.timed("half-sent messages with 300 ms: ended", most=10, seen=took, unit="s")


def test_strange_requests(attacked):
    """Unusual but well-formed HTTP/2: each is answered, on a connection that stays open."""
    good = message(large_product(8).request().SerializeToString())
    with Http2Peer(attacked.daemon.tcp) as peer:

        def answer(data, **keywords):
            stream = peer.start(**keywords)
            if data:
                peer.send(stream, data, end=True)
            else:
                peer.end(stream)
            return peer.wait(stream, LIMIT_S)

        def status(data, **keywords):
            return answer(data, **keywords).status

        unreadable = (3,)  # INVALID_ARGUMENT, from the daemon itself.
        assert status(good) == 0
        assert status(good, path="gemmd.v1.Gemm/Multiply") == 12
        assert status(good, path="/gemmd.v1.Gemm/Nothing") == 12
        assert status(good, path="/") == 12
        assert status(b"") in unreadable
        assert status(b"\0\0") in unreadable
        assert status(message(b"x" * 10, declared=5000)) in unreadable
        assert status(message(b"", flags=7)) in unreadable
        assert status(message(b"")) == 3
        assert status(good + good) in (0, *unreadable)
        # Later releases of gRPC reset such a stream.
        odd = answer(good, headers=[("grpc-timeout", "nonsense")])
        assert odd.status in (0, 3, 13) or odd.status is None and odd.reset is not None
        assert status(good, headers=[("x-many", "y" * 1000)] * 4) == 0
        assert not peer.closed


def test_peers_cannot_write_into_the_log(daemons, battery):
    """Header values of which gRPC complains, with a line of a log in them."""
    daemon = daemons.start("--lame-duck=1ms")
    forged = "x\ntime=now level=info event=forged"
    with Http2Peer(daemon.tcp) as peer:
        for name in ("grpc-timeout", "grpc-encoding", "grpc-status"):
            for value in (forged, forged + 5000 * "\t"):
                stream = peer.start(headers=[(name, value)])
                peer.end(stream)
                peer.wait(stream, LIMIT_S)
    daemon.stop()
    assert "forged" not in {line["event"] for line in daemon.log()}
    complaints = daemon.events("grpc")
    assert {line["level"] for line in complaints} == {"warning"}
    told = [line["message"] for line in complaints if "time=now" in line["message"]]
    assert all(r"x\ntime=now" in message for message in told)
    assert told or daemon.grpc_version() >= (1, 65), "later releases of gRPC do not tell such values"
    longest = max(len(line["message"]) for line in complaints)
    battery.holds("headers that gRPC complains of: a line of the log", most=4999, seen=longest, unit="characters")


def test_deadlines_beyond_the_clocks_range(daemons, battery):
    """Centuries away, where 64-bit nanoseconds overflow: the same as no deadline."""
    good = message(large_product(8).request().SerializeToString())
    daemon = daemons.start("--lame-duck=1ms")
    statuses = {}
    with Http2Peer(daemon.tcp) as peer:
        for hours in (2_000_000, 2_600_000, 5_000_000, 99_999_999):
            stream = peer.start(headers=[("grpc-timeout", f"{hours}H")])
            peer.send(stream, good, end=True)
            statuses[hours] = peer.wait(stream, LIMIT_S).status
    print(statuses)
    served = list(statuses.values()).count(0)
    battery.holds("deadlines beyond the clock's range: served", least=len(statuses), seen=served)


def test_killed_clients(attacked, tmp_path, battery):
    """Clients killed at every stage of a call, seven at a time."""
    rounds = 40 if battery.is_long else 12
    request_file = tmp_path / "request"
    request_file.write_bytes(large_product().request().SerializeToString())
    script = pathlib.Path(doomed_client.__file__)
    for address in attacked.daemon.addresses:
        done = subprocess.run(
            [sys.executable, "-B", script, address, request_file, str(rounds // 2)],
            stdout=subprocess.PIPE,
            timeout=600,
            check=True,
        )
        stages = rounds // 2 * len(doomed_client.STAGES)
        battery.holds("clients killed at every stage of a call", least=stages, seen=int(done.stdout))


def test_cancel_storm(attacked, channel, rng, battery):
    """Cancelled before, while and after they run; each gets one of the proper statuses."""
    stub = gemm_pb2_grpc.GemmStub(channel)
    request = large_product(200).request()
    honest = {
        grpc.StatusCode.OK,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # The queue is full of those before.
    }
    seen = set()
    for _ in range(20):
        calls = [stub.Multiply.future(request, timeout=LIMIT_S) for _ in range(50)]
        rng.shuffle(calls)
        for call in calls[:10]:
            call.cancel()
        seen.add(calls[10].code())  # Waits for it.
        for call in calls[11:]:
            call.cancel()
        seen |= {call.code() for call in calls}
    assert seen <= honest, seen
    battery.holds("1000 calls cancelled at any time: kinds of ends", most=len(honest), seen=len(seen))
    assert seen >= {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}
    streams = [
        stub.MultiplyStream(joint(itertools.repeat(request, 80)), timeout=LIMIT_S) for _ in range(20)
    ]
    for stream in streams:
        next(stream)
        stream.cancel()


def test_rapid_resets(attacked, battery):
    """Calls reset as soon as they are made, hundreds on each of two connections. (More than a
    client should be able to do to gRPC 1.51, which does not limit them, see CVE-2023-44487.)"""
    body = message(large_product(8).request().SerializeToString())
    for _ in range(2):
        with Http2Peer(attacked.daemon.tcp) as peer:
            for _ in range(2000 if battery.is_long else 500):
                if peer.closed:
                    break
                stream = peer.start()
                peer.send(stream, body)
                peer.reset(stream)


def test_slow_readers(attacked):
    """Unread answers: the daemon waits for their readers and serves others meanwhile."""
    body = message(large_product().request().SerializeToString())
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Http2Peer(attacked.daemon.tcp)) for _ in range(10)]
        for peer in peers:
            for _ in range(3):
                peer.send(peer.start(), body, end=True)
        attacked.check_served()


def test_connection_flood(daemons, battery):
    """Ten times as many connections as the soft limit of open files, which the daemon raises. They
    come from two hosts, since one may have half of all."""
    soft, hard = 64, 1024
    room = f"--max-connections={hard - 32}"
    daemon = daemons.start(*GEMMD_FLAGS, room, "--lame-duck=1ms", open_files=(soft, hard))
    assert daemon.open_file_limits() == (hard, hard)
    assert daemon.awaited_events("start")[0]["open_files"] == str(hard)
    with Bystander(daemon) as bystander:
        for _ in range(2):
            with contextlib.ExitStack() as stack:
                hosts = ["127.0.0.2", "127.0.0.3"] * (5 * soft)
                peers = [stack.enter_context(open_socket(daemon.tcp, own_host=host)) for host in hosts]
                for peer in peers[::2]:
                    send_what_is_taken(peer, PREFACE + SETTINGS)
                wait_until(lambda: daemon.open_files() > 5 * soft, LIMIT_S, "half of them accepted")
                seen = daemon.open_files()
                battery.holds("a flood of 640 connections: descriptors, half accepted", least=5 * soft, seen=seen)
                bystander.check_served()
            bystander.check()


def test_sessions_whose_connection_breaks_at_once(attacked):
    """The token cannot be written, and then the call is cancelled, or vice versa."""
    for turn in range(300):
        with Http2Peer(attacked.daemon.tcp) as peer:
            stream = peer.start(OPEN_SESSION)
            peer.send(stream, message(b""), end=True)
            if turn % 3 == 1:
                peer.reset(stream)
            elif turn % 3 == 2:
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
