# SPDX-License-Identifier: Apache-2.0
"""Small requests for endless work. Whoever sends one gives up, and the device is free at once."""

import time

import grpc
import numpy as np
import pytest
from daemon import wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from product import Product, check_bytes

# Besides the work's own 50 ms: two hops over loopback, a timer and threads that share two cores.
SLACK_S = 0.45

# So long a product is not refused for its length.
FLAGS = ["--lame-duck=0s", "--max-product-seconds=1000000"]


DEVICES = ["cpu", "sim:sm_90"]


@pytest.fixture
def worked(daemons, device, is_slow_device):
    daemon = daemons.start(f"--devices={device}", "--grace=2s", *FLAGS)
    return daemon, device


def slack(is_sanitized):
    return 10 * SLACK_S if is_sanitized else SLACK_S


def small():
    return Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)), a_type="f16", b_type="f16")


def long_work():
    """Operands of 64 KiB, which a batch takes again and again: 3.4e10 multiplications."""
    request = gemm_pb2.MultiplyRequest(m=64, n=64, k=512, batch=1 << 14)
    for operand in (request.a, request.b):
        operand.type = ELEMENTS["f16"].number
        operand.data = bytes(65536)
        operand.batch_stride = 0
    return request


def endless():
    """Tens of bytes of request, no operand at all: D is empty of products and takes gigabytes."""
    request = gemm_pb2.MultiplyRequest(m=1, n=1, k=0, batch=1 << 24)
    request.a.type = request.b.type = ELEMENTS["f16"].number
    return request


def seconds_until_free(stub, start):
    """From `start` to the answer of a small product that was sent at once."""
    while True:
        try:
            check_bytes(stub.Multiply(small().request(), timeout=60).d, small())
            return time.monotonic() - start
        except grpc.RpcError as refused:
            # The daemon has not heard of the end of the long work yet.
            assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused
            time.sleep(0.005)


@pytest.mark.parametrize("work", ["long", "endless"])
def test_the_device_is_free_after_the_deadline(worked, work, battery, is_sanitized):
    daemon, device = worked
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        seconds_until_free(stub, time.monotonic())
        start = time.monotonic()
        request = long_work() if work == "long" else endless()
        with pytest.raises(grpc.RpcError) as refused:
            stub.Multiply(request, timeout=1)
        assert refused.value.code() in (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
        after = seconds_until_free(stub, start)
    battery.holds(
        f"{request.ByteSize()} bytes of request, deadline 1 s, on {device}: free again",
        most=1 + slack(is_sanitized),
        seen=after,
        unit="s",
    )


def test_the_device_is_free_after_a_cancellation(worked, battery, is_sanitized):
    daemon, device = worked
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        call = stub.Multiply.future(long_work())
        time.sleep(0.3)  # It runs now.
        assert not call.done(), call.exception()
        start = time.monotonic()
        call.cancel()
        battery.holds(
            f"a cancelled product on {device}: free again",
            most=slack(is_sanitized),
            seen=seconds_until_free(stub, start),
            unit="s",
        )


@pytest.mark.own_device
def test_sigterm_ends_the_daemon_whatever_runs(daemons, battery, is_sanitized):
    daemon = daemons.start("--devices=sim:sm_90", "--grace=1s", *FLAGS)
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        call = stub.Multiply.future(long_work())
        time.sleep(0.3)
        assert not call.done(), call.exception()
        start = time.monotonic()
        daemon.signal(15)
        daemon.wait(limit_s=60)
        battery.holds(
            "SIGTERM while long work runs, grace 1 s: ended",
            most=1 + 2 * slack(is_sanitized) + 1,
            seen=time.monotonic() - start,
            unit="s",
        )
        assert call.exception().code() == grpc.StatusCode.UNAVAILABLE


def test_a_gpu_that_hangs_does_not_outlive_the_grace(
    daemons, battery, fake_worker, is_sanitized, tmp_path, monkeypatch
):
    """Its worker does not end what is aborted, and is replaced a second later only. The daemon does not
    wait for that."""
    script = tmp_path / "script"
    monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(script))
    grace_s = 0.2
    flags = ["--devices=cuda:0,cpu", f"--worker-binary={fake_worker}", f"--grace={grace_s}s"]
    daemon = daemons.start(*flags, *FLAGS)
    (tmp_path / "part").write_text("Launch 1 hang")
    (tmp_path / "part").rename(script)
    with grpc.insecure_channel(daemon.tcp) as channel:
        call = gemm_pb2_grpc.GemmStub(channel).Multiply.future(small().request(), timeout=60)
        wait_until(lambda: not script.exists(), 60, "it hangs")
        start = time.monotonic()
        daemon.signal(15)
        code = daemon.wait(limit_s=60)
        seen_s = time.monotonic() - start
        assert call.exception() is not None
    attack = "SIGTERM while a GPU hangs, grace 0.2 s: ended"
    battery.holds(attack, most=grace_s + 1 + slack(is_sanitized), seen=seen_s, unit="s")
    assert code == 1
    stop = daemon.events("stop")[-1]
    assert (stop["code"], stop["reason"]) == ("DEADLINE_EXCEEDED", "a device does not let go")
    assert not daemon.ready_file.exists()
