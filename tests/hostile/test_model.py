# SPDX-License-Identifier: Apache-2.0
"""Clients put, multiply, get and delete while workers die, stop and are slow, connections are
closed, descriptors and memory run short and the wall clock jumps. Answers that are OK are right,
each name behaves like one variable with one writer, and each call has one answer."""

import math
import random
import threading
import time

import grpc
import numpy as np
import pytest
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, resident_pb2, resident_pb2_grpc, tensors_pb2
from history import Read, Write, check_history
from model_faults import LIMIT_FLAGS, PATIENCE_S, World
from tensor_account import wait_until_nothing_is_held
from tensors import Session, by_name

SIZE = 16
BASE = 1024  # f16 has every integer below it.
SESSION_BYTES = 1 << 20
TOO_MUCH = np.ones((1024, 1024), np.float16).tobytes()
TOO_MUCH_SPEC = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F16, rows=1024, columns=1024)
CALL_S = 120
ROUND_S = 60
SANITIZED_ROUND_S = 5
MIN_SAMPLES = 4
SETTLE_S = 3
CODES = {
    grpc.StatusCode.UNAVAILABLE,  # The worker is gone, or the connection.
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # The quota, the queue, or the memory.
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.FAILED_PRECONDITION,  # The tensor was lost with its worker.
}


def matrix_of(value):
    """The digits of a value: one in the left half of the columns, the other in the right half."""
    matrix = np.empty((SIZE, SIZE), np.float16)
    matrix[:, : SIZE // 2] = value // BASE
    matrix[:, SIZE // 2 :] = value % BASE
    return matrix


def value_of(matrix, times=1):
    """The value whose digits a matrix has; fails if it is a mixture of several."""
    left, right = matrix[:, : SIZE // 2] / times, matrix[:, SIZE // 2 :] / times
    high, low = left.flat[0], right.flat[0]
    assert (left == high).all() and (right == low).all(), f"mixed values: {matrix}"
    return int(high) * BASE + int(low)


class Tenant:
    """A session with one writer and one reader of one name, on separate connections."""

    def __init__(self, number, seed, world):
        self.world = world
        self.rng = random.Random(seed * 100 + number)
        self.name = f"variable {number}"
        self.writes = []
        self.reads = []
        self.written = 0
        self.read_ok = 0
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
        """Replaces a connection by a new one, whatever is in progress on it."""
        self.channels[who].close()
        return self.channel(who)

    def attempt(self, call, tolerated=CODES):
        """The result of the call, or the code with which it ends: exactly one of them."""
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
            if isinstance(error, grpc.RpcError):
                self.world.note_refusal(error)
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
            if self.rng.random() < 0.03:
                _, code = self.attempt(lambda: session.put(TOO_MUCH, spec=TOO_MUCH_SPEC, name=self.name))
                assert code is not None, "more than the session may have is taken"
            if self.rng.random() < 0.1:
                write = Write(None, time.monotonic())
                self.writes.append(write)
                _, code = self.attempt(lambda: session.delete(by_name(self.name)))
                # NOT_FOUND shows that there is none, like a deletion.
                if code in (None, grpc.StatusCode.NOT_FOUND):
                    write.ended = time.monotonic()
            else:
                write = Write(version, time.monotonic())
                self.writes.append(write)
                data = matrix_of(version).tobytes()
                _, code = self.attempt(lambda: session.put(data, spec=spec, name=self.name))
                if code is None:
                    write.ended = time.monotonic()
                    self.written += 1
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
                self.read_ok += len(result)
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


def run_round(world, tenants, seed):
    """Runs tenants until the world ends, and checks what they saw. Returns how many versions were
    written and read."""
    tenants = [Tenant(i, seed, world) for i in range(tenants)]
    world.tenants = tenants
    threads = [world.guarded(run) for tenant in tenants for run in (tenant.write, tenant.read)]
    threads += world.threads()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, world.end - time.monotonic()) + PATIENCE_S + 2 * CALL_S)
        assert not thread.is_alive(), f"seed {seed}: a call has no answer; {world.deeds}"
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
    written = [write for tenant in tenants for write in tenant.writes if write.ended < math.inf]
    read = [read for tenant in tenants for read in tenant.reads]
    return [sum(one.value is not None for one in those) for those in (written, read)]


def settled_bytes(daemon):
    """The memory that stays: devices keep memory for the next product for a second."""
    least = daemon.anonymous_bytes()
    due = time.monotonic() + SETTLE_S
    while time.monotonic() < due:
        time.sleep(0.2)
        least = min(least, daemon.anonymous_bytes())
    return least


def slope_an_hour(samples):
    """The slope of the line through them, by least squares, in their unit per hour."""
    hours, values = zip(*((at / 3600, value) for at, value in samples))
    middle, level = sum(hours) / len(hours), sum(values) / len(values)
    spread = sum((hour - middle) ** 2 for hour in hours)
    return sum((h - middle) * (v - level) for h, v in zip(hours, values)) / spread


class Model:
    """A daemon with clients at work."""

    def __init__(self, daemons, request, monkeypatch, is_sanitized, is_slow, is_limited):
        if is_slow:
            request.getfixturevalue("has_worker_faults")
            monkeypatch.setenv("GEMMD_WORKER_SEED", str(request.getfixturevalue("seed")))
        # A GPU has its driver's memory, too, and a sanitizer its own.
        self.is_limited = is_limited and not is_sanitized and not request.config.getoption("--worker")
        self.clock = None if is_sanitized else request.getfixturevalue("wall_clock")
        self.daemon = daemons.start(
            "--lame-duck=1ms",
            "--devices=cuda:0,cpu",
            "--metrics-listen=127.0.0.1:0",
            f"--tensor-bytes={16 * SESSION_BYTES}:{SESSION_BYTES}",
            "--session-linger=1s",
            "--max-queued-requests=16",
            f"--traces={request.getfixturevalue('tmp_path') / 'traces'}:1",
            *(LIMIT_FLAGS if self.is_limited else []),
            open_files=(160, 160),
            environment=self.clock.environment if self.clock else {},
        )
        self.least = 10 if is_sanitized else 100
        self.written = self.read = self.refused = self.walled = self.lost_spans = 0

    def run_round(self, length_s, tenants, seed):
        spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F16, rows=SIZE, columns=SIZE)
        world = World(self.daemon, spec, length_s, seed, self.least, self.clock, self.is_limited)
        written, read = run_round(world, tenants, seed)
        self.written, self.read = self.written + written, self.read + read
        self.refused, self.walled = self.refused + world.refused_for_memory, self.walled + world.refused_for_addresses
        self.lost_spans += world.lost_spans
        wait_until_nothing_is_held(self.daemon)

    def hold(self, battery):
        failed = self.daemon.events("life_check_failed")
        battery.timed("checks of life that failed", most=0, seen=len(failed))
        battery.holds("versions written while workers die", least=self.least, seen=self.written)
        battery.holds("versions read meanwhile", least=self.least, seen=self.read)
        battery.holds("spans lost while the disk is full", least=1, seen=self.lost_spans)
        if self.is_limited:
            battery.holds("calls refused while memory is short", least=1, seen=self.refused)
            battery.holds("calls refused while addresses are short", least=1, seen=self.walled)


KINDS = pytest.mark.parametrize("is_slow", [False, True], ids=["quick", "slow"])


@KINDS
def test_each_name_is_one_variable(daemons, request, battery, seed, is_sanitized, monkeypatch, is_slow):
    """Until each fault has occurred once."""
    model = Model(daemons, request, monkeypatch, is_sanitized, is_slow, is_limited=not is_slow)
    model.run_round(0, 3, seed)
    model.hold(battery)


@pytest.mark.exhaustive
@KINDS
def test_each_name_is_one_variable_for_minutes(
    daemons, request, battery, seed, is_sanitized, monkeypatch, is_slow
):
    model = Model(daemons, request, monkeypatch, is_sanitized, is_slow, is_limited=True)
    began = time.monotonic()
    samples = []
    while not samples or time.monotonic() - began < battery.model_s:
        length_s = ROUND_S if not is_sanitized else SANITIZED_ROUND_S
        model.run_round(length_s, 6 if battery.is_long else 3, seed + len(samples))
        samples.append((time.monotonic() - began, settled_bytes(model.daemon) / 2**20))
    model.hold(battery)
    # Memory that is kept permanently is there after the first rounds.
    later = samples[len(samples) // 5 :]
    if len(later) >= MIN_SAMPLES and not is_sanitized:
        grown = later[-1][1] - later[0][1]
        battery.timed("growth after the first fifth", most=16, seen=grown, unit="MiB")
        if later[-1][0] - later[0][0] >= 3600:
            battery.timed("slope of what is resident", most=1, seen=slope_an_hour(later), unit="MiB an hour")


def test_the_slope_is_that_of_a_line(battery):
    line = [(at, 100 + 2.5 * at / 3600) for at in range(0, 7200, 60)]
    battery.holds("slope of 2.5 an hour", most=1e-9, seen=abs(slope_an_hour(line) - 2.5))
    noise = [(at, value + (-1) ** i) for i, (at, value) in enumerate(line)]
    battery.holds("slope of 2.5 an hour with noise", most=0.1, seen=abs(slope_an_hour(noise) - 2.5))


def test_the_checker_finds_what_is_wrong(battery):
    """A stale value, one from the future, one that returns, and one that nobody wrote."""
    writes = [Write(1, 0, 1), Write(2, 2, 3), Write(None, 4, 5), Write(3, 6, 7)]
    good = [Read("", None, -2, -1), Read("", 1, 0.5, 0.6), Read("", 2, 2.5, 2.6), Read("", 1, 2.1, 2.9)]
    check_history(writes, good[:3])
    check_history(writes, [Read("", None, 5.1, 5.2), Read("", 3, 6.5, 9)])
    # A failed write that took effect after the next one.
    check_history([Write(1, 0), Write(2, 1, 2)], [Read("", 2, 3, 4), Read("", 1, 5, 6)])
    wrong = (
        [Read("", 1, 3.5, 3.6)],
        [Read("", 2, 0.5, 0.6)],
        [Read("", 2, 2.1, 2.2), Read("", 1, 2.5, 2.6)],
        [Read("", 7, 0, 1)],
        [Read("", None, 3.5, 3.6)],
        [Read("", None, 7.5, 8)],
    )
    for bad in wrong:
        with pytest.raises(AssertionError):
            check_history(writes, bad)
    battery.holds("histories of tensors that are wrong: found", least=6, seen=len(wrong))
