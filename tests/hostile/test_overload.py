# SPDX-License-Identifier: Apache-2.0
"""Callers that want more than their share, or work for minutes: others are served meanwhile, what is
cancelled frees its device, and the daemon ends when it is told to."""

import signal
import statistics
import threading
import time

import grpc
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc, registry_pb2_grpc, statistics_pb2
from open_loop import HAS_ROOM, OK, RESOURCE_EXHAUSTED, open_channel, p99, product_of
from product import Product

FLAGS = ["--lame-duck=1ms", "--devices=cpu", "--cpu-threads=1"]


class Hog:
    """A caller that has 400 calls in flight on four connections, and sends the next when one ends."""

    def __init__(self, address, request):
        self._request = request
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._left = 400
        self.answers = 0
        self._channels = [open_channel(address) for _ in range(4)]
        for channel in self._channels:
            stub = gemm_pb2_grpc.GemmStub(channel)
            for _ in range(100):
                self._call(stub)

    def _call(self, stub):
        stub.Multiply.future(self._request, timeout=60).add_done_callback(lambda call: self._ended(stub, call))

    def _ended(self, stub, call):
        if call.code() == OK:
            with self._lock:
                self.answers += 1
        elif not self._is_over.is_set():
            # As a client does that heeds the pushback, if only just.
            self._is_over.wait(0.05)
        if self._is_over.is_set():
            return
        self._call(stub)

    def end(self):
        self._is_over.set()
        for channel in self._channels:
            channel.close()


def light_calls(address, request, count):
    """The latencies of the calls that were OK."""
    latencies = []
    with open_channel(address) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        for _ in range(count):
            start = time.monotonic()
            try:
                stub.Multiply(request, timeout=2)
            except grpc.RpcError as failure:
                assert failure.code() in (RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)
            else:
                latencies.append(time.monotonic() - start)
            time.sleep(0.01)
    return latencies


def test_a_light_caller_beside_a_hog(daemons, battery, is_sanitized):
    """The hog speaks TCP and the light caller a unix socket: two callers. Four connections are one."""
    daemon = daemons.start(*FLAGS)
    count = 300 if battery.is_long else 40
    with open_channel(daemon.tcp) as channel:
        request = product_of(gemm_pb2_grpc.GemmStub(channel), seconds=0.02)
    alone = light_calls(daemon.unix, request, count)
    hog = Hog(daemon.tcp, request)
    try:
        wait_until(lambda: hog.answers > 5, 60, "the hog is served")
        beside = light_calls(daemon.unix, request, count)
    finally:
        hog.end()
    battery.holds("a caller beside 400 calls: answered", least=0.95, seen=len(beside) / count, unit="of its calls")
    # The running product is as long as its own; on two cores the hog's client takes from both.
    is_idle = HAS_ROOM and not is_sanitized
    held = statistics.median(beside) / statistics.median(alone)
    battery.holds("a caller beside 400 calls: median", most=3 if is_idle else 10, seen=held, unit="times alone")
    if is_idle:
        most = 2 * p99(alone) + statistics.median(alone)
        battery.holds("a caller beside 400 calls: p99", most=most, seen=p99(beside), unit="s")


def long_product():
    """Some minutes on the simulator, for a few bytes."""
    request = Product(a=np.ones((1, 64, 64), np.float32), b=np.ones((1, 64, 64), np.float32), a_type="f16", b_type="f16").request()
    request.a.batch_stride = request.b.batch_stride = 0
    request.d.type = request.a.type
    request.device = "sim:sm_90"
    request.batch = 20_000
    return request


SIM_FLAGS = ["--lame-duck=1ms", "--devices=cpu,sim:sm_90", "--cpu-threads=1", "--max-product-seconds=100000", "--log-level=debug"]


def start_long_product(daemon, channel, timeout_s=300):
    stub = gemm_pb2_grpc.GemmStub(channel)
    registry = registry_pb2_grpc.RegistryStub(channel)
    call = stub.Multiply.future(long_product(), timeout=timeout_s)

    def runs():
        assert not call.done(), call
        devices = registry.GetStatistics(statistics_pb2.GetStatisticsRequest(), timeout=30).devices
        sim = next(device for device in devices if device.name == "sim:sm_90")
        return sim.busy_ns > 50_000_000

    wait_until(runs, 60, "busy while the product runs")
    return call


# A second for the daemon, and what a slow machine takes to notice it.
END_S = 1 + (0.3 if HAS_ROOM else 2)


@pytest.mark.parametrize("signals", [1, 4])
def test_the_end_after_the_grace(daemons, battery, signals):
    """Whatever runs, and however often the daemon is told."""
    grace_s = 2 if signals == 1 else 60
    daemon = daemons.start(*SIM_FLAGS, f"--grace={grace_s}s")
    with open_channel(daemon.tcp) as channel:
        call = start_long_product(daemon, channel)
        start = time.monotonic()
        for _ in range(signals):
            daemon.signal(signal.SIGTERM)
            time.sleep(0.3)
        waited = grace_s if signals == 1 else 0.3  # The second signal ends the grace.
        code = daemon.wait(limit_s=120)
        seen = time.monotonic() - start - waited
        assert call.code() == grpc.StatusCode.UNAVAILABLE
    assert code == 1
    battery.holds(f"{signals} SIGTERM: the end after the grace", most=END_S, seen=seen, unit="s")


# 50 ms for the abort, and what a slow machine takes to notice it.
ABORT_S = 0.05 + (0.1 if HAS_ROOM else 1)


def wait_until_free(channel, start):
    """Seconds from the start until a product of the simulator is answered."""
    stub = gemm_pb2_grpc.GemmStub(channel)
    request = long_product()
    request.batch = 1
    while True:
        try:
            stub.Multiply(request, timeout=60, wait_for_ready=True)
            return time.monotonic() - start
        except grpc.RpcError as refused:
            # The daemon has not heard of the end of the long product yet.
            assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused
            time.sleep(0.005)


def test_a_deadline_ends_what_runs(daemons, battery):
    daemon = daemons.start(*SIM_FLAGS)
    with open_channel(daemon.tcp) as channel:
        start = time.monotonic()
        # The server must not refuse it by its prediction: it believes that there is time.
        call = start_long_product(daemon, channel, timeout_s=300)
        call.cancel()
        cancelled = time.monotonic()
        seen = wait_until_free(channel, cancelled)
        battery.holds("a cancelled product: the device is free after", most=ABORT_S, seen=seen, unit="s")
    wait_until(lambda: any(line["status"] == "CANCELLED" for line in daemon.events("request")), 30, "logged")
    assert time.monotonic() - start < 60


def test_cancelled_products_free_their_device(daemons, battery):
    """One after the other: each would run for minutes."""
    daemon = daemons.start(*SIM_FLAGS)
    with open_channel(daemon.tcp) as channel:
        for _ in range(20 if battery.is_long else 5):
            call = start_long_product(daemon, channel)
            call.cancel()
            seen = wait_until_free(channel, time.monotonic())
            battery.holds("products cancelled in turn: free after", most=ABORT_S, seen=seen, unit="s")
