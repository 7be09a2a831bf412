# SPDX-License-Identifier: Apache-2.0
"""The wall clock jumps by hours, forward and back. Tokens go by it; leases, sessions, deadlines, silent peers and
the daemon's own end do not: what was to last goes on, and what was to end does so on time."""

import contextlib
import json
import os
import signal
import subprocess
import time

import grpc
import numpy as np
import pytest
from callers import UNAUTHENTICATED, Trust, multiply
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc
from http2_peer import Http2Peer, message, open_socket
from lasting import lasting, start_on, statistics_of
from metrics_page import scrape
from product import Product
from signed_tokens import Signer
from tensors import Session, by_name, refusal

NOT_FOUND = grpc.StatusCode.NOT_FOUND
HOURS = 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SMALL = Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)), a_type="f16", b_type="f16")
LATE_S = 10  # A busy machine may take seconds.
NS = 10**9

jumps = pytest.mark.parametrize("hours", [HOURS, -HOURS], ids=["forward", "back"])


@pytest.fixture
def start(daemons, wall_clock):
    def start(*flags):
        return daemons.start("--lame-duck=1ms", "--devices=cpu", *flags, environment=wall_clock.environment)

    return start


def seconds_until(condition, limit_s, what):
    began = time.monotonic()
    wait_until(condition, limit_s, what)
    return time.monotonic() - began


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
        session.put(b"short", name="short", lease_ns=3 * NS)
        wall_clock.set(hours)
        assert session.get(by_name("short"))[1] == b"short"
        seen_s = seconds_until(lambda: is_gone(session, "short"), 60, "the short lease ended")
        battery.holds(f"a lease of 3 s, {hours} hours on: ended", most=3 + LATE_S, seen=seen_s, unit="s")
        assert session.get(by_name("long"))[1] == b"long"


@jumps
def test_sessions(start, wall_clock, battery, hours):
    """One whose owner is gone lingers; one whose owner is there stays."""
    daemon = start("--session-linger=3s", "--metrics-listen=127.0.0.1:0")
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as stays:
        leaves = Session(channel)
        leaves.put(b"left", name="left")
        stays.put(b"kept", name="kept")
        leaves.close()
        time.sleep(0.5)
        wall_clock.set(hours)
        assert leaves.get(by_name("left"))[1] == b"left"
        # A call of its owner would have it linger for longer.
        seen_s = seconds_until(lambda: scrape(daemon).value("gemmd_sessions") == 1, 60, "the session ended")
        battery.holds(f"a session left for 3 s, {hours} hours on: ended", most=3 + LATE_S, seen=seen_s, unit="s")
        assert stays.get(by_name("kept"))[1] == b"kept"


@jumps
def test_deadlines(start, wall_clock, battery, hours):
    """One of a product that its worker, which stands still, never ends."""
    daemon = start("--devices=cuda:0")
    with contextlib.closing(Http2Peer(daemon.tcp)) as peer:
        [worker] = daemon.children()
        os.kill(worker, signal.SIGSTOP)  # Within two seconds the daemon replaces it.
        began = time.monotonic()
        stream = peer.start(headers=[("grpc-timeout", "1500m")])
        peer.send(stream, message(SMALL.request().SerializeToString()), end=True)
        time.sleep(0.3)
        wall_clock.set(hours)
        answer = peer.wait(stream, 60)
        seen_s = time.monotonic() - began
    # Where gRPC 1.51 is the first to see it, it may end the stream twice, which h2 takes for a broken connection.
    assert answer.status in (None, grpc.StatusCode.DEADLINE_EXCEEDED.value[0]), answer.headers
    attack = f"a deadline of 1.5 s, {hours} hours on"
    battery.holds(f"{attack}: kept", most=1.5 + LATE_S, seen=seen_s, unit="s")
    battery.holds(f"{attack}: not before", least=1.49, seen=seen_s, unit="s")


@jumps
def test_deadlines_that_are_far(start, wall_clock, battery, hours):
    """What has begun goes on, and so does what waits for it."""
    daemon = start()
    with grpc.insecure_channel(daemon.tcp, [("grpc.max_receive_message_length", -1)]) as channel:
        runs = start_on(channel, "cpu", lasting(channel, 2), timeout_s=60)
        waits = gemm_pb2_grpc.GemmStub(channel).Multiply.future(SMALL.request(), timeout=60)
        wait_until(lambda: statistics_of(channel, "cpu").queued_requests == 1, 60, "another waits")
        wall_clock.set(hours)
        assert not runs.done(), runs.exception()
        answered = [one.result().d.data != b"" for one in (runs, waits)]
    battery.holds(f"deadlines of a minute, {hours} hours on: answered", least=2, seen=sum(answered))


@jumps
def test_the_end(start, wall_clock, battery, monkeypatch, tmp_path, hours):
    """A GPU does not let go of its product, so the daemon ends without it, soon after the grace."""
    script = tmp_path / "script"
    monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(script))
    daemon = start("--devices=cuda:0", "--grace=200ms")
    (tmp_path / "part").write_text("Launch 1 hang")
    (tmp_path / "part").rename(script)
    with grpc.insecure_channel(daemon.tcp) as channel:
        call = gemm_pb2_grpc.GemmStub(channel).Multiply.future(SMALL.request(), timeout=60)
        wait_until(lambda: not script.exists(), 60, "it hangs")
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        for i in range(60):  # Whatever the daemon waits for just then.
            time.sleep(0.05)
            wall_clock.set(hours * (i + 1))
            if daemon.process.poll() is not None:
                break
        code = daemon.wait(30)
        seen_s = time.monotonic() - began
        assert call.exception() is not None
    assert code == 1
    assert daemon.events("stop")[-1]["reason"] == "a device does not let go"
    battery.holds(f"SIGTERM, {hours} hours on again and again: ended", most=1 + LATE_S, seen=seen_s, unit="s")
    battery.holds(f"SIGTERM, {hours} hours on again and again: not before", least=0.9, seen=seen_s, unit="s")


@jumps
def test_open_calls_at_the_end(start, wall_clock, battery, hours):
    """They have a moment, and then the daemon ends without them."""
    daemon = start("--grace=200ms")
    with grpc.insecure_channel(daemon.tcp) as channel, contextlib.suppress(grpc.RpcError), Session(channel):
        wall_clock.set(hours)
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        code = daemon.wait(30)
        seen_s = time.monotonic() - began
    assert code == 0
    battery.holds(f"SIGTERM with an open call, {hours} hours on: ended", most=1 + LATE_S, seen=seen_s, unit="s")


def test_checks_of_life(daemons, wall_clock, battery):
    """A manager that hears of no good check for three seconds starts the daemon again."""
    environment = {**wall_clock.environment, "WATCHDOG_USEC": "3000000"}
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu", environment=environment)
    for i in range(12):
        wall_clock.set(HOURS * (-1) ** i)
        time.sleep(0.7)
    checks = scrape(daemon).value("gemmd_handler_seconds_count", method="ListDevices")
    battery.holds("checks of life while the clock jumps", least=5, seen=checks)
    battery.holds("checks of life while the clock jumps: failed", most=0, seen=len(daemon.events("life_check_failed")))


def test_clients(daemons, wall_clock, battery, gemmload, tmp_path):
    """The clock of a client may jump, too."""
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu")
    report = tmp_path / "report.json"
    command = [gemmload, f"--address={daemon.unix}", "--shape=64,64,64", "--concurrency=2", "--duration=6s"]
    environment = {**os.environ, **wall_clock.environment}
    with subprocess.Popen([*command, "--quiet", f"--json={report}"], env=environment) as load:
        jump = 0
        while load.poll() is None:
            time.sleep(0.7)
            wall_clock.set(HOURS * (-1) ** jump)
            jump += 1
    [step] = json.loads(report.read_text())["steps"]
    answered = step["calls_by_status"].pop("OK", 0)
    battery.holds("calls of a client whose clock jumps: OK", least=100, seen=answered)
    battery.holds("calls of a client whose clock jumps: failed", most=0, seen=sum(step["calls_by_status"].values()))


def test_tokens(daemons, wall_clock, battery, tmp_path):
    """They are good until the wall clock says otherwise, and again once it is set right."""
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
    """One that never says anything, and one that answers no ping."""
    daemon = start("--handshake-timeout=3s", "--keepalive-time=2s", "--keepalive-timeout=1s")
    with open_socket(daemon.tcp) as silent, open_socket(daemon.tcp) as dead:
        dead.sendall(PREFACE)
        time.sleep(0.5)
        wall_clock.set(hours)
        began = time.monotonic()
        for what, peer in (("handshake", silent), ("pings", dead)):
            peer.settimeout(60)
            with contextlib.suppress(ConnectionError):
                while peer.recv(1 << 16):
                    pass
            seen_s = time.monotonic() - began
            battery.holds(f"no {what} of a peer, {hours} hours on: cut", most=3 + LATE_S, seen=seen_s, unit="s")
