# SPDX-License-Identifier: Apache-2.0
"""More connections than the daemon may have files: existing ones are served, and new ones as soon
as there is room."""

import contextlib
import resource
import subprocess
import threading
import time

import grpc
import pytest
from daemon import PATIENCE_S, parse_log_line, wait_until
from gemmd.v1 import gemm_pb2_grpc
from http2_peer import open_socket
from product import check_bytes
from small_product import SMALL, multiply

DEADLINE_S = PATIENCE_S

# A GPU and its worker have their own files.
pytestmark = pytest.mark.own_device


class Witness:
    """A client with its own connection that multiplies all the time."""

    def __init__(self, address):
        self.failures = []
        self.served = 0
        self._stop = threading.Event()
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._stub = gemm_pb2_grpc.GemmStub(self._channel)
        self._multiply()
        self._thread = threading.Thread(target=self._run)

    def _multiply(self):
        try:
            check_bytes(self._stub.Multiply(SMALL.request(), timeout=DEADLINE_S).d, SMALL)
            self.served += 1
        except grpc.RpcError as failure:
            self.failures.append(failure.code())

    def _run(self):
        while not self._stop.wait(0.01):
            self._multiply()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._channel.close()


def is_served(address):
    try:
        multiply(address)
    except grpc.RpcError:
        return False
    return True


def seconds_until_served(address):
    start = time.monotonic()
    wait_until(lambda: is_served(address), DEADLINE_S, "a new connection is served")
    return time.monotonic() - start


def flood(stack, daemon, count, peer="127.0.0.1"):
    """Connections of one peer that the daemon may keep or close, as long as the stack is open."""
    for _ in range(count):
        with contextlib.suppress(ConnectionError):
            stack.enter_context(open_socket(daemon.tcp, own_host=peer))


def settled_files(daemon, before, count, margin):
    """The growth of the daemon's descriptors, once it is `count` within the margin, or at the end
    of the limit: the daemon may still be accepting, and closing what it refuses."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: abs(daemon.open_files() - before - count) <= margin, PATIENCE_S, "connections accepted")
    return daemon.open_files() - before


def test_a_flood_of_connections(daemons, battery, is_sanitized):
    """Ten times as many as allowed, from one peer, which leaves no room for itself."""
    most, of_peer = 128, 64
    daemon = daemons.start("--lame-duck=1ms", "--handshake-timeout=120s", open_files=(256, 256))
    before = daemon.open_files()
    # One second, or the time of a call to a daemon with sanitizers on a busy machine.
    soon_s = 10 if is_sanitized else 1
    with Witness(daemon.tcp) as witness:
        with contextlib.ExitStack() as stack:
            flood(stack, daemon, 10 * most)
            refused = wait_until(lambda: daemon.events("connection_refused"), PATIENCE_S, "refusals")
            assert refused[0]["reason"] == "limit of one peer reached, half of --max-connections"
            assert not is_served(daemon.tcp)
            others_s = seconds_until_served(daemon.unix)
            battery.timed("flood of connections: other peers served", most=soon_s, seen=others_s, unit="s")
            kept = settled_files(daemon, before, of_peer, 16)
            battery.holds("flood of connections: descriptors", most=of_peer + 16, seen=kept)
            battery.holds("flood of connections: descriptors", least=of_peer - 16, seen=kept)
        again_s = seconds_until_served(daemon.tcp)
        battery.timed("flood of connections: accepts after release", most=soon_s, seen=again_s, unit="s")
    battery.holds("flood of connections: failed calls before it", most=0, seen=len(witness.failures))
    assert witness.served > 0


def test_connections_of_all_peers_together(daemons, battery):
    most = 32
    daemon = daemons.start(
        "--lame-duck=1ms", "--handshake-timeout=120s", f"--max-connections={most}"
    )
    before = daemon.open_files()
    with contextlib.ExitStack() as stack:
        # No peer has half of them, which is the limit of one peer.
        for peer in ("127.0.0.1", "127.0.0.2"):
            flood(stack, daemon, most // 2 - 1, peer)
        assert not daemon.events("connection_refused")
        flood(stack, daemon, 4 * most, "127.0.0.3")
        refused = wait_until(lambda: daemon.events("connection_refused"), PATIENCE_S, "refusals")
        assert refused[0]["reason"] == "--max-connections reached"
        kept = settled_files(daemon, before, most, 4)
        battery.holds("--max-connections=32: descriptors of 128 connections", most=most + 4, seen=kept)
        battery.holds("--max-connections=32: descriptors of 128 connections", least=most - 4, seen=kept)
    assert seconds_until_served(daemon.tcp) < DEADLINE_S


def test_no_descriptor_is_left(daemons, battery, is_sanitized):
    """Other files have taken all descriptors: peers are refused at once, and accepted as soon as
    one is free."""
    daemon = daemons.start("--lame-duck=1ms", "--handshake-timeout=120s", open_files=(256, 256))
    with Witness(daemon.tcp) as witness:
        tight = daemon.open_files() + 5
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (tight, 256))
        with contextlib.ExitStack() as stack:
            flood(stack, daemon, 200)
            refused = wait_until(lambda: daemon.events("connection_refused"), PATIENCE_S, "refusals")
            assert refused[0]["reason"] == "no file descriptor is left"
            # Refused at once, instead of waiting.
            with open_socket(daemon.tcp) as peer:
                peer.settimeout(DEADLINE_S)
                with contextlib.suppress(ConnectionError):
                    assert peer.recv(1) == b""
        soon_s = 10 if is_sanitized else 1
        again_s = seconds_until_served(daemon.tcp)
        battery.timed("no descriptor left: accepts after release", most=soon_s, seen=again_s, unit="s")
    battery.holds("no descriptor left: failed calls before it", most=0, seen=len(witness.failures))


def test_more_connections_than_files(gemmd, battery):
    began = time.monotonic()
    done = subprocess.run(
        [gemmd, "--listen=127.0.0.1:0", "--max-connections=1000000000"],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    took = time.monotonic() - began
    battery.holds("more connections than files: exit code", least=1, seen=done.returncode)
    battery.timed("more connections than files: refused at the start", most=10, seen=took, unit="s")
    assert done.returncode == 1
    assert "max-connections: got" in parse_log_line(done.stderr.splitlines()[-1])["reason"]
