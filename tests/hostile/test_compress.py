# SPDX-License-Identifier: Apache-2.0
"""Clients that start compressions and do not wait for them. The resources are released, no call
holds a thread of gRPC's, and others are served meanwhile."""

import os
import signal
import subprocess
import sys
import time

import grpc
import metrics_page
from daemon import PATIENCE_S, wait_until
from gemmd.v1 import resident_pb2
from tensors import MIB, Session, by_handle

DEADLINE_S = PATIENCE_S
GEMMD_FLAGS = [
    "--devices=cpu",
    "--max-queued-bytes=16MiB",
    "--metrics-listen=127.0.0.1:0",
    "--tensor-bytes=512MiB:256MiB",
    "--session-linger=0.5s",
]
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

# Runs in a separate process and is killed in the middle of it.
VICTIM = """
import sys, threading
sys.path[:0] = sys.argv[2:]
import grpc
from gemmd.v1 import resident_pb2
from tensors import MIB, Session, by_name

session = Session(grpc.insecure_channel(sys.argv[1]))
session.put(bytes(32 * MIB), name="large", hashed=False)
request = resident_pb2.CompressRequest(tensor=by_name("large"))
calls = [session.stub.Compress.future(request, metadata=session.metadata) for _ in range(4)]
print("ready", flush=True)
threading.Event().wait()
"""


def future(session, tensor):
    request = resident_pb2.CompressRequest(tensor=tensor)
    return session.stub.Compress.future(request, metadata=session.metadata, timeout=DEADLINE_S)


def tensor_bytes(daemon):
    used = [used for _, used in metrics_page.scrape(daemon).with_labels("gemmd_tensor_bytes")]
    assert used, "the metrics lack the bytes of tensors"
    return sum(used)


def wait_until_nothing_is_left(daemon):
    wait_until(lambda: tensor_bytes(daemon) == 0, DEADLINE_S, "the room of all tensors is free")


def room_without_results(session, tensor):
    """The free room of the session. Results of compressions that had ended before they were
    cancelled are deleted, and are gone at the next look."""
    listed = session.list()
    for other in listed.tensors:
        if other.handle != tensor.handle:
            session.delete(by_handle(other))
    return listed.session_bytes


def test_cancelled_compressions_leave_nothing(attacked, battery, is_sanitized, is_timed):
    """Started and cancelled repeatedly, while others are served."""
    daemon = attacked.daemon
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        large = by_handle(session.put(bytes(32 * MIB), name="large", hashed=False))
        used = session.settled().session_bytes
        least = float("inf")
        resident = daemon.rss_bytes()
        rounds = 100 if battery.is_long else 20 if is_timed else 5
        for _ in range(rounds):
            calls = [future(session, large) for _ in range(4)]
            wait_until(
                lambda: session.list().session_bytes > used, DEADLINE_S, "they have begun"
            )
            attacked.check_served()
            for call in calls:
                call.cancel()
            began = time.monotonic()
            wait_until(
                lambda: room_without_results(session, large) == used, DEADLINE_S, "their room is free"
            )
            least = min(least, time.monotonic() - began)
        kept = session.list().session_bytes - used
        grown = (daemon.rss_bytes() - resident) / MIB
    wait_until_nothing_is_left(daemon)
    what = f"{4 * rounds} compressions cancelled"
    battery.holds(f"{what}: bytes kept", most=0, seen=kept)
    if not is_sanitized:
        # One of them has at most 20 MiB of results.
        battery.timed(f"{what}: growth", most=100, seen=grown, unit="MiB")
    limit = 2 if is_sanitized else 0.2
    battery.timed("4 cancelled compressions of 32 MiB", most=limit, seen=least, unit="s")


def test_clients_killed_meanwhile_leave_nothing(attacked, request, battery):
    daemon = attacked.daemon
    paths = [str(os.path.dirname(sys.modules["tensors"].__file__)), request.config.stubs]
    rounds = 30 if battery.is_long else 3
    for _ in range(rounds):
        command = [sys.executable, "-c", VICTIM, daemon.unix, *paths]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
            assert victim.stdout.readline() == b"ready\n"
            victim.send_signal(signal.SIGKILL)
    began = time.monotonic()
    wait_until_nothing_is_left(daemon)
    seen = time.monotonic() - began
    battery.holds(f"{rounds} clients killed: bytes of tensors", most=0, seen=tensor_bytes(daemon))
    battery.timed(f"{rounds} clients killed: their room", most=20, seen=seen, unit="s")


ROUNDS = 3
MAX_ROUNDS = 100


def test_many_at_once_are_refused(attacked, battery, is_sanitized, is_timed):
    """And no call holds a thread, however large its tensor is."""
    daemon = attacked.daemon
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        large = by_handle(session.put(bytes(4 * MIB), name="large", hashed=False))
        longest = float("inf")
        most = 0
        # On a busy machine a thread may be preempted in the middle, but not every time; and the
        # daemon may finish the first before this process sends the last, so there are more rounds
        # if needed.
        for turn in range(MAX_ROUNDS):
            before = metrics_page.scrape(daemon)
            calls = [future(session, large) for _ in range(30)]
            codes = [call.code() for call in calls]
            assert set(codes) <= {grpc.StatusCode.OK, RESOURCE_EXHAUSTED}
            for call in calls:
                if call.code() == grpc.StatusCode.OK:
                    session.delete(by_handle(call.result()))
            refused = [call.details() for call in calls if call.code() != grpc.StatusCode.OK]
            assert all("compress: got 8 tensors at once" in text for text in refused), refused
            most = max(most, len(refused))
            longest = min(longest, longest_ms(metrics_page.scrape(daemon), before))
            if most > 0 and turn + 1 >= (ROUNDS if is_timed else 1):
                break
    wait_until_nothing_is_left(daemon)
    battery.holds("30 compressions at once: refused", least=1, seen=most)
    limit = 20 if is_sanitized else 5
    battery.timed("a call of Compress", most=limit, seen=longest, unit="ms")


def longest_ms(page, before):
    """The upper bound of the longest bucket to which Compress has added since."""
    buckets = []
    for labels, count in page.with_labels("gemmd_handler_seconds_bucket"):
        if labels["method"] == "Compress":
            key = ("gemmd_handler_seconds_bucket", frozenset(labels.items()))
            buckets.append((float(labels["le"]), count - before.samples.get(key, 0)))
    buckets.sort()
    total = buckets[-1][1]
    assert total > 0
    return 1e3 * next(bound for bound, count in buckets if count == total)
