# SPDX-License-Identifier: Apache-2.0
"""Clients put, multiply, get and delete while workers die, stand still and are slow, connections are
cut and descriptors are short. What is answered OK is right, each name behaves as one variable that
has one writer, and each call has one answer."""

import contextlib
import dataclasses
import math
import os
import random
import signal
import socket
import threading
import time

import grpc
import numpy as np
import pytest
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, resident_pb2, resident_pb2_grpc, tensors_pb2
from tensor_account import wait_until_nothing_is_held
from tensors import Session, by_name

SIZE = 16
BASE = 1024  # f16 has every integer below it.
CALL_S = 30
CODES = {
    grpc.StatusCode.UNAVAILABLE,  # The worker is gone, or the connection.
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # The quota, or the queue.
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.FAILED_PRECONDITION,  # The tensor was lost with its worker.
}


@dataclasses.dataclass
class Write:
    """A version that a name was given; None: it was deleted. A write that failed may come about at
    any time after its beginning, also after later ones: it was on another connection."""

    value: int | None
    began: float
    ended: float = math.inf


@dataclasses.dataclass
class Read:
    how: str
    value: int | None
    began: float
    ended: float


def check_history(writes, reads):
    """Whether the reads are those of one variable that a single writer sets: none sees a value from
    before a write that had ended when it began, or from after its own end, and none sees an older
    value than another one that had ended when it began. Writes that failed may be seen at any time
    after they began."""
    at = {write.value: i for i, write in enumerate(writes) if write.value is not None}
    seen = []
    for read in sorted(reads, key=lambda read: read.began):
        newest = max((i for i, w in enumerate(writes) if w.ended < read.began), default=-1)
        newest = max([newest, *(i for ended, i in seen if ended < read.began)])
        assert read.value is None or read.value in at, f"{read}: a value that nobody wrote"
        if read.value is not None:
            possible = [at[read.value]]
        else:
            possible = [i for i, write in enumerate(writes) if write.value is None]
        possible = [i for i in possible if writes[i].began < read.ended]
        if any(writes[i].ended == math.inf for i in possible):
            continue
        if read.value is None and newest == -1:
            continue  # Nothing was written yet.
        assert possible, f"{read}: a value from later"
        assert possible[-1] >= newest, f"{read}: version {possible[-1]}, want {newest} or later"
        if read.value is not None:
            seen.append((read.ended, possible[-1]))


def matrix_of(value):
    """The digits of a value: one in the left half of the columns, the other in the right half."""
    matrix = np.empty((SIZE, SIZE), np.float16)
    matrix[:, : SIZE // 2] = value // BASE
    matrix[:, SIZE // 2 :] = value % BASE
    return matrix


def value_of(matrix, times=1):
    """The value whose digits a matrix has; fails where it is made of several."""
    left, right = matrix[:, : SIZE // 2] / times, matrix[:, SIZE // 2 :] / times
    high, low = left.flat[0], right.flat[0]
    assert (left == high).all() and (right == low).all(), f"mixed values: {matrix}"
    return int(high) * BASE + int(low)


class Tenant:
    """A session with one writer and one reader of one name, on connections of their own."""

    def __init__(self, number, seed, world):
        self.world = world
        self.rng = random.Random(seed * 100 + number)
        self.name = f"variable {number}"
        self.writes = []
        self.reads = []
        self.calls = 0
        self.ok = 0
        self.codes = {}
        self.lock = threading.Lock()
        self.channels = {}
        self.owner = Session(self.channel("owner"))

    def channel(self, who):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
        self.channels[who] = grpc.insecure_channel(self.world.daemon.tcp, options=options)
        return self.channels[who]

    def cut(self, who):
        """Another connection in place of the one there is, whatever is under way on it."""
        self.channels[who].close()
        return self.channel(who)

    def attempt(self, call, tolerated=CODES):
        """What the call gives, or the code that it ends with: exactly one of them."""
        with self.lock:
            self.calls += 1
        try:
            result = call()
            with self.lock:
                self.ok += 1
            return result, None
        except (grpc.RpcError, ValueError) as error:
            # A channel that was closed meanwhile refuses with ValueError.
            code = error.code() if isinstance(error, grpc.RpcError) else grpc.StatusCode.CANCELLED
            with self.lock:
                self.codes[code] = self.codes.get(code, 0) + 1
            assert code in tolerated or code == grpc.StatusCode.NOT_FOUND, error
            return None, code

    def with_session(self, channel):
        """Calls on another connection than the session's own."""
        session = Session.__new__(Session)
        session.channel, session.token, session.metadata = channel, self.owner.token, self.owner.metadata
        session.stub = resident_pb2_grpc.TensorsStub(channel)
        session.gemm = gemm_pb2_grpc.GemmStub(channel)
        return session

    def write(self):
        session = self.with_session(self.channel("writer"))
        spec = self.world.spec
        version = 0
        while not self.world.is_over():
            version += 1
            if self.rng.random() < 0.1:
                write = Write(None, time.monotonic())
                self.writes.append(write)
                _, code = self.attempt(lambda: session.delete(by_name(self.name)))
                # NOT_FOUND tells that there is none, as a deletion would.
                if code in (None, grpc.StatusCode.NOT_FOUND):
                    write.ended = time.monotonic()
            else:
                write = Write(version, time.monotonic())
                self.writes.append(write)
                data = matrix_of(version).tobytes()
                _, code = self.attempt(lambda: session.put(data, spec=spec, name=self.name))
                if code is None:
                    write.ended = time.monotonic()
            if self.rng.random() < 0.03:
                session = self.with_session(self.cut("writer"))

    def read(self):
        session = self.with_session(self.channel("reader"))
        while not self.world.is_over():
            how = self.rng.choice(["get", "multiply", "multiply", "stream"])
            began = time.monotonic()
            result, code = self.attempt(lambda: getattr(self, how)(session))
            ended = time.monotonic()
            if code is None:
                for value in result:
                    self.reads.append(Read(how, value, began, ended))
            elif code == grpc.StatusCode.NOT_FOUND:
                self.reads.append(Read(how, None, began, ended))
            if self.rng.random() < 0.03:
                session = self.with_session(self.cut("reader"))

    def get(self, session):
        _, data = session.get(by_name(self.name))
        return [value_of(np.frombuffer(data, np.float16).reshape(SIZE, SIZE).astype(np.float64))]

    def request(self, request_id=""):
        ones = tensors_pb2.Operand(
            type=tensors_pb2.ELEMENT_TYPE_F16, data=np.ones((4, SIZE), np.float16).tobytes()
        )
        weights = tensors_pb2.Operand(
            type=tensors_pb2.ELEMENT_TYPE_F16, tensor=tensors_pb2.TensorPart(tensor=by_name(self.name))
        )
        device = self.rng.choice(["", "cuda:0", "cpu"])
        return gemm_pb2.MultiplyRequest(
            request_id=request_id, m=4, n=SIZE, k=SIZE, a=ones, b=weights, device=device
        )

    def multiply(self, session):
        return [self.product_of(session.multiply(self.request()))]

    def product_of(self, answer):
        matrix = np.frombuffer(answer.d.data, np.float32).reshape(4, SIZE).astype(np.float64)
        return value_of(matrix, times=SIZE)

    def stream(self, session):
        """Several products at once: each is answered once, whatever happens to others."""
        ids = [f"request {i}" for i in range(self.rng.randint(1, 6))]
        message = gemm_pb2.MultiplyStreamRequest(requests=[self.request(i) for i in ids])
        call = session.gemm.MultiplyStream(iter([message]), metadata=session.metadata, timeout=CALL_S)
        answers = [answer for response in call for answer in response.answers]
        assert sorted(answer.request_id for answer in answers) == ids, "not each has one answer"
        values = []
        for answer in answers:
            if answer.WhichOneof("outcome") == "response":
                values.append(self.product_of(answer.response))
            else:
                allowed = {code.value[0] for code in CODES} | {grpc.StatusCode.NOT_FOUND.value[0]}
                assert answer.error.code in allowed, answer.error
        return values

    def close(self):
        self.owner.close()
        for channel in self.channels.values():
            channel.close()


class World:
    """The daemon, and what happens to it."""

    def __init__(self, daemon, spec, length_s, seed):
        self.daemon = daemon
        self.spec = spec
        self.end = time.monotonic() + length_s
        self.rng = random.Random(seed)
        self.deeds = []
        self.failures = []

    def is_over(self):
        return bool(self.failures) or time.monotonic() > self.end

    def guarded(self, run):
        def guard():
            try:
                run()
            except Exception as error:  # noqa: BLE001: whatever it is, it fails the test.
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
        """Connections that say nothing take the descriptors that there are."""
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                peer = stack.enter_context(socket.socket())
                peer.settimeout(1)
                with contextlib.suppress(OSError):
                    peer.connect(("127.0.0.1", self.daemon.port))
            self.wait(0.3)

    def wait(self, seconds):
        time.sleep(max(0, min(seconds, self.end - time.monotonic())))

    def happen(self):
        while not self.is_over():
            deed = self.rng.choice([self.kill, self.stop, self.stop, self.flood])
            self.deeds.append((time.monotonic(), deed.__name__))
            deed()
            # More than five deaths in a minute, and the device would rest.
            self.wait(self.rng.uniform(2, 4) if len(self.deeds) % 4 else 12)


@pytest.mark.parametrize("is_slow", [False, True], ids=["quick", "slow"])
def test_each_name_is_one_variable(daemons, request, battery, seed, is_sanitized, monkeypatch, is_slow):
    if is_slow:
        request.getfixturevalue("has_worker_faults")
        monkeypatch.setenv("GEMMD_WORKER_SEED", str(seed))
    daemon = daemons.start(
        "--lame-duck=1ms",
        "--devices=cuda:0,cpu",
        "--metrics-listen=127.0.0.1:0",
        "--tensor-bytes=8MiB",
        "--session-tensor-bytes=64KiB",
        "--session-linger=1s",
        "--max-queued-requests=16",
        open_files=(160, 160),
    )
    spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F16, rows=SIZE, columns=SIZE)
    world = World(daemon, spec, 150 if battery.is_long else 5, seed)
    tenants = [Tenant(i, seed, world) for i in range(6 if battery.is_long else 3)]
    threads = [world.guarded(run) for tenant in tenants for run in (tenant.write, tenant.read)]
    threads.append(world.guarded(world.happen))
    for thread in threads:
        thread.start()
    world.wait((world.end - time.monotonic()) / 5)
    resident = daemon.anonymous_bytes()
    for thread in threads:
        thread.join(CALL_S + 60)
        assert not thread.is_alive(), f"seed {seed}: a call has no answer; {world.deeds}"
    grown = (daemon.anonymous_bytes() - resident) / 2**20
    for tenant in tenants:
        tenant.close()
    try:
        assert not world.failures, world.failures
        for tenant in tenants:
            check_history(tenant.writes, tenant.reads)
            assert tenant.calls == tenant.ok + sum(tenant.codes.values())
    except AssertionError:
        print(f"seed {seed}; what happened: {world.deeds}")
        for tenant in tenants:
            print(tenant.name, tenant.codes, *tenant.writes[-40:], *tenant.reads[-40:], sep="\n  ")
        raise
    reads = sum(len(tenant.reads) for tenant in tenants)
    answered = sum(tenant.ok for tenant in tenants)
    battery.holds("reads of a variable while workers die", least=10, seen=reads)
    battery.holds("calls answered OK meanwhile", least=10, seen=answered)
    if battery.is_long and not is_sanitized:
        battery.holds("growth after the first fifth", most=16, seen=grown, unit="MiB")
    wait_until_nothing_is_held(daemon)


def test_the_checker_finds_what_is_wrong():
    """A stale value, one from the future, one that comes back, and one that nobody wrote."""
    writes = [Write(1, 0, 1), Write(2, 2, 3), Write(None, 4, 5), Write(3, 6, 7)]
    good = [Read("", None, -2, -1), Read("", 1, 0.5, 0.6), Read("", 2, 2.5, 2.6), Read("", 1, 2.1, 2.9)]
    check_history(writes, good[:3])
    check_history(writes, [Read("", None, 5.1, 5.2), Read("", 3, 6.5, 9)])
    # One that failed, and came about after the next one.
    check_history([Write(1, 0), Write(2, 1, 2)], [Read("", 2, 3, 4), Read("", 1, 5, 6)])
    for bad in (
        [Read("", 1, 3.5, 3.6)],
        [Read("", 2, 0.5, 0.6)],
        [Read("", 2, 2.1, 2.2), Read("", 1, 2.5, 2.6)],
        [Read("", 7, 0, 1)],
        [Read("", None, 3.5, 3.6)],
        [Read("", None, 7.5, 8)],
    ):
        with pytest.raises(AssertionError):
            check_history(writes, bad)
