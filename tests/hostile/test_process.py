# SPDX-License-Identifier: Apache-2.0
"""What surrounds the daemon as a process: whoever reads its log, the files it may open, the workers
that it starts. Each can fail it; none may end it, or stop it."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from daemon import parse_log_line, wait_until
from gemmd.v1 import admin_pb2, admin_pb2_grpc, gemm_pb2_grpc
from http2_peer import MULTIPLY, Http2Peer, message, open_socket
from product import Product, check_bytes

DEADLINE_S = 60
SMALL = Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)))


def multiply(address, request_id=""):
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = SMALL.request()
        request.request_id = request_id
        answer = gemm_pb2_grpc.GemmStub(channel).Multiply(request, timeout=DEADLINE_S)
        check_bytes(answer.d, SMALL)


def multiply_many(address, count):
    """Each leaves some 900 bytes in a log of level debug; the longest time that one took."""
    slowest = 0
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        for number in range(count):
            request = SMALL.request()
            request.request_id = f"{number}" + 120 * "\x01"
            start = time.monotonic()
            stub.Multiply(request, timeout=DEADLINE_S)
            slowest = max(slowest, time.monotonic() - start)
    return slowest


@pytest.fixture
def piped(gemmd, tmp_path):
    """A daemon whose standard error is a pipe that the test reads, or does not."""
    started = []

    def start(*flags):
        ready = tmp_path / "ready"
        process = subprocess.Popen(
            [gemmd, "--listen=127.0.0.1:0", f"--ready-file={ready}", "--lame-duck=1ms", *flags],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        wait_until(lambda: ready.exists() or process.poll() is not None, DEADLINE_S, "gemmd ready")
        assert process.poll() is None
        return process, ready.read_text().strip()

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.stderr.close()
        process.wait()


# The log.


def test_the_reader_of_the_log_goes_away(piped, battery):
    process, address = piped("--log-level=debug")
    process.stderr.close()
    for _ in range(20):
        multiply(address)
    process.send_signal(signal.SIGTERM)
    battery.holds("reader of the log gone: exit code", most=0, seen=abs(process.wait(DEADLINE_S)))


def test_the_reader_of_the_log_stands_still(piped, battery, is_sanitized):
    """A pipe takes 64 KiB. The end waits a second for the reader."""
    process, address = piped("--log-level=debug")
    slowest = multiply_many(address, 300)
    # A call takes milliseconds; one that waited for the reader would take until its deadline.
    battery.holds("reader of the log stands still: slowest call", most=20, seen=slowest, unit="s")
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait(DEADLINE_S)
    battery.holds(
        "reader of the log stands still: exit", most=30 if is_sanitized else 15, seen=time.monotonic() - start, unit="s"
    )
    assert code == 0
    whole = process.stderr.read().decode().rsplit("\n", 1)[0]
    for line in whole.splitlines():
        parse_log_line(line)


def test_the_reader_of_the_log_comes_back(piped):
    """It sees how many lines it missed. The daemon keeps 1 MiB for it."""
    process, address = piped("--log-level=debug")
    multiply_many(address, 2000)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(process.stderr))
    reader.start()
    wait_until(lambda: len(lines) > 50, DEADLINE_S, "lines that were kept")
    multiply(address, request_id="after")
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    reader.join(DEADLINE_S)
    parsed = [parse_log_line(line.decode().rstrip("\n")) for line in lines]
    requests = [line for line in parsed if line["event"] == "request"]
    [lost] = [line for line in parsed if line["event"] == "log_lines_lost"]
    assert int(lost["lines"]) > 0 and len(requests) + int(lost["lines"]) == 2001
    assert requests[-1]["id"] == "after" and parsed[-1]["event"] == "stop"


def test_protobuf_writes_into_the_log(daemons):
    """A string that is no UTF-8 makes protobuf complain, with the name of the field."""
    daemon = daemons.start("--lame-duck=1ms")
    request = SMALL.request()
    request.request_id = "@@@@"
    broken = request.SerializeToString().replace(b"@@@@", b"\xff\xfe\n\xff")
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start(MULTIPLY)
        peer.send(stream, message(broken), end=True)
        assert peer.wait(stream).status not in (None, 0)
    daemon.stop()
    complaints = daemon.events("protobuf")  # Which parses every line.
    assert complaints and {line["level"] for line in complaints} == {"warning"}
    assert "request_id" in complaints[0]["message"]


def test_the_log_as_json(daemons):
    daemon = daemons.start("--lame-duck=1ms", "--log-level=debug", "--log-format=json")
    multiply(daemon.tcp, request_id='12 "\n\u00e4')
    multiply(daemon.tcp, request_id="12")
    daemon.stop()
    lines = [json.loads(line) for line in daemon.stderr().splitlines()]
    assert all({"time", "level", "event"} <= line.keys() for line in lines)
    [start] = [line for line in lines if line["event"] == "start"]
    assert isinstance(start["pid"], int) and start["pid"] == daemon.pid
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["id"] for line in requests] == ['12 "\n\u00e4', "12"]
    assert all(isinstance(line["total_ns"], int) for line in requests)
    assert requests[0]["status"] == "OK"


def test_failures_that_repeat_are_logged_at_a_limited_rate(daemons, fake_worker, battery):
    """A worker is lost while many products wait for it, each of which fails for the same reason."""
    daemon = daemons.start(
        "--lame-duck=1ms",
        "--devices=cuda:0,cpu",
        f"--worker-binary={fake_worker}",
        "--max-queued-requests=4096",
        "--max-concurrent-streams=4096",
    )
    product = Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)), a_type="f16", b_type="f16")
    request = product.request()
    request.device = "cuda:0"
    [worker] = children_of(daemon.pid)
    with grpc.insecure_channel(daemon.tcp, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        os.kill(worker, signal.SIGSTOP)  # The daemon's watchdog kills it after two seconds.
        calls = [stub.Multiply.future(request, timeout=DEADLINE_S) for _ in range(1000)]
        failed = sum(call.code() != grpc.StatusCode.OK for call in calls)
    daemon.stop()
    assert failed > 300, "the attack was none"
    lines = [line for line in daemon.log() if line["level"] in ("warning", "error")]
    # The first ten of each kind in each second, and the summaries.
    battery.holds("failures that repeat: lines of warnings", most=100, seen=len(lines))
    told = sum(int(line["suppressed"]) for line in lines if line["event"] == "lines_suppressed")
    written = sum(line["event"] == "request" for line in lines)
    assert told > 0 and written + told <= failed


def children_of(pid):
    done = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True)
    return {int(child) for child in done.stdout.split()}


def restart_device(address, device):
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            request = admin_pb2.RestartDeviceRequest(device=device)
            admin_pb2_grpc.AdminStub(channel).RestartDevice(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_only_who_is_local_restarts_devices(daemons, fake_worker, gemmctl):
    daemon = daemons.start(
        "--lame-duck=1ms", "--devices=cuda:0,cpu", f"--worker-binary={fake_worker}"
    )
    before = children_of(daemon.pid)
    assert restart_device(daemon.tcp, "cuda:0") == grpc.StatusCode.PERMISSION_DENIED
    assert restart_device(daemon.unix, "cpu") == grpc.StatusCode.UNIMPLEMENTED
    assert restart_device(daemon.unix, "cuda:9") == grpc.StatusCode.NOT_FOUND
    assert children_of(daemon.pid) == before
    command = [gemmctl, f"--address={daemon.unix}", "restart-device", "cuda:0"]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
    wait_until(lambda: children_of(daemon.pid) - before, DEADLINE_S, "another worker")
    refused = subprocess.run(
        [gemmctl, f"--address={daemon.tcp}", "restart-device", "cuda:0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert refused.returncode != 0 and "want one of a unix socket" in refused.stderr


def test_a_gpu_that_failed_too_often_is_tried_again(daemons, fake_worker):
    """Its worker is killed more often in a minute than it is started again."""
    daemon = daemons.start(
        "--lame-duck=1ms", "--devices=cuda:0,cpu", f"--worker-binary={fake_worker}", "--worker-rest=2s"
    )

    def kill_worker():
        found = wait_until(lambda: children_of(daemon.pid) or rests(), DEADLINE_S, "a worker")
        if not isinstance(found, set):
            return
        [worker] = found
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: worker not in children_of(daemon.pid), DEADLINE_S, "its end")

    def rests():
        return [
            line for line in daemon.events("device_not_ready") if "too many starts" in line["reason"]
        ]

    while not rests():
        kill_worker()
        time.sleep(0.05)  # Until the daemon has seen it, it tells of nothing.
    wait_until(lambda: daemon.events("device_ready")[-1]["time"] > rests()[-1]["time"], DEADLINE_S, "it again")


# File descriptors.


class Witness:
    """A client with a connection of its own that multiplies all the time."""

    def __init__(self, address):
        self.failures = []
        self.served = 0
        self._stop = threading.Event()
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._stub = gemm_pb2_grpc.GemmStub(self._channel)
        self._multiply()
        self._thread = threading.Thread(target=self._run)

    def _multiply(self):
        try:
            check_bytes(self._stub.Multiply(SMALL.request(), timeout=DEADLINE_S).d, SMALL)
            self.served += 1
        except grpc.RpcError as failure:
            self.failures.append(failure.code())

    def _run(self):
        while not self._stop.wait(0.01):
            self._multiply()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._channel.close()


def is_served(address):
    try:
        multiply(address)
    except grpc.RpcError:
        return False
    return True


def seconds_until_served(address):
    start = time.monotonic()
    wait_until(lambda: is_served(address), DEADLINE_S, "a new connection is served")
    return time.monotonic() - start


def flood(stack, daemon, count):
    """Connections that the daemon may keep or close, as long as the stack is not closed."""
    for _ in range(count):
        with contextlib.suppress(ConnectionError):
            stack.enter_context(open_socket(daemon.tcp))


def test_a_flood_of_connections(daemons, battery, is_sanitized):
    """Ten times as many as there may be, of one peer, who leaves no room for itself."""
    most, of_peer = 128, 64
    daemon = daemons.start("--lame-duck=1ms", "--handshake-timeout=120s", open_files=(256, 256))
    before = daemon.open_files()
    # One second, and what a call to a daemon under sanitizers takes on a machine with other work.
    soon_s = 10 if is_sanitized else 1
    with Witness(daemon.tcp) as witness:
        with contextlib.ExitStack() as stack:
            flood(stack, daemon, 10 * most)
            refused = wait_until(lambda: daemon.events("connection_refused"), 10, "refusals")
            assert refused[0]["reason"] == "as many as --max-connections-per-peer"
            assert not is_served(daemon.tcp)
            others_s = seconds_until_served(daemon.unix)
            battery.holds("flood of connections: other peers served", most=soon_s, seen=others_s, unit="s")
            kept = daemon.open_files() - before
            battery.holds("flood of connections: descriptors", most=of_peer + 16, seen=kept)
            battery.holds("flood of connections: descriptors", least=of_peer - 16, seen=kept)
        again_s = seconds_until_served(daemon.tcp)
        battery.holds("flood of connections: accepts after release", most=soon_s, seen=again_s, unit="s")
    battery.holds("flood of connections: failed calls before it", most=0, seen=len(witness.failures))
    assert witness.served > 0


def test_no_descriptor_is_left(daemons, battery, is_sanitized):
    """Something else has taken all: peers are told so at once, and accepted as soon as one is free."""
    daemon = daemons.start("--lame-duck=1ms", "--handshake-timeout=120s", open_files=(256, 256))
    with Witness(daemon.tcp) as witness:
        tight = daemon.open_files() + 5
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (tight, 256))
        with contextlib.ExitStack() as stack:
            flood(stack, daemon, 200)
            refused = wait_until(lambda: daemon.events("connection_refused"), 10, "refusals")
            assert refused[0]["reason"] == "no file descriptor is left"
            # Not left waiting: what is refused ends at once.
            with open_socket(daemon.tcp) as peer:
                peer.settimeout(DEADLINE_S)
                with contextlib.suppress(ConnectionError):
                    assert peer.recv(1) == b""
        soon_s = 10 if is_sanitized else 1
        again_s = seconds_until_served(daemon.tcp)
        battery.holds("no descriptor left: accepts after release", most=soon_s, seen=again_s, unit="s")
    battery.holds("no descriptor left: failed calls before it", most=0, seen=len(witness.failures))


def test_more_connections_than_files(gemmd):
    done = subprocess.run(
        [gemmd, "--listen=127.0.0.1:0", "--max-connections=1000000000"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert "max-connections: got" in parse_log_line(done.stderr.splitlines()[-1])["reason"]


# The service manager.


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """Where systemd listens to what it starts."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", "900000")
        yield listening


def told(manager):
    return manager.recv(4096).decode().split("\n")


def test_the_service_manager_is_told(daemons, manager):
    """That it starts, serves, is alive, and stops, in this order."""
    daemon = daemons.start("--lame-duck=1ms")
    assert told(manager) == ["STATUS=Checks its devices"]
    lines = [told(manager) for _ in range(6)]
    [serves] = [line for line in lines if line[0] == "READY=1"]
    assert all(address in serves[1] for address in daemon.addresses)
    assert lines.count(["WATCHDOG=1"]) == 5
    daemon.signal(signal.SIGTERM)
    while (line := told(manager))[0] != "STOPPING=1":
        assert line == ["WATCHDOG=1"]
    assert daemon.wait() == 0
    assert not daemon.ready_file.exists()


def test_the_watchdog_starves_with_the_daemon(daemons, manager):
    daemon = daemons.start("--lame-duck=1ms")
    while told(manager) != ["WATCHDOG=1"]:
        pass
    daemon.signal(signal.SIGSTOP)
    manager.settimeout(2)  # More than twice what systemd would wait.
    with pytest.raises(TimeoutError):
        for _ in range(10):
            told(manager)
    daemon.signal(signal.SIGCONT)
    manager.settimeout(DEADLINE_S)
    assert told(manager) == ["WATCHDOG=1"]
    daemon.stop()


def test_probes(daemons):
    daemon = daemons.start("--lame-duck=60s", "--metrics-listen=127.0.0.1:0")
    [listening] = daemon.events("metrics_listening")

    def status(path):
        try:
            with urllib.request.urlopen(f"http://{listening['address']}{path}", timeout=DEADLINE_S) as page:
                return page.status
        except urllib.error.HTTPError as error:
            return error.code

    assert (status("/healthz"), status("/readyz")) == (200, 200)
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: status("/readyz") == 503, DEADLINE_S, "lame duck")
    assert status("/healthz") == 200
    assert daemon.ready_file.exists()
    daemon.stop()  # The second signal.
