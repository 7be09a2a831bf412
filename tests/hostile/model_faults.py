# SPDX-License-Identifier: Apache-2.0
"""The faults that the daemon of test_model.py meets while clients are at work, one after the
other."""

import contextlib
import os
import random
import resource
import signal
import socket
import threading
import time

import grpc
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from http2_peer import message, open_with_closed_windows
from metrics_page import scrape

MIB = 1 << 20
# A daemon with this memory limit is short of memory once four such answers wait. It may have as
# many connections as its descriptors allow.
LIMIT_FLAGS = [
    f"--memory-limit-bytes={300 * MIB}",
    "--max-queued-bytes=2GiB",
    "--max-connections=80",
]
LARGE = 64 * MIB
MAX_UNREAD = 6
FILL_S = 60
# Twice the reserve that the daemon leaves to gRPC and Abseil, which abort the process if they
# cannot allocate a few bytes (server/system/resources.h).
LEFT_ADDRESSES = 64 * MIB
ANY_LENGTH = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def zeros(count):
    """A few bytes that ask for a result of `count` elements."""
    request = gemm_pb2.MultiplyRequest(m=1, n=count, k=0, device="cpu")
    request.a.type = request.b.type = request.d.type = ELEMENTS["s8"].number
    return request


def gaps(count):
    """The same in lines of one element. The daemon puts it into its own memory, which takes
    addresses; other results are in memory that it shares with its workers, whose addresses it
    reserved before."""
    request = zeros(1)
    request.m = count // MIB
    request.d.leading_dimension = MIB
    return request


# The maximum time for which a round waits beyond its length.
PATIENCE_S = 300


class World:
    """The daemon and its faults: workers die and stop, connections take its descriptors, and the
    disk of its files is full; with LIMIT_FLAGS, memory and addresses run short; with a `wall_clock`,
    the clock jumps. Runs for `length_s`, and until each fault has occurred and the `tenants` have written and read `least`
    versions."""

    def __init__(self, daemon, spec, length_s, seed, least, wall_clock=None, is_limited=False):
        self.daemon = daemon
        self.spec = spec
        self.end = time.monotonic() + length_s
        self.rng = random.Random(seed)
        self.least = least
        self.tenants = []
        self.wall_clock = wall_clock
        self.is_limited = is_limited
        self.kinds = [self.kill, self.stop, self.stop, self.flood, self.fill_disk]
        if is_limited:
            self.kinds += [self.fill, self.wall_in]
        self.has_done_each = False
        self.longest_pause_s = 3 if length_s else 0.6
        self.deeds = []
        self.failures = []
        self.refused_for_memory = 0
        self.refused_for_addresses = 0
        self.lost_spans = 0

    def has_seen_all(self):
        if not self.lost_spans:
            return False
        refused = not self.is_limited or (self.refused_for_memory and self.refused_for_addresses)
        written, read = (sum(getattr(one, what) for one in self.tenants) for what in ("written", "read_ok"))
        return self.has_done_each and refused and min(written, read) >= self.least

    def is_over(self):
        now = time.monotonic()
        return bool(self.failures) or now > self.end + PATIENCE_S or (now > self.end and self.has_seen_all())

    def guarded(self, run):
        def guard():
            try:
                run()
            except Exception as error:  # noqa: BLE001: any error fails the test.
                self.failures.append(error)

        return threading.Thread(target=guard)

    def kill(self):
        for worker in self.daemon.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    def stop(self):
        for worker in self.daemon.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGSTOP)
                self.wait(0.3)
                os.kill(worker, signal.SIGCONT)

    def flood(self):
        """Silent connections take all descriptors."""
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                peer = stack.enter_context(socket.socket())
                peer.settimeout(1)
                with contextlib.suppress(OSError):
                    peer.connect(("127.0.0.1", self.daemon.port))
            self.wait(0.3)

    def fill(self):
        """Unread answers bring it to its memory limit, at which it refuses; finally it ends their
        calls itself."""
        with contextlib.suppress(OSError), contextlib.closing(open_with_closed_windows(self.daemon.unix)) as peer:
            due = time.monotonic() + FILL_S
            sent = 0
            while not (self.is_short() or self.is_over() or peer.closed or time.monotonic() > due):
                if sent < MAX_UNREAD:
                    peer.send(peer.start(), message(zeros(LARGE).SerializeToString()), end=True)
                    sent += 1
                peer.receive(0.1)
            self.wait(1)

    def wall_in(self):
        """For a moment it may map almost nothing (RLIMIT_AS): large requests are refused."""
        hard = resource.prlimit(self.daemon.pid, resource.RLIMIT_AS)[1]
        mapped = self.daemon.mapped_bytes()
        ended_before, ended = self.silent_calls(), 0
        resource.prlimit(self.daemon.pid, resource.RLIMIT_AS, (mapped + LEFT_ADDRESSES, hard))
        try:
            # For TCP the daemon knows how much was read, and ends no call of a client that reads; on
            # a busy machine this one may not read for a while.
            with grpc.insecure_channel(self.daemon.tcp, ANY_LENGTH) as channel:
                multiply = gemm_pb2_grpc.GemmStub(channel).Multiply
                requests = [(zeros(count), count) for count in (LARGE, 3 * LARGE, MIB)]
                requests.append((gaps(LARGE), LARGE))
                asked = [(multiply.future(request, timeout=120), count) for request, count in requests]
                for one, count in asked:
                    ended += self.check_zeros(one, count)
        finally:
            resource.prlimit(self.daemon.pid, resource.RLIMIT_AS, (hard, hard))
        assert ended <= self.silent_calls() - ended_before, "calls were cancelled without a reason"

    def silent_calls(self):
        return scrape(self.daemon).value("gemmd_silent_calls_total")

    def fill_disk(self):
        """For a moment none of its files may grow (RLIMIT_FSIZE), as on a full disk: products go on, and spans that
        cannot be written are counted."""

        def lost():
            return scrape(self.daemon).value("gemmd_trace_spans_total", outcome="lost")

        limits = resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE)
        before = lost()
        resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE, (1, limits[1]))
        try:
            with grpc.insecure_channel(self.daemon.tcp, ANY_LENGTH) as channel:
                due = time.monotonic() + FILL_S
                while lost() == before and not self.is_over() and time.monotonic() < due:
                    # Other faults may still have their effects.
                    with contextlib.suppress(grpc.RpcError):
                        answer = gemm_pb2_grpc.GemmStub(channel).Multiply(zeros(1), timeout=120)
                        assert answer.d.data == bytes(1)
        finally:
            resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE, limits)
        self.lost_spans += lost() - before

    def check_zeros(self, call, count):
        """Whether the daemon has ended the call."""
        refused = call.exception()
        if refused is None:
            assert call.result().d.data == bytes(count)
            return False
        if refused.code() == grpc.StatusCode.CANCELLED:
            return True
        # A connection for which gRPC has no memory is closed.
        assert refused.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE), refused
        self.refused_for_addresses += 1
        return False

    def note_refusal(self, error):
        if (error.details() or "").startswith("memory: "):
            self.refused_for_memory += 1

    def is_short(self):
        """Whether it refuses new products."""
        told = self.daemon.events("memory_pressure")
        return bool(told) and told[-1]["pressure"] in ("severe", "critical")

    def wait(self, seconds):
        due = time.monotonic() + seconds
        while time.monotonic() < due and not self.is_over():
            time.sleep(min(0.05, seconds))

    def happen(self):
        deck = []
        while not self.is_over():
            deck = deck or self.rng.sample(self.kinds, len(self.kinds))
            deed = deck.pop()
            self.deeds.append((time.monotonic(), deed.__name__))
            deed()
            # After more than five deaths in a minute the device would rest.
            is_more = self.has_done_each or time.monotonic() < self.end
            longest_s = self.longest_pause_s
            self.wait(10 if deed == self.kill and is_more else self.rng.uniform(longest_s / 3, longest_s))
            self.has_done_each |= not deck

    def jump(self):
        """Even while other faults occur."""
        rng = random.Random(self.rng.random())
        while not self.is_over():
            hours = rng.choice([-100, -5, -1, 0, 1, 5, 100])
            self.deeds.append((time.monotonic(), f"clock {hours:+} h"))
            self.wall_clock.set(hours)
            self.wait(rng.uniform(0.3, 3))

    def threads(self):
        """The threads that run beside the clients."""
        return [self.guarded(run) for run in ([self.happen, self.jump] if self.wall_clock else [self.happen])]
