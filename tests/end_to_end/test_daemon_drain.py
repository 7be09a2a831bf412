# SPDX-License-Identifier: Apache-2.0
"""How the daemon ends: health turns first, work goes on, what was accepted is answered, what is
refused is safe to try again, and the exit code says how it went."""

import queue
import signal
import threading
import time

import grpc
import numpy as np
import pytest
from bystander import DEADLINE_S
from daemon import wait_until
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, registry_pb2, registry_pb2_grpc, tensors_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from http2_peer import Http2Peer, message, open_with_closed_windows
from product import Product, check_bytes
from streams import answers_in, joint

# Long enough for a busy machine to tell a client of it, and for a client to ask once more.
LAME_DUCK_S = 3
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
# gRPC 1.51 ends a call with CANCELLED where it arrives just as the server shuts down; like all
# others that are not in the daemon's log, it was not accepted.
REFUSALS = {UNAVAILABLE, grpc.StatusCode.CANCELLED}
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# A daemon with nothing left to do ends within this time, which is less than the 10 s that the end of
# gRPC 1.51 can take.
END_S = 8


def open_channel(address):
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


def busy_product(batch, request_id=""):
    """One that takes long for its few bytes: dot products of 100000, `batch` times the same."""
    product = Product(
        a=np.ones((1, 1, 100_000), np.float32),
        b=np.ones((1, 100_000, 1), np.float32),
        a_type="e2m1",
        b_type="e2m1",
        request_id=request_id,
    )
    request = product.request()
    request.batch = batch
    request.a.batch_stride = request.b.batch_stride = 0
    return request


def batch_of(stub, seconds):
    """The batch with which a busy product takes about so long on this machine."""
    trial = 200
    stub.Multiply(busy_product(trial), timeout=DEADLINE_S)
    took_ns = stub.Multiply(busy_product(trial), timeout=DEADLINE_S).timing.compute_ns
    return max(1, int(trial * seconds * 1e9 / took_ns))


class Worker:
    """A client that multiplies one product after the other until it is refused."""

    def __init__(self, name, address, products):
        self.name = name
        self.answered = {}  # By request id: when it was asked, on the clock of time.monotonic.
        self.failure = None
        self._address = address
        self._work = [(product.request(), product.expected_bytes()) for product in products]
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            with open_channel(self._address) as channel:
                stub = gemm_pb2_grpc.GemmStub(channel)
                for turn in range(100_000):
                    self._ask(stub, turn)
        except (grpc.RpcError, AssertionError) as failure:
            self.failure = failure

    def _ask(self, stub, turn):
        request, want = self._work[turn % len(self._work)]
        request.request_id = f"{self.name}-{turn}"
        asked = time.monotonic()
        answer = stub.Multiply(request, timeout=DEADLINE_S)
        assert answer.d.data == want
        self.answered[answer.request_id] = asked

    def finish(self):
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


def watch_until_not_serving(channel):
    """When health told NOT_SERVING, on the clock of time.monotonic."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service="gemmd.v1.Gemm"), timeout=DEADLINE_S
    )
    for answer in watch:
        if answer.status == NOT_SERVING:
            watch.cancel()
            return time.monotonic()
    raise AssertionError("the watch ended without NOT_SERVING")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT] + 3 * [signal.SIGTERM])
def test_under_load(daemons, number):
    """Clients that never stop asking: no answer is lost, and refusals are safe to try again."""
    daemon = daemons.start(f"--lame-duck={LAME_DUCK_S}s", "--log-level=debug")
    sizes = [(3, 5, 7), (64, 64, 64), (200, 300, 150), (500, 500, 500)]
    products = [Product(a=np.ones((1, m, k)), b=np.ones((1, k, n))) for m, n, k in sizes]
    workers = [
        Worker(f"w{i}", daemon.addresses[i % 2], products[i:] + products[:i]) for i in range(4)
    ]
    with open_channel(daemon.tcp) as channel:
        wait_until(lambda: min(len(w.answered) for w in workers) >= 5, DEADLINE_S, "load")
        told = queue.Queue()
        watcher = threading.Thread(target=lambda: told.put(watch_until_not_serving(channel)))
        watcher.start()
        signalled = time.monotonic()
        daemon.signal(number)
        not_serving = told.get(timeout=DEADLINE_S)
        watcher.join(DEADLINE_S)
    code = daemon.wait(LAME_DUCK_S + END_S)
    for worker in workers:
        worker.finish()

    assert code == 0
    assert not_serving - signalled < LAME_DUCK_S
    last_asked = max(max(worker.answered.values()) for worker in workers)
    assert last_asked > not_serving, "worked on after health had turned"
    for worker in workers:
        assert isinstance(worker.failure, grpc.RpcError), worker.failure
        assert worker.failure.code() in REFUSALS, worker.failure
    answered = set().union(*(worker.answered for worker in workers))
    accepted = {line["id"]: line["status"] for line in daemon.events("request")}
    assert set(accepted.values()) == {"OK"}
    assert set(accepted) == answered, "each accepted request, and no other, is answered"


def test_streams_under_load(daemons):
    """On a stream, what was accepted is answered and what comes later is told UNAVAILABLE.

    Another peer, which does not read its answer, holds up the end of the drain until the stream has ended:
    100 ms after it the daemon cuts what is open, and a busy machine may keep a client from a processor for
    longer."""
    daemon = daemons.start("--lame-duck=1ms", "--grace=50s", "--log-level=debug")
    product = Product(a=np.ones((1, 64, 64)), b=np.ones((1, 64, 64)))
    outcomes = {}
    with open_with_closed_windows(daemon.tcp) as holder, open_channel(daemon.tcp) as channel:
        request = product.request()
        request.request_id = "held"
        holder.send(holder.start(), message(request.SerializeToString()), end=True)
        wait_until(lambda: daemon.events("request"), DEADLINE_S, "the answer that is not read")

        def requests():
            for turn in range(100_000):
                if "error" in outcomes.values():
                    return
                request = product.request()
                request.request_id = str(turn)
                yield request

        stub = gemm_pb2_grpc.GemmStub(channel)
        for answer in answers_in(stub.MultiplyStream(joint(requests()), timeout=DEADLINE_S)):
            outcomes[answer.request_id] = answer.WhichOneof("outcome")
            if len(outcomes) == 100:
                daemon.signal(signal.SIGTERM)
            if answer.WhichOneof("outcome") == "error":
                assert answer.error.code == UNAVAILABLE.value[0], answer.error
            else:
                check_bytes(answer.response.d, product)
    assert daemon.wait() == 0
    assert set(outcomes.values()) == {"response", "error"}
    answered = {name for name, outcome in outcomes.items() if outcome == "response"}
    assert answered | {"held"} == {line["id"] for line in daemon.events("request")}


def test_lame_duck_still_works_for_newcomers(daemons):
    daemon = daemons.start("--lame-duck=3s")
    with open_channel(daemon.tcp) as channel:
        daemon.signal(signal.SIGTERM)
        watch_until_not_serving(channel)
    with open_channel(daemon.tcp) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "gemmd.v1.Gemm", "gemmd.v1.Registry"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert health.Check(request, timeout=DEADLINE_S).status == NOT_SERVING
        product = Product(a=np.ones((1, 4, 4)), b=np.ones((1, 4, 4)))
        stub = gemm_pb2_grpc.GemmStub(channel)
        check_bytes(stub.Multiply(product.request(), timeout=DEADLINE_S).d, product)
        registry = registry_pb2_grpc.RegistryStub(channel)
        info = registry.GetServerInfo(registry_pb2.GetServerInfoRequest(), timeout=DEADLINE_S)
        assert not info.draining
    assert daemon.wait() == 0


def test_a_second_signal_skips_the_lame_duck(daemons):
    daemon = daemons.start("--lame-duck=60s")
    daemon.signal(signal.SIGINT)
    wait_until(lambda: daemon.events("lame_duck"), DEADLINE_S, "the lame duck's time")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(END_S) == 0


# Enough for four products of three seconds each, even where the machine is several times as slow as when
# they were sized.
LOADED_S = 120


@pytest.fixture
def loaded(daemons):
    """Starts a daemon in which one product runs and three wait for it: long enough for what a test does
    then, on a machine that is less busy by then, too."""

    def start(*flags):
        daemon = daemons.start("--log-level=debug", *flags)
        channel = open_channel(daemon.tcp)
        stub = gemm_pb2_grpc.GemmStub(channel)
        batch = batch_of(stub, seconds=3)
        calls = [
            stub.Multiply.future(busy_product(batch, f"busy-{i}"), timeout=LOADED_S)
            for i in range(4)
        ]
        registry = registry_pb2_grpc.RegistryStub(channel)

        def is_loaded():
            request = registry_pb2.ListDevicesRequest()
            device = registry.ListDevices(request, timeout=DEADLINE_S).devices[0]
            return device.queued_requests == 3

        wait_until(is_loaded, DEADLINE_S, "one runs, three wait")
        channels.append(channel)
        return daemon, calls

    channels = []
    yield start
    for channel in channels:
        channel.close()


def check_all_were_told(daemon, calls, limit_s=60):
    """The three that waited, and the one that ran, which is aborted; a device may not let go of it
    before the daemon ends, and its connection ends then. The log is complete once the daemon has ended,
    whose exit code tells that products were left."""
    assert {call.code() for call in calls} == {UNAVAILABLE}
    assert daemon.wait(limit_s) == 1
    statuses = [line["status"] for line in daemon.events("request") if line["id"]]
    assert set(statuses) == {"UNAVAILABLE"}
    assert len(statuses) in (3, 4)


def test_the_grace_is_for_what_was_accepted(loaded):
    daemon, calls = loaded("--lame-duck=1ms", f"--grace={LOADED_S}s")
    daemon.signal(signal.SIGTERM)
    assert {call.code() for call in calls} == {grpc.StatusCode.OK}
    assert daemon.wait() == 0


def test_after_the_grace_nothing_goes_on(loaded):
    daemon, calls = loaded("--lame-duck=1ms", "--grace=1ms")
    daemon.signal(signal.SIGTERM)
    check_all_were_told(daemon, calls)
    assert daemon.events("stop")[0]["code"] == "DEADLINE_EXCEEDED"


def test_a_second_signal_skips_lame_duck_and_grace(loaded):
    daemon, calls = loaded("--lame-duck=50s", "--grace=50s")
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: daemon.events("lame_duck"), DEADLINE_S, "the lame duck's time")
    daemon.signal(signal.SIGINT)
    check_all_were_told(daemon, calls, END_S + 10)


def test_a_second_signal_during_the_grace_skips_it(loaded):
    daemon, calls = loaded("--lame-duck=1ms", "--grace=50s")
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: daemon.events("drain"), DEADLINE_S, "the drain")
    daemon.signal(signal.SIGTERM)
    check_all_were_told(daemon, calls, END_S + 10)
    assert daemon.events("stop")[0]["code"] == "DEADLINE_EXCEEDED"


def test_slow_readers_get_their_answers(daemons):
    """An answer of 16 MB of which the reader has taken the beginning when the signal comes."""
    daemon = daemons.start("--lame-duck=1ms", "--grace=50s")
    request = gemm_pb2.MultiplyRequest(m=4000, n=1000, k=0)
    request.a.type = request.b.type = tensors_pb2.ELEMENT_TYPE_F32
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start()
        peer.send(stream, message(request.SerializeToString()), end=True)
        wait_until(lambda: peer.receive(1) and peer.answers[stream].data, 20, "the beginning")
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: daemon.events("drain"), DEADLINE_S, "the drain")
        answer = peer.wait(stream)
    assert answer.status == 0
    response = gemm_pb2.MultiplyResponse.FromString(bytes(answer.data[5:]))
    assert response.d.data == bytes(16_000_000)
    assert daemon.wait() == 0


def test_idle_streams_do_not_hold_up_the_end(daemons):
    """A watch of health and a stream without requests are nothing to wait for."""
    daemon = daemons.start("--lame-duck=1ms", "--grace=20s")
    with open_channel(daemon.tcp) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        never = queue.Queue()
        stub = gemm_pb2_grpc.GemmStub(channel)
        stream = answers_in(
            stub.MultiplyStream(joint(iter(never.get, None)), timeout=DEADLINE_S)
        )
        never.put(gemm_pb2.MultiplyRequest())
        assert next(stream).error.message
        daemon.signal(signal.SIGTERM)
        try:
            assert daemon.wait(END_S) == 0
        finally:
            never.put(None)
