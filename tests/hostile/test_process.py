# SPDX-License-Identifier: Apache-2.0
"""What surrounds the daemon as a process: its workers, the operators who may restart them, and the
service manager that watches it. Each can fail; none may end or block the daemon."""

import collections
import concurrent.futures
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import grpc
import metrics_page
import pytest
from daemon import wait_until
from gemmd.v1 import admin_pb2, admin_pb2_grpc, gemm_pb2, tensors_pb2
from tensors import Session

DEADLINE_S = 120
MIB = 1 << 20
CALLERS = 8
METHODS = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods]


def restart_device(address, device):
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            request = admin_pb2.RestartDeviceRequest(device=device)
            admin_pb2_grpc.AdminStub(channel).RestartDevice(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_only_who_is_local_restarts_devices(daemons, gemmctl, battery):
    daemon = daemons.start("--lame-duck=1ms", "--devices=cuda:0,cpu")
    before = daemon.children()
    for device in ("cuda:0", "cpu"):
        assert restart_device(daemon.tcp, device) == grpc.StatusCode.PERMISSION_DENIED
    assert restart_device(daemon.unix, "cuda:9") == grpc.StatusCode.NOT_FOUND
    assert daemon.children() == before
    for device in ("cuda:0", "cpu"):
        before = daemon.children()
        command = [gemmctl, f"--address={daemon.unix}", "restart-device", device]
        subprocess.run(command, check=True, timeout=DEADLINE_S)
        others = wait_until(lambda: daemon.children() - before, DEADLINE_S, "another worker")
        battery.holds(f"{device} restarted: other workers", least=1, seen=len(others))
    refused = subprocess.run(
        [gemmctl, f"--address={daemon.tcp}", "restart-device", "cuda:0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert refused.returncode != 0 and "want a unix socket" in refused.stderr


def test_messages_to_operators_services_take_no_memory(daemons, battery):
    """gRPC's typed methods would parse everything that is sent: 16 MiB of unknown groups would
    become 200 MiB."""
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu")
    groups = b"\x83\x7d\x84\x7d" * (4 * MIB)
    before = daemon.peak_rss_bytes()
    refused = 0
    for address, code in (
        (daemon.tcp, grpc.StatusCode.PERMISSION_DENIED),
        (daemon.unix, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ):
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, options) as channel:
            for method in METHODS:
                with pytest.raises(grpc.RpcError) as raised:
                    channel.unary_unary(f"/gemmd.v1.Admin/{method}")(groups, timeout=DEADLINE_S)
                assert raised.value.code() == code
                refused += 1
    grown = (daemon.peak_rss_bytes() - before) / MIB
    battery.holds("16 MiB for operators' services", least=2 * len(METHODS), seen=refused, unit="calls refused")
    battery.timed("16 MiB for operators' services", most=16 + 48, seen=grown, unit="MiB")


def test_names_for_operators_are_short(daemons, battery):
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu")
    with grpc.insecure_channel(daemon.unix, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        restart = admin_pb2_grpc.AdminStub(channel).RestartDevice
        for length, code, text in (
            (128, grpc.StatusCode.NOT_FOUND, "device: got xxx"),
            (129, grpc.StatusCode.INVALID_ARGUMENT, "device: got 129 bytes, want at most 128"),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                restart(admin_pb2.RestartDeviceRequest(device="x" * length), timeout=DEADLINE_S)
            assert raised.value.code() == code
            assert text in raised.value.details()
            name = f"a device's name of {length} bytes: the refusal"
            battery.holds(name, most=199, seen=len(raised.value.details()), unit="characters")


def test_a_gpu_that_failed_too_often_rests_until_an_operator_ends_it(daemons, battery):
    """Its worker is killed more often in a minute than it may be restarted."""
    daemon = daemons.start("--lame-duck=1ms", "--devices=cuda:0,cpu")

    def kill_worker():
        found = wait_until(lambda: daemon.gpu_workers() or rests(), DEADLINE_S, "a worker")
        if not isinstance(found, set):
            return
        [worker] = found
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: worker not in daemon.gpu_workers(), DEADLINE_S, "its end")

    def rests():
        return [
            line for line in daemon.events("device_not_ready") if "too many starts" in line["reason"]
        ]

    while not rests():
        kill_worker()
        time.sleep(0.05)  # It reports nothing before the daemon has noticed it.

    assert "too many starts, for 5m: " in rests()[0]["reason"]
    assert not daemon.gpu_workers()
    assert restart_device(daemon.unix, "cuda:0") == grpc.StatusCode.OK

    def starts():
        return [line for line in daemon.events("device_ready") if line["time"] > rests()[-1]["time"]]

    wait_until(starts, DEADLINE_S, "it again")
    battery.holds("a GPU that rests, once an operator ends it: tried again", least=1, seen=len(starts()), unit="times")


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """The socket on which systemd listens to its services."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", "900000")
        yield listening


def stands_still(daemon):
    """Whether a signal has stopped all its threads."""
    tasks = pathlib.Path(f"/proc/{daemon.pid}/task")
    states = [(task / "stat").read_text().rsplit(")", 1)[1].split()[0] for task in tasks.iterdir()]
    return set(states) == {"T"}


def told(manager):
    return manager.recv(4096).decode().split("\n")


def test_the_service_manager_is_told(daemons, manager, battery):
    """That it starts, is ready, is alive, and stops, in this order."""
    daemon = daemons.start("--lame-duck=1ms")
    assert told(manager) == ["STATUS=Checking the devices"]
    # How long it takes to become ready depends on the machine.
    while (serves := told(manager))[0] != "READY=1":
        assert serves == ["WATCHDOG=1"]
    assert all(address in serves[1] for address in daemon.addresses)
    signs = [told(manager) for _ in range(5)].count(["WATCHDOG=1"])
    battery.holds("service manager: signs of life in 5 messages", least=5, seen=signs)
    daemon.signal(signal.SIGTERM)
    while (line := told(manager))[0] != "STOPPING=1":
        assert line == ["WATCHDOG=1"]
    assert daemon.wait() == 0
    assert not daemon.ready_file.exists()


def test_the_watchdog_starves_with_the_daemon(daemons, manager, battery):
    daemon = daemons.start("--lame-duck=1ms")
    while told(manager) != ["WATCHDOG=1"]:
        pass
    daemon.signal(signal.SIGSTOP)
    wait_until(lambda: stands_still(daemon), DEADLINE_S, "stopped")
    manager.settimeout(0)
    with pytest.raises(BlockingIOError):
        while True:
            told(manager)  # From before.
    manager.settimeout(2)  # More than twice what systemd would wait.
    heard = 0
    with contextlib.suppress(TimeoutError):
        told(manager)
        heard += 1
    battery.holds("a daemon that stands still: signs of life", most=0, seen=heard)
    daemon.signal(signal.SIGCONT)
    manager.settimeout(DEADLINE_S)
    assert told(manager) == ["WATCHDOG=1"]
    daemon.stop()


def test_probes(daemons, battery):
    daemon = daemons.start("--lame-duck=1h", "--metrics-listen=127.0.0.1:0")
    address = metrics_page.address(daemon)

    def status(path):
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE_S) as page:
                return page.status
        except urllib.error.HTTPError as error:
            return error.code

    assert (status("/healthz"), status("/readyz")) == (200, 200)
    began = time.monotonic()
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: status("/readyz") == 503, DEADLINE_S, "lame duck")
    battery.timed("SIGTERM: /readyz says so", most=10, seen=time.monotonic() - began, unit="s")
    battery.holds("SIGTERM: /readyz meanwhile", least=503, seen=status("/readyz"))
    assert status("/healthz") == 200
    assert daemon.ready_file.exists()
    daemon.stop()  # The second signal.


def test_what_arrives_at_the_end_is_refused_and_not_cut_off(daemons, battery):
    """Callers that send products of 8 MiB without a pause until one is not answered. UNAVAILABLE
    means that it was not computed; CANCELLED leaves that open."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=0s")
    operand = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_F32, data=bytes(4 * MIB))
    body = gemm_pb2.MultiplyRequest(m=1, n=1, k=MIB, a=operand, b=operand).SerializeToString()
    sent = []

    def send():
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(daemon.tcp, [*options, ("grpc.enable_retries", 0)]) as channel:
            multiply = channel.unary_unary("/gemmd.v1.Gemm/Multiply")
            while True:
                call = multiply.future(body, timeout=DEADLINE_S)
                if call.code() != grpc.StatusCode.OK:
                    return call.code()
                sent.append(call)

    with concurrent.futures.ThreadPoolExecutor(CALLERS) as threads:
        callers = [threads.submit(send) for _ in range(CALLERS)]
        wait_until(lambda: len(sent) >= 2 * CALLERS, DEADLINE_S, "products are computed")
        daemon.signal(signal.SIGTERM)
        ends = collections.Counter(caller.result() for caller in callers)
        code = daemon.wait()
    print(dict(ends))
    battery.holds(f"SIGTERM beside {CALLERS} senders of 8 MiB: exit code", most=0, seen=abs(code))
    told = ends[grpc.StatusCode.UNAVAILABLE]
    battery.timed(f"SIGTERM beside {CALLERS} senders of 8 MiB: told UNAVAILABLE", least=CALLERS, seen=told)


def answers_believed(session, script, size, **fields):
    """The answers that are accepted from a worker which reports a product as done without doing
    anything."""
    operand = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_F16, data=bytes(2 * size * size))
    request = gemm_pb2.MultiplyRequest(m=size, n=size, k=size, a=operand, b=operand, device="cuda:0", **fields)

    def is_served():
        try:
            session.multiply(request)
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION), error
            return False
        return True

    wait_until(is_served, DEADLINE_S, "the worker")
    script.with_suffix(".part").write_text("done")
    script.with_suffix(".part").rename(script)
    believed = is_served()
    assert not script.exists()
    wait_until(is_served, DEADLINE_S, "another worker")
    return int(believed)


def test_a_worker_that_only_says_that_it_is_done(
    daemons, lying_worker, battery, has_worker_faults, tmp_path, monkeypatch
):
    """Wherever D is, and however small it is."""
    script = tmp_path / "script"
    monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(script))
    daemon = daemons.start("--lame-duck=1ms", "--devices=cuda:0,cpu", f"--worker-binary={lying_worker}")
    on_the_gpu = tensors_pb2.OutputSpec(new_tensor=tensors_pb2.NewTensor())
    with grpc.insecure_channel(daemon.unix) as channel, Session(channel) as session:
        for what, size, fields in (
            ("the answer", 64, {}),
            ("one number", 1, {}),
            ("a tensor", 64, {"d": on_the_gpu}),
            ("a tensor of one number", 1, {"d": on_the_gpu}),
        ):
            believed = answers_believed(session, script, size, **fields)
            battery.holds(f"a worker that only says OK: believed of {what}", most=0, seen=believed)
