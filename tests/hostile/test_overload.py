# SPDX-License-Identifier: Apache-2.0
"""Callers that want more than their share, or work for minutes: others are served meanwhile, what is
cancelled frees its device, and the daemon ends when it is told to."""

import json
import math
import signal
import subprocess
import time

import grpc
import metrics_page
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc, registry_pb2, registry_pb2_grpc, statistics_pb2
from open_loop import HAS_ROOM, open_channel
from product import Product

FLAGS = ["--lame-duck=1ms", "--devices=cpu", "--cpu-threads=1"]

# The load is measured in seconds of one processor.
pytestmark = pytest.mark.own_device


# Rounds of as many calls; the best counts. Other work keeps threads from their processors, but not each
# time; a queue in which a caller waits for those of the other is as long every time.
ROUNDS = 5


class Load:
    """A caller: gemmload, whose operands and results stay, so that it takes little of the processors."""

    def __init__(self, gemmload, address, folder, *flags):
        self._report = folder / "report.json"
        shape = ["--shape=640,640,640", "--type=f64", "--operands=resident-all", "--timeout=60s"]
        command = [gemmload, f"--address={address}", *shape, "--warmup=200ms", "--quiet", *flags]
        self._process = subprocess.Popen(
            [*command, f"--json={self._report}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def step(self):
        """The report, at the end."""
        self._process.wait(120)
        return json.loads(self._report.read_text())["steps"][0]

    def end(self):
        self._process.send_signal(signal.SIGINT)
        self._process.wait(120)


def launches(daemon):
    return sum(count for _, count in metrics_page.scrape(daemon).with_labels("gemmd_launches_total"))


def test_a_light_caller_beside_a_hog(daemons, gemmload, battery, tmp_path):
    """The hog, with 400 calls in flight on four connections, speaks TCP and the light caller a unix
    socket: two callers. The product that runs when a call comes is waited for, and at most one of the
    hog's that is even with the light caller."""
    daemon = daemons.start(*FLAGS, "--metrics-listen=127.0.0.1:0")
    count = 300 if battery.is_long else 100  # The p99 of 100 is the second longest.

    def light():
        return Load(gemmload, daemon.unix, tmp_path, "--concurrency=1", f"--count={count}").step()

    folder = tmp_path / "hog"
    folder.mkdir()
    rounds = []
    for _ in range(ROUNDS):
        alone = light()
        before = launches(daemon)
        hog = Load(gemmload, daemon.tcp, folder, "--concurrency=400", "--channels=4", "--duration=10m")
        try:
            wait_until(lambda before=before: launches(daemon) > before + 5, 60, "the hog is served")
            beside = light()
        finally:
            hog.end()
        product_s = beside["stages"]["compute"]["p50_ns"] / 1e9
        answered = beside["calls_by_status"].get("OK", 0) / beside["calls"]
        most_s = 2 * alone["latency"]["p99_ns"] / 1e9 + product_s
        seen_s = beside["latency"]["p99_ns"] / 1e9
        rounds.append((seen_s / most_s, answered, most_s, seen_s))
        if answered >= 0.95 and seen_s <= most_s:
            break
    print(rounds)
    _, answered, most_s, seen_s = min(rounds)
    battery.holds("a caller beside 400 calls: answered", least=0.95, seen=answered, unit="of its calls")
    battery.holds("a caller beside 400 calls: p99", most=most_s, seen=seen_s, unit="s")


def simulated(batch, k):
    """Products of one matrix with itself, over and over, so that few bytes travel."""
    one = np.ones((1, 64, k), np.float32)
    request = Product(a=one, b=one.swapaxes(1, 2), a_type="f16", b_type="f16").request()
    request.a.batch_stride = request.b.batch_stride = 0
    request.d.type = request.a.type
    request.device = "sim:sm_90"
    request.batch = batch
    return request


# By prediction, which may be twice too high or too low.
LONG_S = 100


def long_product(registry):
    """So many matrices that it takes minutes on this machine: one takes 1 ms to 10 s."""
    request = simulated(batch=1, k=4096)
    question = registry_pb2.ExplainRequest(request=request)
    question.request.a.ClearField("data")
    question.request.b.ClearField("data")
    explained = registry.Explain(question, timeout=60)
    request.batch = math.ceil(LONG_S * 1e9 / explained.candidates[0].predicted_ns)
    return request


SIM_FLAGS = [
    "--lame-duck=1ms",
    "--devices=cpu,sim:sm_90",
    "--cpu-threads=1",
    f"--max-product-seconds={2 * LONG_S}",
    "--log-level=debug",
]


def start_long_product(daemon, channel, timeout_s=300):
    stub = gemm_pb2_grpc.GemmStub(channel)
    registry = registry_pb2_grpc.RegistryStub(channel)
    call = stub.Multiply.future(long_product(registry), timeout=timeout_s)

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
    request = simulated(batch=1, k=64)
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
