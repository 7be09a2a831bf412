# SPDX-License-Identifier: Apache-2.0
"""How the daemon shuts down: health turns first, work continues, accepted requests are answered,
refused ones are safe to retry, and the exit code shows how it went."""

import contextlib
import queue
import signal
import threading
import time

import grpc
import h2.settings
import numpy as np
import pytest
from bystander import DEADLINE_S
from daemon import wait_until
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, registry_pb2, registry_pb2_grpc, tensors_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from http2_peer import Http2Peer, message, open_with_closed_windows
from metrics_page import scrape
from product import ENDLESS_BATCH, ENDLESS_FLAGS, Product, busy_product, check_bytes
from streams import answers_in, joint

# Longer than any test: a second signal ends it.
ENDLESS = "3h"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# On an idle machine, a daemon with nothing left to do ends within this time, which is less than the
# 10 s that gRPC 1.51's shutdown can take.
END_S = 8


def open_channel(address):
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


class Worker:
    """A client that multiplies one product after the other until it is refused."""

    def __init__(self, name, address, products):
        self.name = name
        self.answered = {}  # By request id: the number of its turn.
        self.turn = 0  # The last turn begun.
        self.failure = None
        self._address = address
        self._work = [(product.request(), product.expected_bytes()) for product in products]
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            with open_channel(self._address) as channel:
                stub = gemm_pb2_grpc.GemmStub(channel)
                for turn in range(1, 1_000_000):
                    self._ask(stub, turn)
        except (grpc.RpcError, AssertionError) as failure:
            self.failure = failure

    def _ask(self, stub, turn):
        request, want = self._work[turn % len(self._work)]
        request.request_id = f"{self.name}-{turn}"
        self.turn = turn
        answer = stub.Multiply(request, timeout=DEADLINE_S)
        assert answer.d.data == want
        self.answered[answer.request_id] = turn

    def has_answered_after(self, turn):
        """Whether a product requested after that turn was answered."""
        assert self.failure is None, self.failure
        return max(list(self.answered.values()), default=0) > turn

    def finish(self):
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


def watch_until_not_serving(channel):
    """Returns once health has reported NOT_SERVING."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service="gemmd.v1.Gemm"), timeout=DEADLINE_S
    )
    for answer in watch:
        if answer.status == NOT_SERVING:
            watch.cancel()
            return
    raise AssertionError("the watch ended without NOT_SERVING")


def start_workers(daemon):
    """Clients that never stop asking, each of which has had answers."""
    sizes = [(3, 5, 7), (64, 64, 64), (200, 300, 150), (500, 500, 500)]
    products = [Product(a=np.ones((1, m, k)), b=np.ones((1, k, n))) for m, n, k in sizes]
    workers = [
        Worker(f"w{i}", daemon.addresses[i % 2], products[i:] + products[:i]) for i in range(4)
    ]
    wait_until(lambda: all(w.has_answered_after(4) for w in workers), DEADLINE_S, "load")
    return workers


@contextlib.contextmanager
def held_up(daemon):
    """The daemon has computed a product whose answer is read only when the block ends; until then a drain
    does not end."""
    request = Product(a=np.ones((1, 64, 64)), b=np.ones((1, 64, 64))).request()
    request.request_id = "held"
    with open_with_closed_windows(daemon.tcp) as holder:
        stream = holder.start()
        holder.send(stream, message(request.SerializeToString()), end=True)
        wait_until(
            lambda: "held" in {line["id"] for line in daemon.events("request")},
            DEADLINE_S,
            "the answer that is not read",
        )
        yield
        holder.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        holder.flush()
        assert holder.wait(stream).status == 0


AGAIN = [pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive, id=f"again{i}") for i in range(3)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, *AGAIN])
def test_under_load(daemons, timed, number):
    """No answer is lost, and refusals are safe to retry: all are UNAVAILABLE, never CANCELLED. A peer holds up
    the end of the drain until all are refused, so that it does not matter how fast the clients are."""
    daemon = daemons.start(
        "--devices=cpu", "--lame-duck=100ms", "--grace=100s", "--log-level=debug", "--send-timeout=100s"
    )
    workers = start_workers(daemon)
    with held_up(daemon):
        signalled = time.monotonic()
        daemon.signal(number)
        for worker in workers:
            worker.finish()
    code = daemon.wait()
    timed("the end of a daemon under load", most=END_S, seen=time.monotonic() - signalled, unit="s")

    assert code == 0
    for worker in workers:
        assert isinstance(worker.failure, grpc.RpcError), worker.failure
        assert worker.failure.code() == UNAVAILABLE, worker.failure
    answered = set().union({"held"}, *(worker.answered for worker in workers))
    accepted = {line["id"]: line["status"] for line in daemon.events("request")}
    assert set(accepted.values()) == {"OK"}
    assert set(accepted) == answered, "each accepted request, and no other, is answered"


def test_calls_after_the_drain_began(daemons):
    """Once the log says so, on new connections and on old ones."""
    daemon = daemons.start(
        "--devices=cpu", "--lame-duck=1ms", "--grace=100s", "--log-level=debug", "--send-timeout=100s"
    )
    product = Product(a=np.ones((1, 4, 4)), b=np.ones((1, 4, 4)))
    with held_up(daemon), contextlib.ExitStack() as stack:
        old = [stack.enter_context(open_channel(address)) for address in daemon.addresses]
        for channel in old:
            check_bytes(gemm_pb2_grpc.GemmStub(channel).Multiply(product.request(), timeout=DEADLINE_S).d, product)
        daemon.signal(signal.SIGTERM)
        daemon.awaited_events("drain")
        for channel in [*old, *(stack.enter_context(open_channel(address)) for address in daemon.addresses)]:
            with pytest.raises(grpc.RpcError) as refused:
                gemm_pb2_grpc.GemmStub(channel).Multiply(product.request(), timeout=DEADLINE_S)
            assert (refused.value.code(), refused.value.details()) == (UNAVAILABLE, "the server is draining")
    assert daemon.wait() == 0


def test_streams_under_load(daemons):
    """On a stream, what was accepted is answered and what comes later is told UNAVAILABLE.

    Another peer, which does not read its answer, holds up the end of the drain until the stream has ended:
    100 ms after it the daemon cuts what is open, and a busy machine may keep a client from a processor for
    longer."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", "--grace=100s", "--log-level=debug")
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


def test_work_goes_on_after_health_has_turned(daemons, timed):
    """For existing clients and for new ones."""
    daemon = daemons.start("--devices=cpu", f"--lame-duck={ENDLESS}")
    workers = start_workers(daemon)
    with open_channel(daemon.tcp) as channel:
        signalled = time.monotonic()
        daemon.signal(signal.SIGTERM)
        watch_until_not_serving(channel)
        timed("health turns under load", most=3, seen=time.monotonic() - signalled, unit="s")
    for worker in workers:
        turn = worker.turn
        wait_until(lambda w=worker, t=turn: w.has_answered_after(t), DEADLINE_S, "work goes on")
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
    daemon.signal(signal.SIGTERM)
    for worker in workers:
        worker.finish()
        assert isinstance(worker.failure, grpc.RpcError), worker.failure
    assert daemon.wait() in (0, 1), "the second signal gives what was accepted no time"


def test_a_second_signal_skips_the_lame_duck(daemons, timed):
    daemon = daemons.start("--devices=cpu", f"--lame-duck={ENDLESS}")
    daemon.signal(signal.SIGINT)
    wait_until(lambda: daemon.events("lame_duck"), DEADLINE_S, "the lame duck's time")
    signalled = time.monotonic()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    timed("the end of an idle daemon", most=END_S, seen=time.monotonic() - signalled, unit="s")


@pytest.fixture
def loaded(daemons):
    """Starts a daemon in which one product runs and three wait for it."""

    def start(*flags, batch=ENDLESS_BATCH):
        daemon = daemons.start(*ENDLESS_FLAGS, "--log-level=debug", "--metrics-listen=127.0.0.1:0", *flags)
        channel = open_channel(daemon.tcp)
        stub = gemm_pb2_grpc.GemmStub(channel)
        calls = [stub.Multiply.future(busy_product(batch, f"busy-{i}")) for i in range(4)]
        wait_until(
            lambda: scrape(daemon).value("gemmd_admissions_total") == 4, DEADLINE_S, "all are accepted"
        )
        channels.append(channel)
        return daemon, calls

    channels = []
    yield start
    for channel in channels:
        channel.close()


def check_all_were_told(daemon, calls):
    """The three that waited, and the running one, which is aborted. A device may not release it
    before the daemon ends; then its connection ends. The log is complete once the daemon has ended,
    and the exit code says that products were left."""
    assert {call.code() for call in calls} == {UNAVAILABLE}
    assert daemon.wait() == 1
    statuses = [line["status"] for line in daemon.events("request") if line["id"]]
    assert set(statuses) == {"UNAVAILABLE"}
    assert len(statuses) in (3, 4)


def test_the_grace_is_for_what_was_accepted(loaded):
    daemon, calls = loaded("--lame-duck=1ms", f"--grace={ENDLESS}", batch=500)
    daemon.signal(signal.SIGTERM)
    assert {call.code() for call in calls} == {grpc.StatusCode.OK}
    assert daemon.wait() == 0
    assert len([line for line in daemon.events("request") if line["id"]]) == 4


def test_after_the_grace_nothing_goes_on(loaded):
    daemon, calls = loaded("--lame-duck=1ms", "--grace=1ms")
    daemon.signal(signal.SIGTERM)
    check_all_were_told(daemon, calls)
    assert daemon.events("stop")[0]["code"] == "DEADLINE_EXCEEDED"


def test_a_second_signal_skips_lame_duck_and_grace(loaded, timed):
    daemon, calls = loaded(f"--lame-duck={ENDLESS}", f"--grace={ENDLESS}")
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: daemon.events("lame_duck"), DEADLINE_S, "the lame duck's time")
    signalled = time.monotonic()
    daemon.signal(signal.SIGINT)
    check_all_were_told(daemon, calls)
    timed("the end of a loaded daemon", most=END_S + 10, seen=time.monotonic() - signalled, unit="s")


def test_a_second_signal_during_the_grace_skips_it(loaded, timed):
    daemon, calls = loaded("--lame-duck=1ms", f"--grace={ENDLESS}")
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: daemon.events("drain"), DEADLINE_S, "the drain")
    signalled = time.monotonic()
    daemon.signal(signal.SIGTERM)
    check_all_were_told(daemon, calls)
    timed("the end of a draining daemon", most=END_S + 10, seen=time.monotonic() - signalled, unit="s")
    assert daemon.events("stop")[0]["code"] == "DEADLINE_EXCEEDED"


def test_slow_readers_get_their_answers(daemons):
    """An answer of 16 MB, of which the reader has read the beginning when the signal comes."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", "--grace=100s")
    request = gemm_pb2.MultiplyRequest(m=4000, n=1000, k=0)
    request.a.type = request.b.type = tensors_pb2.ELEMENT_TYPE_F32
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start()
        peer.send(stream, message(request.SerializeToString()), end=True)
        wait_until(lambda: peer.receive(1) and peer.answers[stream].data, DEADLINE_S, "the beginning")
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: daemon.events("drain"), DEADLINE_S, "the drain")
        answer = peer.wait(stream)
    assert answer.status == 0
    response = gemm_pb2.MultiplyResponse.FromString(bytes(answer.data[5:]))
    assert response.d.data == bytes(16_000_000)
    assert daemon.wait() == 0


def test_idle_streams_do_not_hold_up_the_end(daemons, timed):
    """The drain does not wait for a watch of health or for a stream without requests."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", f"--grace={ENDLESS}")
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
        signalled = time.monotonic()
        daemon.signal(signal.SIGTERM)
        try:
            assert daemon.wait() == 0
        finally:
            never.put(None)
    timed("the end of a daemon with idle streams", most=END_S, seen=time.monotonic() - signalled, unit="s")
