# SPDX-License-Identifier: Apache-2.0
"""The wall clock jumps by hours, forward and back. Tokens depend on it. Leases, sessions,
deadlines, silent peers and the daemon's own shutdown do not: what should continue does, and what
should end does so, in the timed run on time."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import time

import grpc
import numpy as np
import pytest
from callers import UNAUTHENTICATED, Trust, multiply
from daemon import PATIENCE_S, wait_until
from gemmd.v1 import gemm_pb2_grpc
from http2_peer import Http2Peer, message, open_socket
from lasting import lasting, statistics_of
from metrics_page import scrape
from product import Product
from signed_tokens import Signer
from tensors import Session, by_name, refusal

NOT_FOUND = grpc.StatusCode.NOT_FOUND
HOURS = 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SMALL = Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)), a_type="f16", b_type="f16")
# One tile, whose long k takes 0.6 s at the rates of the tests' worker, whose watchdog allows ten
# times that.
LONG = Product(a=np.ones((1, 8, 40_000)), b=np.ones((1, 40_000, 8)), a_type="f16", b_type="f16")
LATE_S = 10
NS = 10**9

jumps = pytest.mark.parametrize("hours", [HOURS, -HOURS], ids=["forward", "back"])


@pytest.fixture
def start(daemons, wall_clock):
    def start(*flags):
        return daemons.start("--lame-duck=1ms", "--devices=cpu", *flags, environment=wall_clock.environment)

    return start


def seconds_until(condition, what):
    began = time.monotonic()
    wait_until(condition, PATIENCE_S, what)
    return time.monotonic() - began


def queued(channel):
    return statistics_of(channel, "cpu").queued_requests


def admitted(daemon):
    return scrape(daemon).value("gemmd_admitted_requests")


def is_gone(session, name):
    try:
        session.describe(by_name(name))
    except grpc.RpcError as error:
        return error.code() == NOT_FOUND
    return False


@jumps
def test_leases(start, wall_clock, battery, hours):
    daemon = start()
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        session.put(b"long", name="long", lease_ns=600 * NS)
        session.put(b"short", name="short", lease_ns=NS)
        wall_clock.set(hours)
        there = session.get(by_name("long"))[1] == b"long"
        seen_s = seconds_until(lambda: is_gone(session, "short"), "the short lease ended")
        there += session.get(by_name("long"))[1] == b"long"
        battery.holds(f"a lease of 600 s, {hours} hours on: there", least=2, seen=there)
        battery.timed(f"a lease of 1 s, {hours} hours on: ended", most=1 + LATE_S, seen=seen_s, unit="s")


@jumps
def test_sessions(start, wall_clock, battery, hours):
    """A session whose owner is gone lingers; a session whose owner is connected stays."""
    daemon = start("--session-linger=1s", "--metrics-listen=127.0.0.1:0")
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as stays:
        leaves = Session(channel)
        leaves.put(b"left", name="left")
        stays.put(b"kept", name="kept")
        leaves.close()
        wall_clock.set(hours)
        # A call of its owner would make it linger for longer.
        seen_s = seconds_until(lambda: scrape(daemon).value("gemmd_sessions") == 1, "the session ended")
        battery.timed(f"a session left for 1 s, {hours} hours on: ended", most=1 + LATE_S, seen=seen_s, unit="s")
        kept = stays.get(by_name("kept"))[1] == b"kept"
        battery.holds(f"a session whose owner is there, {hours} hours on: stays", least=1, seen=kept)


@jumps
def test_sessions_that_linger(start, wall_clock, battery, hours):
    """No jump ends a session whose owner has just left."""
    daemon = start("--session-linger=600s")
    with grpc.insecure_channel(daemon.tcp) as channel:
        leaves = Session(channel)
        leaves.put(b"left", name="left")
        leaves.close()
        found = 0
        for jump in range(10):
            wall_clock.set(hours * (jump + 1))
            found += leaves.get(by_name("left"))[1] == b"left"
    battery.holds(f"a session left to linger for 600 s, {hours} hours on again and again: there", least=10, seen=found)


@jumps
def test_deadlines(start, wall_clock, battery, hours):
    """The deadline of a product that its stopped worker never ends."""
    daemon = start("--devices=cuda:0", "--metrics-listen=127.0.0.1:0")
    with contextlib.closing(Http2Peer(daemon.tcp)) as peer:
        [worker] = daemon.children()
        os.kill(worker, signal.SIGSTOP)  # The watchdog replaces it, but later than the deadline.
        body = message(LONG.request().SerializeToString())
        began = time.monotonic()
        stream = peer.start(headers=[("grpc-timeout", "1500m")])
        peer.send(stream, body, end=True)

        def is_there():
            peer.receive(0)
            return admitted(daemon) == 1 or peer.is_over(stream)

        wait_until(is_there, PATIENCE_S, "the product is there")
        wall_clock.set(hours)
        answer = peer.wait(stream)
        seen_s = time.monotonic() - began
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
    # If gRPC 1.51 is the first to notice it, it may end the stream twice, which h2 treats as a
    # broken connection.
    assert answer.status in (None, grpc.StatusCode.DEADLINE_EXCEEDED.value[0]), answer.headers
    attack = f"a deadline of 1.5 s, {hours} hours on"
    battery.holds(f"{attack}: calls ended", least=1, seen=peer.is_over(stream))
    battery.timed(f"{attack}: kept", most=1.5 + LATE_S, seen=seen_s, unit="s")
    battery.timed(f"{attack}: not before", least=1.49, seen=seen_s, unit="s")


@jumps
def test_deadlines_that_are_far(start, wall_clock, battery, hours):
    """Running products continue, and so do those that wait."""
    daemon = start()
    with grpc.insecure_channel(daemon.tcp, [("grpc.max_receive_message_length", -1)]) as channel:
        # The product must outlast the jump: if the machine was busy meanwhile, a longer one
        # follows.
        for seconds in (0.5, 2, 8, 32):
            wall_clock.set(0)
            stub, busy_ns = gemm_pb2_grpc.GemmStub(channel), statistics_of(channel, "cpu").busy_ns
            runs = stub.Multiply.future(lasting(channel, seconds), timeout=600)
            wait_until(lambda: statistics_of(channel, "cpu").busy_ns > busy_ns, PATIENCE_S, "the product runs")
            waits = stub.Multiply.future(SMALL.request(), timeout=600)
            wait_until(lambda: runs.done() or queued(channel) == 1, PATIENCE_S, "another waits")
            wall_clock.set(hours)
            has_jumped_meanwhile = not runs.done()
            answered = [one.result().d.data != b"" for one in (runs, waits)]
            if has_jumped_meanwhile:
                break
    assert has_jumped_meanwhile
    battery.holds(f"deadlines of ten minutes, {hours} hours on: answered", least=2, seen=sum(answered))


@jumps
def test_the_end(start, wall_clock, battery, monkeypatch, tmp_path, hours):
    """A GPU does not release its product, so the daemon ends without it, soon after the grace."""
    script = tmp_path / "script"
    monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(script))
    daemon = start("--devices=cuda:0", "--grace=200ms")
    (tmp_path / "part").write_text("Launch 1 hang")
    (tmp_path / "part").rename(script)
    with grpc.insecure_channel(daemon.tcp) as channel:
        call = gemm_pb2_grpc.GemmStub(channel).Multiply.future(SMALL.request(), timeout=600)
        wait_until(lambda: not script.exists(), PATIENCE_S, "it hangs")
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        jumps_so_far = itertools.count(1)

        def has_ended():  # Whatever the daemon is waiting for.
            wall_clock.set(hours * min(next(jumps_so_far), 100))
            return daemon.process.poll() is not None

        wait_until(has_ended, PATIENCE_S, "it has ended")
        code = daemon.wait()
        seen_s = time.monotonic() - began
        assert call.exception() is not None
    assert code == 1
    stops = [line["reason"] for line in daemon.events("stop")]
    assert stops[-1] == "a device does not respond"
    battery.holds(f"SIGTERM, {hours} hours on again and again: ends", least=1, seen=len(stops))
    battery.timed(f"SIGTERM, {hours} hours on again and again: ended", most=1 + LATE_S, seen=seen_s, unit="s")
    battery.timed(f"SIGTERM, {hours} hours on again and again: not before", least=0.9, seen=seen_s, unit="s")


@jumps
def test_open_calls_at_the_end(start, wall_clock, battery, hours):
    """They get a moment, and then the daemon ends without them."""
    daemon = start("--grace=200ms")
    with grpc.insecure_channel(daemon.tcp) as channel, contextlib.suppress(grpc.RpcError), Session(channel):
        wall_clock.set(hours)
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        code = daemon.wait()
        seen_s = time.monotonic() - began
    attack = f"SIGTERM with an open call, {hours} hours on"
    battery.holds(f"{attack}: exit code", most=0, seen=abs(code))
    battery.timed(f"{attack}: ended", most=1 + LATE_S, seen=seen_s, unit="s")


def test_checks_of_life(daemons, wall_clock, battery, tmp_path):
    """A service manager that gets no sign of life for three seconds restarts the daemon."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(0.5)
        notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
        daemon = daemons.start("--lame-duck=1ms", "--devices=cpu", environment=wall_clock.environment | notify)
        jump = itertools.count()
        heard = []

        def has_heard():
            wall_clock.set(HOURS * (-1) ** next(jump))
            with contextlib.suppress(TimeoutError):
                heard.append(manager.recv(1 << 12))
            return heard.count(b"WATCHDOG=1") >= 3

        wait_until(has_heard, PATIENCE_S, "good checks of life")
    battery.holds("good checks of life while the clock jumps", least=3, seen=heard.count(b"WATCHDOG=1"))
    failed = len(daemon.events("life_check_failed"))
    battery.timed("checks of life while the clock jumps: failed", most=0, seen=failed)


def test_clients(daemons, wall_clock, battery, gemmload, is_timed, tmp_path):
    """The clock of a client may jump, too."""
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu")
    report = tmp_path / "report.json"
    duration = "--duration=6s" if is_timed else "--duration=1s"
    command = [gemmload, f"--address={daemon.unix}", "--shape=64,64,64", "--concurrency=2", duration, "--timeout=60s"]
    environment = {**os.environ, **wall_clock.environment}
    with subprocess.Popen([*command, "--quiet", f"--json={report}"], env=environment) as load:
        jump = 0
        while load.poll() is None:
            time.sleep(0.2)
            wall_clock.set(HOURS * (-1) ** jump)
            jump += 1
    [step] = json.loads(report.read_text())["steps"]
    answered = step["calls_by_status"].pop("OK", 0)
    battery.holds("calls of a client whose clock jumps: OK", least=1, seen=answered)
    battery.timed("calls of a client whose clock jumps: OK", least=100, seen=answered)
    battery.holds("calls of a client whose clock jumps: failed", most=0, seen=sum(step["calls_by_status"].values()))


def test_tokens(daemons, wall_clock, battery, tmp_path):
    """They are valid until the wall clock says otherwise, and again once it is correct."""
    issuer = Signer("issuer")
    trust = Trust(tmp_path)
    trust.write({"alice": {"may": ["multiply"]}})
    trust.keys_file.write_text(json.dumps({"keys": [issuer.public()]}))
    daemon = daemons.start("--devices=cpu", *trust.flags, environment=wall_clock.environment)
    token = issuer.token(iss="https://issuer.test", nbf=time.time() - 60)
    metadata = [("authorization", f"Bearer {token}")]
    right = 0
    with grpc.insecure_channel(daemon.tcp) as channel:
        for hours, is_good in ((0, True), (2, False), (0, True), (-2, False), (0, True)):
            wall_clock.set(hours)
            if is_good:
                right += multiply(channel, metadata).d.data != b""
            else:
                right += refusal(multiply, channel, metadata)[0] == UNAUTHENTICATED
    battery.holds("a token of an hour, by a clock that jumps two: right", least=5, seen=right)


@jumps
def test_silent_peers(start, wall_clock, battery, hours):
    """One that is always silent, and one that answers no ping."""
    limits = ["--handshake-timeout=2s", "--keepalive-time=1s"]
    daemon = start("--metrics-listen=127.0.0.1:0", *limits)
    with open_socket(daemon.tcp) as silent, open_socket(daemon.tcp) as dead:
        dead.sendall(PREFACE)
        wait_until(lambda: scrape(daemon).value("gemmd_connections") >= 1, PATIENCE_S, "they are there")
        wall_clock.set(hours)
        began = time.monotonic()
        cut_s = []
        for peer in (silent, dead):
            peer.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                while peer.recv(1 << 16):
                    pass
            cut_s.append(time.monotonic() - began)
    battery.holds(f"peers without a handshake or pings, {hours} hours on: cut", least=2, seen=len(cut_s))
    # A peer has 10 s to answer a ping.
    for what, most_s, seen_s in zip(("handshake", "pings"), (2, 1 + 10), cut_s, strict=True):
        battery.timed(f"no {what} of a peer, {hours} hours on: cut", most=most_s + LATE_S, seen=seen_s, unit="s")
