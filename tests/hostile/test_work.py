# SPDX-License-Identifier: Apache-2.0
"""Small requests for endless work. The client gives up, and the device is free at once."""

import contextlib
import os
import re
import signal
import time

import grpc
import metrics_page
import numpy as np
import pytest
from callers import Trust, bearer
from daemon import wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from lasting import lasting, long_work, predicted_s
from product import Product, check_bytes
from tensor_operands import operand as tensor_operand
from tensor_operands import put_array
from tensors import Session, by_name

# In addition to the work's own 50 ms: two hops over loopback, a timer and threads that share two
# cores.
SLACK_S = 0.45

# A product this long is not refused for its length.
FLAGS = ["--lame-duck=0s", "--max-product-seconds=1000000"]


LIMIT_S = 120
DEVICES = ["cpu", "sim:sm_90"]


@pytest.fixture
def worked(daemons, device, is_slow_device):
    watched = ["--metrics-listen=127.0.0.1:0", "--log-level=debug"]
    daemon = daemons.start(f"--devices={device}", "--grace=2s", *watched, *FLAGS)
    return daemon, device


def slack(is_sanitized):
    return 10 * SLACK_S if is_sanitized else SLACK_S


def small():
    return Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)), a_type="f16", b_type="f16")


def endless():
    """Tens of bytes of request without any operand: D has no products and takes gigabytes."""
    request = gemm_pb2.MultiplyRequest(m=1, n=1, k=0, batch=1 << 24)
    request.a.type = request.b.type = ELEMENTS["f16"].number
    return request


def seconds_until_free(stub, start):
    """The time from `start` to the answer of a small product that was sent at once."""

    def is_answered():
        try:
            check_bytes(stub.Multiply(small().request(), timeout=LIMIT_S).d, small())
        except grpc.RpcError as refused:
            # The daemon has not noticed the end of the long work yet.
            assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused
            return False
        return True

    wait_until(is_answered, LIMIT_S, "the device is free")
    return time.monotonic() - start


# In the timed run each aborts one product; the best counts for the daemon's own measurements. Other
# work on the machine takes processor time from its threads, but not each time.
ROUNDS = 5


def hold_aborts(battery, name, daemon, device, is_sanitized, abort):
    """Requires that the device is free for others although its work would still run. In the timed
    run it is done with a product within 50 ms, from when the daemon learns that nobody wants it,
    and soon as its next caller sees it. `abort` returns the time until that one is served."""
    max_s = 0.5 if is_sanitized else 0.05
    seen = []
    for _ in range(ROUNDS if battery.is_timed else 1):
        before = metrics_page.scrape(daemon)
        free_s = abort()
        battery.timed(f"{name} on {device}: free again", most=slack(is_sanitized), seen=free_s, unit="s")
        aborts_s = metrics_page.abort_times_s(metrics_page.scrape(daemon), device, before)
        battery.holds(f"{name} on {device}: aborted", least=1, seen=len(aborts_s))
        seen += aborts_s
        if min(seen) <= max_s:
            break
    print(name, seen)
    battery.timed(f"{name} on {device}: aborted", most=max_s, seen=min(seen), unit="s")


def launches(daemon):
    return sum(count for _, count in metrics_page.scrape(daemon).with_labels("gemmd_launches_total"))


@pytest.mark.parametrize("work", ["long", "endless"])
def test_what_cannot_be_in_time_is_refused_at_once(worked, work, battery, is_sanitized):
    """Nothing of it runs, so there is nothing to abort."""
    daemon, device = worked
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        seconds_until_free(stub, time.monotonic())
        # A slow machine has two minutes to refuse it before the deadline passes. Its result fits
        # into a message, however fast the machine is.
        request = lasting(channel, 160, k=1 << 19, edge=4) if work == "long" else endless()
        left_s = 0.75 * predicted_s(channel, request)
        launched = launches(daemon)
        before = metrics_page.scrape(daemon)
        refused_s, free_s = [], []
        for _ in range(ROUNDS):
            start = time.monotonic()
            with pytest.raises(grpc.RpcError) as refused:
                stub.Multiply(request, timeout=left_s)
            refused_s.append(time.monotonic() - start)
            assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            text = r"product: predicted to take [0-9a-z.]+, [0-9a-z.]+ are left until the deadline"
            assert re.fullmatch(text, refused.value.details()), refused.value
            free_s.append(seconds_until_free(stub, start))
        assert not metrics_page.abort_times_s(metrics_page.scrape(daemon), device, before)
    name = f"{request.ByteSize()} bytes of request that last too long on {device}"
    others = launches(daemon) - launched - len(free_s)
    battery.holds(f"{name}: begun", most=0, seen=others, unit="launches")
    battery.timed(f"{name}: refused", most=slack(is_sanitized) / 9, seen=min(refused_s), unit="s")
    battery.timed(f"{name}: free again", most=slack(is_sanitized), seen=max(free_s), unit="s")


# By prediction. A machine on which a call takes half as long before it runs needs longer ones.
LONG_S = (2, 4, 8, 16, 32)


def passes_its_deadline(daemon, stub, request, left_s):
    """Sends a product that should be in time, and stops the daemon until it no longer is. Returns
    when the daemon continues, or None if the product did not begin, or was done before."""
    before = launches(daemon)
    due = time.monotonic() + left_s
    call = stub.Multiply.future(request, timeout=left_s)
    wait_until(lambda: call.done() or launches(daemon) > before, LIMIT_S, "it runs")
    # The daemon must never find its worker stopped.
    workers = daemon.host_workers()
    daemon.signal(signal.SIGSTOP)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        time.sleep(max(0, due + 0.05 - time.monotonic()))
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        daemon.signal(signal.SIGCONT)
    start = time.monotonic()
    is_late = call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    return start if is_late and launches(daemon) > before else None


def test_a_deadline_aborts_what_runs(worked, battery, is_sanitized):
    """The product should be in time, but the daemon is stopped until it no longer is."""
    daemon, device = worked

    def expire():
        with grpc.insecure_channel(daemon.tcp) as channel:
            stub = gemm_pb2_grpc.GemmStub(channel)
            seconds_until_free(stub, time.monotonic())
            for long_s in LONG_S:
                start = passes_its_deadline(daemon, stub, lasting(channel, long_s), 1.5 * long_s)
                if start is not None:
                    break
            assert start is not None, "the machine is too slow for any product to begin"
            return seconds_until_free(stub, start)

    hold_aborts(battery, "a deadline that passes", daemon, device, is_sanitized, expire)
    ended = [line for line in daemon.events("request") if line["status"] == "DEADLINE_EXCEEDED"]
    assert "the deadline passed while it ran" in {line.get("reason") for line in ended}


def test_the_device_is_free_after_a_cancellation(worked, battery, is_sanitized):
    daemon, device = worked
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        request = lasting(channel, 10)

        def cancel():
            before = launches(daemon)
            call = stub.Multiply.future(request)
            wait_until(lambda: launches(daemon) > before, LIMIT_S, "it runs")
            assert not call.done(), call.exception()
            start = time.monotonic()
            call.cancel()
            return seconds_until_free(stub, start)

        hold_aborts(battery, "a cancelled product", daemon, device, is_sanitized, cancel)


@pytest.mark.own_device
def test_sigterm_ends_the_daemon_whatever_runs(daemons, battery, is_sanitized):
    daemon = daemons.start("--devices=sim:sm_90", "--grace=1s", *FLAGS)
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        call = stub.Multiply.future(long_work())
        wait_until(lambda: launches(daemon) > 0, LIMIT_S, "it runs")
        assert not call.done(), call.exception()
        start = time.monotonic()
        daemon.signal(15)
        daemon.wait(limit_s=LIMIT_S)
        seen_s = time.monotonic() - start
        attack = "SIGTERM while long work runs, grace 1 s: ended"
        battery.timed(attack, most=1 + 2 * slack(is_sanitized) + 1, seen=seen_s, unit="s")
        is_told = call.exception().code() == grpc.StatusCode.UNAVAILABLE
        battery.holds("SIGTERM while long work runs: UNAVAILABLE", least=1, seen=is_told, unit="calls")


@pytest.mark.timed  # A second after the grace the worker would be replaced.
def test_a_gpu_that_hangs_does_not_outlive_the_grace(
    daemons, battery, fake_worker, is_sanitized, tmp_path, monkeypatch
):
    """Its worker does not end aborted work, and is replaced only a second later. The daemon does
    not wait for that."""
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
    battery.timed(attack, most=grace_s + 1 + slack(is_sanitized), seen=seen_s, unit="s")
    assert code == 1
    stop = daemon.events("stop")[-1]
    assert (stop["code"], stop["reason"]) == ("DEADLINE_EXCEEDED", "a device does not respond")
    assert not daemon.ready_file.exists()


WHOLE = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_SAMPLED, rate=1)


def checked(edge, element="f32"):
    """A product whose every element is computed again by one host thread: the cube of the edge
    times 5 ns."""
    ones = np.ones((1, edge, edge))
    request = Product(a=ones, b=ones, a_type=element, b_type=element).request()
    request.verify.CopyFrom(WHOLE)
    return request


def test_checks_take_turns(daemons, battery):
    """Checks of eight seconds, which a caller can cause with small requests, and checks of
    others."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=0s", "--metrics-listen=127.0.0.1:0")
    with grpc.insecure_channel(daemon.tcp) as channel, grpc.insecure_channel(daemon.tcp) as other:
        heavy = gemm_pb2_grpc.GemmStub(channel)
        light = gemm_pb2_grpc.GemmStub(other)
        long_checks = [heavy.Multiply.future(checked(640), timeout=LIMIT_S) for _ in range(8)]
        wait_until(lambda: launches(daemon) > 0, LIMIT_S, "a product is computed")
        answers = [light.Multiply(checked(24), timeout=LIMIT_S) for _ in range(20)]
        left = sum(not call.done() for call in long_checks)
        for call in long_checks:
            call.cancel()
    passed = sum(answer.verification.outcome == gemm_pb2.VERIFY_OUTCOME_PASSED for answer in answers)
    battery.holds("8 checks of a second each, others' small ones: checked", least=20, seen=passed)
    battery.holds("8 checks of a second each: still to come when those are answered", least=1, seen=left)


def test_a_check_that_takes_too_long_is_refused(daemons, battery):
    """By --max-product-seconds, which includes the check. If only the daemon's default asks for the
    check, the product is not refused but answered without a check, and the answer says so."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=0s", "--max-product-seconds=0.2", "--verify=sampled:1")
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        request = checked(512)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Multiply(request, timeout=LIMIT_S)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        text = (
            r"product: predicted to take [0-9a-z.]+, [0-9a-z.]+ of it for the check of D, at most 200ms is accepted "
            r"\(--max-product-seconds\)"
        )
        assert re.fullmatch(text, refused.value.details()), refused.value
        request.ClearField("verify")
        answer = stub.Multiply(request, timeout=LIMIT_S).verification
        assert answer.outcome == gemm_pb2.VERIFY_OUTCOME_NOT_VERIFIED, answer
        assert stub.Multiply(checked(24), timeout=LIMIT_S).verification.outcome == gemm_pb2.VERIFY_OUTCOME_PASSED
    battery.holds("a check of half a second where 0.2 are allowed: answered", most=0, seen=answer.elements_checked)


LONG_CHECKS = 6
FORGOTTEN_S = 3600  # A deadline that refuses nothing.


@contextlib.contextmanager
def long_checks(channel, credentials=()):
    """Calls of 51 bytes, whose operands are resident: a product of a fraction of a second, whose check takes half a
    minute. They are cancelled at the end."""
    with Session(channel, credentials=credentials) as session:
        put_array(session, np.zeros((1, 2048, 2048), np.float32), name="x")
        x = tensor_operand(by_name("x"))
        request = gemm_pb2.MultiplyRequest(m=2048, n=2048, k=2048, a=x, b=x, verify=WHOLE)
        assert len(request.SerializeToString()) <= 51
        calls = [
            session.gemm.Multiply.future(request, timeout=FORGOTTEN_S, metadata=session.metadata)
            for _ in range(LONG_CHECKS)
        ]
        try:
            yield calls
        finally:
            for call in calls:
                call.cancel()


def hold_long_checks(battery, daemon, calls, attack, credentials=()):
    """Others' small products are checked meanwhile; all is free once the callers have gone. Returns the refusals."""
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        answers = [stub.Multiply(checked(24), timeout=LIMIT_S, metadata=credentials) for _ in range(20)]
    passed = sum(answer.verification.outcome == gemm_pb2.VERIFY_OUTCOME_PASSED for answer in answers)
    battery.holds(f"{attack}, others' small products: checked", least=20, seen=passed)
    answered = sum(call.done() and call.code() == grpc.StatusCode.OK for call in calls)
    battery.holds(f"{attack}: answered before those", most=0, seen=answered)
    refused = [call for call in calls if call.done()]
    for call in calls:
        call.cancel()
    wait_until(
        lambda: metrics_page.scrape(daemon).value("gemmd_admitted_requests") == 0, LIMIT_S, "the checks are given up"
    )
    checked_all = metrics_page.scrape(daemon).value("gemmd_verifications_total", mode="sampled", outcome="passed")
    battery.holds(f"{attack}: checked to the end", most=0, seen=checked_all - len(answers))
    return refused


def test_small_requests_for_long_checks(daemons, battery):
    """Checks are work like products: predicted, admitted and queued, in turns of callers, and given up with the call.
    How many of them --max-backlog refuses depends on the machine."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=0s", "--metrics-listen=127.0.0.1:0")
    with grpc.insecure_channel(daemon.tcp) as channel, long_checks(channel) as calls:
        refused = hold_long_checks(battery, daemon, calls, "6 requests of 51 bytes for checks of half a minute")
    assert {call.code() for call in refused} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_long_checks_of_a_caller_with_little_time(daemons, battery, tmp_path):
    """The time of checks counts: the first overdraws the half second that the caller earns in a minute, and the others
    are refused for it."""
    trust = Trust(tmp_path)
    rule = {"may": ["multiply", "tensors"], "priority": "low", "device_seconds_a_minute": 0.5}
    trust.write({"greedy": rule, "other": {"may": ["multiply"]}})
    daemon = daemons.start("--devices=cpu", "--max-backlog=1h", "--metrics-listen=127.0.0.1:0", *trust.flags)
    attack = "6 such requests of a caller with half a device second a minute"
    with grpc.insecure_channel(daemon.tcp) as channel, long_checks(channel, bearer("greedy")) as calls:
        wait_until(lambda: sum(call.done() for call in calls) >= LONG_CHECKS - 1, LIMIT_S, "all but one are refused")
        refused = hold_long_checks(battery, daemon, calls, attack, bearer("other"))
    battery.holds(f"{attack}: refused", least=LONG_CHECKS - 1, seen=len(refused))
    assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all("has used up its device time" in call.details() for call in refused), refused[0].details()
