# SPDX-License-Identifier: Apache-2.0
"""Products beyond a limit of the daemon's operator are refused or ended, with the limit's name."""

import re
import time

import grpc
import numpy as np
import pytest
from daemon import PATIENCE_S, wait_until
from gemmd.v1 import gemm_pb2_grpc
from lasting import lasting
from metrics_page import scrape
from product import Product

FLAGS = ["--lame-duck=0s", "--grace=1s", "--metrics-listen=127.0.0.1:0"]
DEVICES = ["cpu", "sim:sm_90"]
ROUNDS = 5  # The best time counts: other work may preempt threads, but not each time.
SMALL = Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)), a_type="f16", b_type="f16")
# Far beyond the backlog and the test's own time. With such a long k the result is small.
LONG_S = 300
LONG_K = 1 << 20


def refusal(stub, request, timeout):
    """The refusal of a product, and the shortest time that it takes. The deadline allows for it."""
    seen_s = []
    for _ in range(ROUNDS):
        start = time.monotonic()
        with pytest.raises(grpc.RpcError) as refused:
            stub.Multiply(request, timeout=timeout)
        seen_s.append(time.monotonic() - start)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused.value
    return refused.value, min(seen_s)


def launches(daemon):
    return sum(count for _, count in scrape(daemon).with_labels("gemmd_launches_total"))


def hold_refusal(battery, name, launched, seen_s, is_sanitized):
    battery.holds(f"{name}: launches", most=0, seen=launched)
    battery.timed(f"{name}: refused", most=0.5 if is_sanitized else 0.05, seen=seen_s, unit="s")


def test_a_product_that_is_too_long(daemons, device, is_slow_device, battery, is_sanitized):
    daemon = daemons.start(f"--devices={device}", "--max-product-seconds=2.5", *FLAGS)
    with grpc.insecure_channel(daemon.tcp) as channel:
        request = lasting(channel, 10)
        before = launches(daemon)
        refused, seen_s = refusal(gemm_pb2_grpc.GemmStub(channel), request, timeout=600)
    text = r"product: predicted to take [0-9a-z.]+, at most 2.5s is accepted \(--max-product-seconds\)"
    assert re.fullmatch(text, refused.details())
    launched = launches(daemon) - before
    hold_refusal(battery, f"10 s on {device} beyond --max-product-seconds", launched, seen_s, is_sanitized)


def test_a_backlog_that_is_too_long(daemons, device, is_slow_device, battery, is_sanitized):
    daemon = daemons.start(f"--devices={device}", "--max-backlog=1.5s", "--max-product-seconds=3600", *FLAGS)

    def waits():
        return sum(count for _, count in scrape(daemon).with_labels("gemmd_queue_requests"))

    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        request = lasting(channel, LONG_S, k=LONG_K)
        calls = [stub.Multiply.future(request) for _ in range(2)]
        wait_until(lambda: waits() == 1, PATIENCE_S, "one runs and one waits")
        before = launches(daemon)
        refused, seen_s = refusal(stub, SMALL.request(), timeout=100 * LONG_S)
        launched = launches(daemon) - before
        for call in calls:
            call.cancel()
    text = r"queue: products predicted to take [0-9a-z.]+ wait ahead of it, at most 1.5s may \(--max-backlog\)"
    assert re.fullmatch(text, refused.details())
    [retry_ms] = [int(v) for key, v in refused.trailing_metadata() if key == "grpc-retry-pushback-ms"]
    assert retry_ms == 10_000  # More must be done first, and this is the maximum.
    hold_refusal(battery, f"{LONG_S} s wait on {device}, beyond --max-backlog", launched, seen_s, is_sanitized)


@pytest.mark.own_device
def test_a_gpu_that_hangs_longer_than_a_product_may_take(
    daemons, battery, fake_worker, is_sanitized, tmp_path, monkeypatch
):
    """Ten times the prediction would be more."""
    script = tmp_path / "script"
    monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(script))
    product_s = 0.7
    max_s = 5 * product_s
    flags = ["--devices=cuda:0", f"--worker-binary={fake_worker}", f"--max-product-seconds={product_s}"]
    daemon = daemons.start(*flags, *FLAGS)
    # One tile, whose long k takes 0.6 s at the rates of the tests' worker.
    long = Product(a=np.ones((1, 8, 80_000)), b=np.ones((1, 80_000, 8)), a_type="f16", b_type="f16")
    (tmp_path / "part").write_text("Launch 1 hang")
    (tmp_path / "part").rename(script)
    with grpc.insecure_channel(daemon.tcp) as channel:
        start = time.monotonic()
        with pytest.raises(grpc.RpcError) as ended:
            gemm_pb2_grpc.GemmStub(channel).Multiply(long.request(), timeout=600)
        seen_s = time.monotonic() - start
    assert ended.value.code() == grpc.StatusCode.ABORTED
    assert "the most that a product may take (five times --max-product-seconds)" in ended.value.details()

    def restarts():
        return sum(count for _, count in scrape(daemon).with_labels("gemmd_worker_restarts_total"))

    wait_until(restarts, PATIENCE_S, "another worker")
    battery.holds("a GPU hangs, --max-product-seconds=0.7: workers replaced", least=1, seen=restarts())
    battery.timed("a GPU hangs: its product lives", least=max_s, seen=seen_s, unit="s")
    max_s += 5 if is_sanitized else 1
    battery.timed("a GPU hangs, --max-product-seconds=0.7: its product ends", most=max_s, seen=seen_s, unit="s")
