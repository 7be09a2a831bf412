# SPDX-License-Identifier: Apache-2.0
"""Peers whose frames cost more than they bring: messages a byte at a time, headers without end, halves of messages
that are held, answers that are asked for and not read. gRPC bounds none of these; the daemon closes the connection."""

import contextlib
import ssl
import time

import certificates
import hpack
import metrics_page
import pytest
from bystander import Bystander
from callers import Trust, bearer
from daemon import PATIENCE_S, last_value, wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2
from http2_peer import MULTIPLY, MULTIPLY_STREAM, Http2Peer, joint_bytes, message
from named_calls import QUESTIONS_OF_PEER
from raw_peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    RawPeer,
    frame,
    word,
)

MIB = 1 << 20
HEALTH = "/grpc.health.v1.Health/Check"
SERVER_LIVE = "/inference.GRPCInferenceService/ServerLive"

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
LIST_KERNELS = "/gemmd.v1.Registry/ListKernels"
# What a message to one of these may declare.
OF_TOOLS = {HEALTH: 64 << 10, SERVER_LIVE: 64 << 10, REFLECTION: 64 << 10}
STREAMS = 100  # That a connection may have open.

MAX_SPARE_FRAMES = 4096  # FrameMeter's.
FREE_BYTES = 4096  # QuestionBytes'.
RESOURCE_EXHAUSTED = 8
FLAGS = ["--lame-duck=1ms", "--devices=cpu"]


def closed(daemon, reason):
    return metrics_page.scrape(daemon).value("gemmd_connections_closed_total", reason=reason)


def reasons(daemon):
    return {event["why"] for event in daemon.awaited_events("connection_closed")}


def send_tiny(peer, stream, payload, limit_s=PATIENCE_S):
    """Sends the payload a byte a frame until the connection is closed; how many frames that were."""
    sent = 0
    deadline = time.monotonic() + limit_s
    while sent < len(payload) and not peer.is_over(stream) and time.monotonic() < deadline:
        count = min(peer.connection.local_flow_control_window(stream), 1024, len(payload) - sent)
        for i in range(max(count, 0)):
            peer.connection.send_data(stream, payload[sent + i : sent + i + 1])
        sent += max(count, 0)
        peer.flush()
        peer.receive(0 if count > 0 else 0.05)
    return sent


def wait_closed(peers):
    """By the daemon, which resets connections of which it has not read all."""

    def are_closed():
        for peer in peers:
            if not peer.closed:
                peer.receive(0)
        return all(peer.closed for peer in peers)

    wait_until(are_closed, PATIENCE_S, "the connections closed")


class Listener:
    """One of a daemon's, and peers of it."""

    def __init__(self, daemons, kind, folder, *flags):
        self.kind = kind
        self._tls = None
        if kind == "tls":
            world = certificates.World(folder)
            flags = [*flags, *world.flags]
            self._tls = ssl.create_default_context(cadata=world.authority.cert_pem.decode())
            self._tls.check_hostname = False
            self._tls.set_alpn_protocols(["h2"])
        listen = {"listen": "127.0.0.1:0,tls:127.0.0.1:0"} if kind == "tls" else {}
        self.daemon = daemons.start(*FLAGS, *flags, **listen)
        self._address = self.daemon.unix if kind == "unix" else self.daemon.tcp
        if kind == "tls":
            [address] = [a for a in self.daemon.addresses if a.startswith("tls:")]
            self._address = address.removeprefix("tls:")

    def peer(self):
        return Http2Peer(self._address, self._tls)

    def raw_peer(self):
        return RawPeer(self._address, self._tls)


@pytest.fixture(params=["tcp", "unix", "tls"])
def listener(request, daemons, tmp_path):
    return Listener(daemons, request.param, tmp_path, "--max-queued-bytes=1000000")


@pytest.mark.resident_memory
@pytest.mark.parametrize("path", [MULTIPLY, MULTIPLY_STREAM, HEALTH, SERVER_LIVE])
def test_a_message_in_frames_of_a_byte(listener, battery, path):
    daemon = listener.daemon
    with Bystander(daemon) as bystander:
        before = daemon.forget_peak()
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(listener.peer()) for _ in range(4)]
            # The daemon reads no further than that; more may be on their way.
            for peer in peers:
                declared = OF_TOOLS.get(path, 400 * MIB)
                send_tiny(peer, peer.start(path), message(bytes(60_000), declared=declared))
            wait_closed(peers)
        attack = f"a message of {path.rsplit('/')[-1]} in frames of a byte over {listener.kind}"
        wait_until(lambda: closed(daemon, "frames") == len(peers), PATIENCE_S, "all closed")
        battery.holds(attack, least=len(peers), seen=closed(daemon, "frames"), unit="connections closed")
        assert reasons(daemon) == {"tiny frames"}
        grown = daemon.peak_rss_bytes() - before
        battery.timed(attack, most=8, seen=grown / MIB, unit="MiB at the peak")
        bystander.check()


def test_without_a_token(daemons, battery, tmp_path):
    """What anybody may call costs no more than what only callers may."""
    trust = Trust(tmp_path)
    trust.write({"alice": {"may": ["registry"]}}, tokens=[])
    daemon = daemons.start("--devices=cpu", *trust.flags)
    for path in (HEALTH, SERVER_LIVE):
        with Http2Peer(daemon.tcp) as peer:
            send_tiny(peer, peer.start(path), message(bytes(60_000), declared=OF_TOOLS[path]))
            wait_closed([peer])
    battery.holds(
        "frames of a byte without a token", least=2, seen=closed(daemon, "frames"), unit="connections closed"
    )


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_a_long_question(daemons, battery, tmp_path, kind, path=LIST_KERNELS):
    """A message of a method without operands is refused once it is there; until then it holds no more than the
    part of a peer."""
    listener = Listener(daemons, kind, tmp_path)
    with listener.peer() as peer:
        stream = peer.start(path)
        sent = peer.send(stream, message(bytes(QUESTIONS_OF_PEER + 16 * MIB), declared=400 * MIB))
        wait_closed([peer])
    attack = f"a question of 400 MiB to {path.rsplit('/')[-1]} over {kind}"
    wait_until(lambda: closed(listener.daemon, "frames") == 1, PATIENCE_S, "closed")
    battery.holds(attack, least=1, seen=closed(listener.daemon, "frames"), unit="connections closed")
    # Some of it is still in the buffers of the sockets.
    battery.holds(attack, most=QUESTIONS_OF_PEER / MIB + 12, seen=sent / MIB, unit="MiB sent")
    assert reasons(listener.daemon) == {"long questions"}


@pytest.mark.parametrize("path", OF_TOOLS)
def test_a_question_that_is_too_long_for_a_tool(listener, battery, path):
    """Its head alone ends the connection, so nothing of it is gathered. The longest that may be sent is answered, or
    refused with a status."""
    longest = OF_TOOLS[path]
    with Bystander(listener.daemon) as bystander:
        with listener.peer() as honest, listener.peer() as peer:
            stream = honest.start(path)
            honest.send(stream, message(bytes(longest)), end=True)
            answered = honest.wait(stream).status
            head = message(b"", declared=longest + 1)
            sent = peer.send(peer.start(path), head)
            wait_closed([peer])
            assert not honest.closed
        attack = f"a message of {longest + 1} bytes to {path.rsplit('/')[-1]} over {listener.kind}"
        battery.holds(attack, most=len(head), seen=sent, unit="bytes until its connection is closed")
        assert answered is not None
        wait_until(lambda: closed(listener.daemon, "frames") == 1, PATIENCE_S, "closed")
        assert reasons(listener.daemon) == {"long questions"}
        bystander.check()


def hold_health(stack, daemon, host, size):
    """Connections of the host with unfinished questions of so many bytes in all, each as long as any may be; less
    where one is closed."""
    peers = []
    while size > 0:
        peers.append(stack.enter_context(Http2Peer(daemon.tcp, own_host=host)))
        for _ in range(STREAMS):
            half = message(bytes(OF_TOOLS[HEALTH] - 1), declared=OF_TOOLS[HEALTH])
            size -= peers[-1].send(peers[-1].start(HEALTH), half) - FREE_BYTES
            if peers[-1].closed:
                return peers
            if size <= 0:
                break
    return peers


def test_long_questions_of_who_shows_no_right(daemons, battery, tmp_path):
    """Health answers everybody, and what arrives for it takes no room from callers with a token."""
    trust = Trust(tmp_path)
    trust.write({"alice": {"may": ["registry"]}})
    daemon = daemons.start("--devices=cpu", *trust.flags)
    with contextlib.ExitStack() as stack:
        peers = []
        for n in (2, 3):
            peers += hold_health(stack, daemon, f"127.0.0.{n}", QUESTIONS_OF_PEER - MIB)
        third = hold_health(stack, daemon, "127.0.0.4", 4 * MIB)[-1]
        alice = stack.enter_context(Http2Peer(daemon.tcp, own_host="127.0.0.5"))
        wait_closed([third])
        assert not any(peer.closed for peer in peers)
        question = alice.start(LIST_KERNELS, bearer("alice"))
        alice.send(question, message(bytes(8 * MIB)), end=True)
        refused = alice.wait(question).status
        short = alice.start(HEALTH)
        alice.send(short, message(b""), end=True)
        served = alice.wait(short).status
    attack = "62 MiB of questions without a token"
    battery.holds(attack, least=1, seen=closed(daemon, "frames"), unit="connections closed")
    battery.holds(attack, most=0, seen=served, unit="the status of a short one")
    battery.holds(attack, least=RESOURCE_EXHAUSTED, seen=refused, unit="the status of 8 MiB with a token")


def test_whole_messages_in_frames_of_a_byte(daemons, battery):
    """A stream of messages that end, and may wait to be read."""
    daemon = daemons.start(*FLAGS)
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start(MULTIPLY_STREAM)
        sent = send_tiny(peer, stream, message(joint_bytes(honest_product())) * 1000)
        wait_closed([peer])
    battery.holds("messages in frames of a byte", least=1, seen=closed(daemon, "frames"), unit="connections closed")
    battery.holds("messages in frames of a byte", least=MAX_SPARE_FRAMES, seen=sent, unit="frames before that")


def honest_product():
    product = gemm_pb2.MultiplyRequest(m=1, n=1, k=0)
    product.a.type = product.b.type = product.d.type = ELEMENTS["s8"].number
    return product.SerializeToString()


def test_small_messages_of_an_honest_peer(listener, battery):
    """The control: a frame for each message, or two, as many clients send."""
    count = 2 * MAX_SPARE_FRAMES
    answered = 0
    with listener.peer() as peer:
        product = message(joint_bytes(honest_product()))
        stream = peer.start(MULTIPLY_STREAM)
        for i in range(count):
            while peer.connection.local_flow_control_window(stream) < len(product):
                peer.receive(0.05)
            cut = 5 if i % 2 else len(product)
            for part in (product[:cut], product[cut:]):
                if part:
                    peer.connection.send_data(stream, part)
            peer.flush()
            peer.receive(0)
        peer.end(stream)
        answer = peer.wait(stream, limit_s=120)
        answered = answer.status
    assert closed(listener.daemon, "frames") == 0
    battery.holds(f"{count} messages of {len(product)} bytes over {listener.kind}: served", most=0, seen=answered, unit="status")


def endless_headers(encoder, name=b"x"):
    """The beginning of headers of which the last declares a value of 1 GiB."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", MULTIPLY), (":authority", "localhost")]
    head = encoder.encode(fields)
    declared = hpack.hpack.encode_integer(1 << 30, 7)
    return head + b"\x40" + bytes([len(name)]) + name + bytes(declared)


@pytest.mark.parametrize("part", [16384, 1024, 1, 0])
def test_headers_without_end(listener, battery, part):
    """HPACK's declared gigabytes (CVE-2023-33953), and CONTINUATION frames that go on for ever."""
    daemon = listener.daemon
    begun_s = cpu_s(daemon)
    with listener.peer() as peer:
        flood = frame(1, 0, 1, endless_headers(hpack.Encoder()))
        sent = frames = 0
        deadline = time.monotonic() + PATIENCE_S
        peer.socket.settimeout(PATIENCE_S)
        try:
            while sent < 16 * MIB and frames < 200_000 and time.monotonic() < deadline:
                peer.socket.sendall(flood)
                sent += len(flood)
                frames += 1
                flood = frame(CONTINUATION, 0, 1, bytes(part))
        except OSError:
            peer.closed = True
        wait_closed([peer])
    attack = f"headers of 1 GiB in frames of {part} bytes over {listener.kind}"
    wait_until(lambda: closed(daemon, "frames") == 1, PATIENCE_S, "closed")
    battery.holds(attack, least=1, seen=closed(daemon, "frames"), unit="connections closed")
    assert reasons(daemon) == {"long headers"}
    battery.timed(attack, most=0.5, seen=cpu_s(daemon) - begun_s, unit="CPU seconds")


def cpu_s(daemon):
    with open(f"/proc/{daemon.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_headers_as_long_as_may_be(listener, battery):
    """The control: as much as gRPC takes, in each of many calls."""
    served = 0
    with listener.peer() as peer:
        for size in (1000, 4000, 7000) * 10:
            stream = peer.start(HEALTH, headers=[("x-long", "v" * size)])
            peer.send(stream, message(b""), end=True)
            served += peer.wait(stream).status == 0
    assert closed(listener.daemon, "frames") == 0
    battery.holds(f"headers of up to 7,000 bytes over {listener.kind}: served", least=30, seen=served)


CANCEL = 8


@pytest.mark.resident_memory
def test_rapid_resets(listener, battery):
    """Calls that are reset as they begin (CVE-2023-44487): gRPC 1.51 keeps 6 KiB of each until it comes to it."""
    daemon, count = listener.daemon, 100_000
    with Bystander(daemon) as bystander:
        before = daemon.forget_peak()
        begun_s = cpu_s(daemon)
        with listener.peer() as peer:
            fields = [(":method", "POST"), (":scheme", "http"), (":path", MULTIPLY), (":authority", "localhost")]
            head = hpack.Encoder().encode([*fields, ("content-type", "application/grpc"), ("te", "trailers")])
            peer.socket.settimeout(PATIENCE_S)
            with contextlib.suppress(OSError):
                for first in range(1, 2 * count, 100):
                    peer.socket.sendall(
                        b"".join(
                            frame(HEADERS, END_STREAM | END_HEADERS, stream, head)
                            + frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))
                            for stream in range(first, first + 100, 2)
                        )
                    )
            wait_closed([peer])
        attack = f"calls reset as they begin over {listener.kind}"
        wait_until(lambda: closed(daemon, "frames") == 1, PATIENCE_S, "closed")
        battery.holds(attack, least=1, seen=closed(daemon, "frames"), unit="connections closed")
        assert reasons(daemon) == {"too many resets"}
        battery.timed(attack, most=32, seen=(daemon.peak_rss_bytes() - before) / MIB, unit="MiB at the peak")
        battery.timed(attack, most=1, seen=cpu_s(daemon) - begun_s, unit="CPU seconds")
        bystander.check()


def call_frames(path=MULTIPLY, flags=END_HEADERS, more=()):
    """What begins a call."""
    return lambda peer, stream: frame(HEADERS, flags, stream, peer.fields([path.encode()], more))


def stream_frame(kind, flags, payload):
    return lambda peer, stream: frame(kind, flags, stream, payload)


def on_itself(stream):
    """A priority (RFC 7540, 5.3.1)."""
    return word(stream) + b"\x01"


BEGUN = call_frames()
ENDED = call_frames(flags=END_HEADERS | END_STREAM)
MESSAGE = message(b"abc")
# What a peer sends for each call, so that the daemon may have to reset it.
RESET_BY_THE_DAEMON = {
    "WINDOW_UPDATE of 0": [BEGUN, stream_frame(WINDOW_UPDATE, 0, word(0))],
    "WINDOW_UPDATE beyond 2^31": [BEGUN, stream_frame(WINDOW_UPDATE, 0, word(MAX_WINDOW))],
    "WINDOW_UPDATE of three bytes": [BEGUN, stream_frame(WINDOW_UPDATE, 0, b"abc")],
    "PRIORITY on itself": [BEGUN, lambda peer, stream: frame(PRIORITY, 0, stream, on_itself(stream))],
    "HEADERS with a priority on itself": [
        lambda peer, stream: frame(
            HEADERS,
            END_HEADERS | WITH_PRIORITY,
            stream,
            on_itself(stream) + peer.fields([MULTIPLY.encode()]),
        )
    ],
    "PRIORITY of three bytes": [BEGUN, stream_frame(PRIORITY, 0, b"abc")],
    "RST_STREAM of three bytes": [BEGUN, stream_frame(RST_STREAM, 0, b"abc")],
    "DATA after the end": [ENDED, stream_frame(DATA, 0, MESSAGE)],
    "DATA after the end with DATA": [
        BEGUN,
        stream_frame(DATA, END_STREAM, MESSAGE),
        stream_frame(DATA, END_STREAM, MESSAGE),
    ],
    "DATA with more padding than bytes": [BEGUN, stream_frame(DATA, PADDED, b"\xffabc")],
    "DATA beyond the window": [BEGUN, *5 * [stream_frame(DATA, 0, message(bytes(16_000), declared=MIB))]],
    "HEADERS after the end": [ENDED, BEGUN],
    "HEADERS twice": [BEGUN, BEGUN],
    "a content-length that is too small": [
        call_frames(more=[(b"content-length", b"3")]),
        stream_frame(DATA, END_STREAM, MESSAGE),
    ],
    "a content-length that is too large": [
        call_frames(more=[(b"content-length", b"99")]),
        stream_frame(DATA, END_STREAM, MESSAGE),
    ],
    "a content-length that is no number": [
        call_frames(flags=END_HEADERS | END_STREAM, more=[(b"content-length", b"x")]),
    ],
    "a name in upper case": [call_frames(flags=END_HEADERS | END_STREAM, more=[(b"X-Name", b"y")])],
    "a message with unknown flags": [BEGUN, stream_frame(DATA, END_STREAM, message(b"abc", flags=7))],
    "a message that is too long": [BEGUN, stream_frame(DATA, 0, message(b"abc", declared=(1 << 31) - 1))],
    "no method of HTTP": [
        lambda peer, stream: frame(HEADERS, END_HEADERS, stream, peer.encoder.encode([(b":path", MULTIPLY.encode())]))
    ],
}
MAX_CALLS = 100  # --max-concurrent-streams.
RESETS_EACH_SECOND = 1_250  # And as many at once: FrameMeter's kResets and kResetsOfConnection, by kRapidCost.


def flood_to_be_reset(peer, frames):
    """Begins calls until the connection is closed, at most 4,000, or 500 if none of those is reset. How long it
    waits for calls that stay open affects only the number of open calls. Returns how many calls were begun,
    and how many of them were reset."""
    calls = resets = 0

    def ended(streams):
        peer.receive(0)
        return sum(peer.is_over(stream) for stream in streams)

    while not peer.closed and calls < (4_000 if resets else 500):
        streams = [peer.next_stream() for _ in range(MAX_CALLS // 4)]
        peer.send(*(make(peer, stream) for stream in streams for make in frames))
        calls += len(streams)
        peer.settle()
        last_value(lambda new=streams: ended(new), lambda count, new=streams: count == len(new), 0.3)
        resets = sum(answer.reset is not None for answer in peer.answers.values())
    return calls, resets


def test_calls_that_the_daemon_must_reset(listener, battery):
    """MadeYouReset (CVE-2025-8671): the peer resets nothing itself. Which of these gRPC answers with a reset depends on
    its version; others it ignores, refuses, or closes the connection for. The daemon counts resets whoever sends
    them. So there are at most as many as the peer and its connection may have, and at most 100 open calls."""
    daemon = listener.daemon
    unbounded = []
    most_resets = 0
    with Bystander(daemon) as bystander:
        for way, frames in RESET_BY_THE_DAEMON.items():
            began = time.monotonic()
            with listener.raw_peer() as peer:
                calls, resets = flood_to_be_reset(peer, frames)
                granted = RESETS_EACH_SECOND * (1 + time.monotonic() - began) + MAX_CALLS
                still_open = sum(not peer.is_over(stream) for stream in peer.answers)
                print(f"{way}: {calls} calls, {resets} reset, {still_open} open, closed: {peer.closed}")
                if resets > granted or still_open > MAX_CALLS:
                    unbounded.append(way)
                most_resets = max(most_resets, resets)
            bystander.check()
    attack = f"{len(RESET_BY_THE_DAEMON)} ways to have calls reset over {listener.kind}"
    battery.holds(f"{attack}: without a bound {unbounded or ''}", most=0, seen=len(unbounded))
    assert {event["why"] for event in daemon.events("connection_closed")} <= {"too many resets"}
    battery.timed(attack, least=1, seen=closed(daemon, "frames"), unit="connections closed")
    battery.timed(attack, most=2_500, seen=most_resets, unit="resets in one connection")


def hold_half(peer, size):
    """Sends all of a message but its last bytes."""
    peer.send(peer.start(), message(bytes(size - 100), declared=size), limit_s=5)


def test_half_a_message_is_not_held(daemons, battery, tmp_path):
    """Who may send the rest and does not for three send timeouts loses the connection."""
    for kind in ("tcp", "unix", "tls"):
        folder = tmp_path / kind
        folder.mkdir()
        listener = Listener(daemons, kind, folder, "--send-timeout=1s", "--max-queued-bytes=1000000")
        with Bystander(listener.daemon) as bystander, contextlib.ExitStack() as stack:
            peers = [stack.enter_context(listener.peer()) for _ in range(3)]
            for peer in peers:
                hold_half(peer, MIB)
            began = time.monotonic()
            wait_closed(peers)
            seen = closed(listener.daemon, "slow")
            assert reasons(listener.daemon) == {"holds back the rest of a message"}
            attack = f"halves of messages of 1 MiB over {kind}"
            battery.holds(attack, least=len(peers), seen=seen, unit="connections closed")
            battery.timed(attack, most=4, seen=time.monotonic() - began, unit="s until they are closed")
            bystander.check_served()


def test_small_halves_may_wait(daemons, battery):
    """The control: what holds little may take its time."""
    daemon = daemons.start(*FLAGS, "--send-timeout=1s")
    with Http2Peer(daemon.tcp) as waiting, Http2Peer(daemon.tcp) as held:
        stream = waiting.start()
        body = message(honest_product())
        waiting.send(stream, body[:-1])
        hold_half(held, MIB)
        wait_closed([held])
        waiting.send(stream, body[-1:], end=True)
        status = waiting.wait(stream).status
    battery.holds("a small half, finished when large ones are closed: served", most=0, seen=status, unit="status")


@pytest.mark.timed
def test_who_uploads_slowly_is_served(daemons, battery):
    """The message takes many send timeouts, at little more than the least progress in each."""
    daemon = daemons.start(*FLAGS, "--send-timeout=1s")
    padding = gemm_pb2.MultiplyRequest(m=1, n=1, k=0)
    padding.a.type = padding.b.type = padding.d.type = ELEMENTS["s8"].number
    padding.a.data = bytes(MIB)
    body = message(padding.SerializeToString())
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start()
        began = time.monotonic()
        for at in range(0, len(body), 48 << 10):
            assert peer.send(stream, body[at : at + (48 << 10)], end=at + (48 << 10) >= len(body)) > 0
            time.sleep(0.5)
            peer.receive(0)
        peer.wait(stream)
        took = time.monotonic() - began
        assert not peer.closed
    battery.timed("1 MiB sent in more than 10 send timeouts: answered", least=10, seen=took, unit="s")


def zeros_request(count):
    zeros = gemm_pb2.MultiplyRequest(m=1, n=count, k=0)
    zeros.a.type = zeros.b.type = zeros.d.type = ELEMENTS["s8"].number
    return zeros.SerializeToString()


def open_windows(peer):
    """May be sent 2 GiB."""
    peer.connection.update_settings({4: 0x7FFFFFFF})
    peer.connection.increment_flow_control_window(0x7FFFFFFF - 65535)
    peer.flush()
    peer.receive(1)


@pytest.mark.own_device
def test_sockets_that_are_not_read(daemons, battery, tmp_path):
    """The windows are open, so that gRPC gives all to the socket, where a call that is cancelled leaves its bytes."""
    for kind in ("tcp", "unix", "tls"):
        folder = tmp_path / kind
        folder.mkdir()
        listener = Listener(daemons, kind, folder, "--max-queued-bytes=256MiB", "--send-timeout=1s:8MiB")
        daemon = listener.daemon
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(listener.peer()) for _ in range(3)]
            for peer in peers:
                open_windows(peer)
                peer.send(peer.start(), message(zeros_request(32 * MIB)), end=True)
            began = time.monotonic()
            wait_until(lambda: closed(daemon, "slow") == len(peers), PATIENCE_S, "all closed")
            took = time.monotonic() - began
            freed = wait_until(lambda: admitted_bytes(daemon) == 0, PATIENCE_S, "all is free")
            assert freed
        attack = f"3 sockets with answers of 32 MiB over {kind}, unread"
        battery.holds(attack, least=len(peers), seen=closed(daemon, "slow"), unit="connections closed")
        assert reasons(daemon) == {"reads too slowly what it is sent"}
        battery.timed(attack, most=3, seen=took, unit="s until they are closed")


def admitted_bytes(daemon):
    return metrics_page.scrape(daemon).value("gemmd_admitted_bytes")
