# SPDX-License-Identifier: Apache-2.0
"""How the daemon starts, or reports why it does not, what it reads from files, and what it logs."""

import datetime
import os
import re
import signal
import subprocess

import grpc
import numpy as np
import pytest
from bystander import DEADLINE_S
from daemon import parse_log_line, wait_until
from gemmd.v1 import gemm_pb2_grpc, registry_pb2, registry_pb2_grpc
from product import Product, check_bytes

GEMMD_FLAGS = ["--devices=cpu"]
START_LIMIT_S = 120


def run(gemmd, *arguments):
    """Runs a daemon that should end by itself. Returns exit code, standard output and error."""
    command = [gemmd, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def multiply(address, request_id="", size=4):
    product = Product(a=np.ones((1, size, size)), b=np.ones((1, size, size)))
    product.request_id = request_id
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        answer = stub.Multiply(product.request(), timeout=DEADLINE_S)
    check_bytes(answer.d, product)
    return answer


def limits_of(daemon):
    with grpc.insecure_channel(daemon.tcp) as channel:
        stub = registry_pb2_grpc.RegistryStub(channel)
        info = stub.GetServerInfo(registry_pb2.GetServerInfoRequest(), timeout=DEADLINE_S)
    return info.limits


# Starting.


def test_ready_file_holds_the_addresses(daemon):
    assert daemon.ready_file.read_text() == f"{daemon.tcp}\n{daemon.unix}\n"
    assert daemon.port > 0 and daemon.unix == f"unix:{daemon.socket_path}"
    for address in daemon.addresses:
        multiply(address)
    assert {path.name for path in daemon.folder.iterdir()} == {"ready", "gemmd.sock", "stderr"}


def test_a_ready_file_that_cannot_be_written(gemmd):
    code, _, error = run(gemmd, "--devices=cpu", "--listen=127.0.0.1:0", "--ready-file=/dev/null/ready")
    assert code == 1
    assert "/dev/null/ready" in parse_log_line(error.splitlines()[-1])["reason"]


@pytest.mark.parametrize("kind", ["file", "link", "pipe", "folder"])
def test_a_ready_file_that_is_somebody_else_s(gemmd, tmp_path, kind):
    """Reported before the devices are measured; the file stays."""
    path = tmp_path / "ready"
    if kind == "file":
        path.write_text("a letter")
    elif kind == "link":
        path.symlink_to(tmp_path / "none")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = path.lstat()
    code, _, error = run(gemmd, "--devices=cpu", "--listen=127.0.0.1:0", f"--ready-file={path}")
    assert code == 1
    assert f"ready-file: got {path}, a" in parse_log_line(error.splitlines()[-1])["reason"]
    assert "event=device_ready" not in error
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_port_in_use(daemon, gemmd, tmp_path):
    ready = tmp_path / "ready"
    code, _, error = run(gemmd, "--devices=cpu", f"--listen={daemon.tcp}", f"--ready-file={ready}")
    assert code == 1
    assert "event=device_ready" not in error  # Reported before the devices are ready.
    last = parse_log_line(error.splitlines()[-1])
    assert (last["event"], last["level"], last["code"]) == ("stop", "error", "UNAVAILABLE")
    assert daemon.tcp in last["reason"]
    assert not ready.exists()
    multiply(daemon.tcp)


@pytest.mark.parametrize("before,after", [("127.0.0.1:0,", ""), ("", ",127.0.0.1:0")])
def test_the_address_in_use_is_the_one_named(daemon, gemmd, before, after):
    code, _, error = run(gemmd, "--devices=cpu", f"--listen={before}{daemon.tcp}{after}")
    assert code == 1
    assert "event=device_ready" not in error  # Reported before the devices are ready.
    assert daemon.tcp in parse_log_line(error.splitlines()[-1])["reason"]


def test_a_unix_socket_in_use(daemon, gemmd, tmp_path):
    ready = tmp_path / "ready"
    code, _, error = run(gemmd, "--devices=cpu", f"--listen={daemon.unix}", f"--ready-file={ready}")
    assert code == 1
    assert "event=device_ready" not in error  # Reported before the devices are ready.
    assert daemon.unix in parse_log_line(error.splitlines()[-1])["reason"]
    assert not ready.exists()
    multiply(daemon.unix)


def test_the_socket_of_a_killed_daemon_is_taken_over(daemons):
    killed = daemons.start("--devices=cpu")
    killed.kill()
    killed.wait()
    assert killed.socket_path.exists()
    listen = f"127.0.0.1:0,{killed.unix}"
    multiply(daemons.start("--devices=cpu", "--lame-duck=1ms", listen=listen).unix)


@pytest.mark.parametrize(
    "argument,named",
    [
        ("--nonsense", "--nonsense"),
        ("nonsense", "nonsense"),
        ("--lame-duck=5", "--lame-duck"),
        ("--lame-duck=soon", "--lame-duck"),
        ("--max-message-bytes=lots", "--max-message-bytes"),
        ("--max-queued-requests=0", "--max-queued-requests"),
        ("--max-concurrent-streams=0", "--max-concurrent-streams"),
        ("--cpu-threads=-1", "--cpu-threads"),
        ("--devices=tpu:0", "--devices"),
        ("--log-level=loud", "--log-level"),
        ("--listen=", "--listen"),
        ("--config=/dev/null/config", "/dev/null/config"),
        ("--audit-log=/dev/null/log", "audit-log"),
        ("--log-file=/dev/null", "--log-file, which is gone: "),
    ],
)
def test_bad_flags_end_with_2(gemmd, argument, named):
    code, output, error = run(gemmd, argument)
    assert (code, output) == (2, "")
    assert named in error


@pytest.mark.parametrize("argument", ["--listen=127.0.0.1:0", "--devices=cpu"])
def test_a_stray_word_after_a_list_ends_with_2(gemmd, argument):
    code, _, error = run(gemmd, argument, "nonsense")
    assert code == 2
    assert "nonsense" in error


@pytest.mark.parametrize(
    "argument",
    [
        "--max-message-bytes=0",
        "--max-message-bytes=3GiB",
        "--handshake-timeout=0s",
        "--listen=nonsense",
        "--listen=unix:",
        "--devices=cpu,cpu",
    ],
)
def test_values_that_make_no_sense_are_named(gemmd, argument):
    name = argument.split("=")[0].removeprefix("--")
    devices = [] if name == "devices" else ["--devices=cpu"]
    code, _, error = run(gemmd, "--listen=127.0.0.1:0", *devices, argument)
    assert code in (1, 2)
    assert name in error.splitlines()[-1]


def test_help_and_version(gemmd):
    code, output, error = run(gemmd, "--help")
    assert (code, error) == (0, "")
    assert all(flag in output for flag in ("--listen", "--config", "--memory-quota-bytes"))


def test_every_program_tells_what_it_is_built_from(gemmd, gemmctl, fake_worker):
    told = {}
    for program, name in ((gemmd, "gemmd"), (gemmctl, "gemmctl"), (fake_worker, "gemmd-worker")):
        code, output, error = run(program, "--version")
        assert (code, error) == (0, "")
        first, *rest = output.splitlines()
        assert re.fullmatch(rf"{name} \d+\.\d+\.\d+", first)
        told[name] = [first.removeprefix(name), *rest]
    assert [line.split()[0] for line in told["gemmd"][1:]] == ["commit", "gRPC", "protobuf"]
    assert told["gemmd"] == told["gemmctl"] == told["gemmd-worker"]


# The configuration file.


def test_config_file(daemons, tmp_path):
    config = tmp_path / "gemmd.conf"
    config.write_text(
        "# A comment.\nmax-message-bytes=2MiB\nmax-queued-requests = 7\nlame-duck=1ms\n"
        'log-level="debug"\n'
    )
    daemon = daemons.start("--devices=cpu", f"--config={config}", "--max-queued-requests=9")
    limits = limits_of(daemon)
    assert limits.max_message_bytes == 2 << 20
    assert limits.max_queued_requests == 9, "the command line wins"
    multiply(daemon.tcp)
    daemon.stop()
    assert daemon.events("lame_duck")[0]["duration"] == "1ms"
    assert len(daemon.events("request")) == 1


def test_config_file_may_name_the_addresses(gemmd, daemons, tmp_path):
    path = tmp_path / "s"
    config = tmp_path / "gemmd.conf"
    config.write_text(f'listen=["127.0.0.1:0","unix:{path}"]\nlame-duck=1ms\n')
    daemon = daemons.launch("--devices=cpu", f"--config={config}", listen="").wait_until_ready()
    assert daemon.unix == f"unix:{path}"
    multiply(daemon.unix)


@pytest.mark.parametrize("line", ["nonsense=1", "lame-duck=soon", "max-queued-requests=0"])
def test_bad_config_files_end_with_2(gemmd, tmp_path, line):
    config = tmp_path / "gemmd.conf"
    config.write_text(line + "\n")
    code, _, error = run(gemmd, f"--config={config}")
    assert code == 2
    assert line.split("=")[0] in error


# The log.


def test_one_line_for_each_event(daemons):
    daemon = daemons.start("--lame-duck=2ms", "--grace=3s", "--memory-limit-bytes=1gb")
    multiply(daemon.tcp)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    log = daemon.log()
    events = [line["event"] for line in log]
    assert events == [
        "start",
        "device_ready",
        "worker_confined",
        "device_ready",
        "worker_confined",
        "listening",
        "listening",
        "serving",
        "lame_duck",
        "drain",
        "stop",
    ]
    assert {line["level"] for line in log} == {"info"}
    times = [datetime.datetime.fromisoformat(line["time"]) for line in log]
    assert times == sorted(times) and times[0].tzinfo is not None
    by_event = {line["event"]: line for line in log}
    assert by_event["start"]["pid"] == str(daemon.pid)
    assert by_event["start"]["memory_limit_bytes"] == str(1 << 30)
    assert [line["device"] for line in daemon.events("device_ready")] == ["cpu", "sim:sm_90"]
    assert [line["address"] for line in daemon.events("listening")] == daemon.addresses
    assert (by_event["lame_duck"]["signal"], by_event["lame_duck"]["duration"]) == ("15", "2ms")
    assert by_event["drain"]["grace"] == "3s"
    assert by_event["stop"]["code"] == "OK"


def test_a_debug_line_for_each_request(daemons):
    """The log and the answer agree about a request."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", "--log-level=debug")
    forged = 'x\ntime=now level=error event=stop code=OK id="'
    ids = ["one", "two", "with space", "", forged]
    answers = [multiply(daemon.addresses[i % 2], name) for i, name in enumerate(ids)]
    daemon.stop()
    lines = daemon.events("request")
    assert len(lines) == len(ids) and len(daemon.events("stop")) == 1
    for i, (name, answer, line) in enumerate(zip(ids, answers, lines, strict=True)):
        assert line["level"] == "debug"
        assert line["id"].replace(r"\n", "\n").replace(r"\"", '"') == name
        assert line["problem"].startswith("4x4x4 f32")
        assert (line["kernel"], line["device"]) == (answer.kernel, "cpu")
        assert line["status"] == "OK"
        timing = answer.timing
        assert int(line["queue_ns"]) == timing.queue_ns
        assert int(line["compute_ns"]) == timing.compute_ns
        assert int(line["total_ns"]) >= timing.total_ns
        if i % 2:
            assert line["peer"] == f"unix:uid:{os.getuid()}"
        else:
            assert line["peer"].startswith("ipv4:127.0.0.1:")


def test_the_log_is_appended_to_a_file_by_the_shell(gemmd, tmp_path):
    """Standard error has the whole log, and standard output nothing."""
    log_file, ready = tmp_path / "log", tmp_path / "ready"
    address = f"unix:{tmp_path / 'socket'}"
    command = [gemmd, "--devices=cpu", "--lame-duck=1ms", f"--listen={address}", f"--ready-file={ready}"]
    for _ in range(2):
        daemon = subprocess.Popen(
            ["bash", "-c", 'exec "$@" 2>>"$0"', log_file, *command], stdout=subprocess.PIPE, text=True
        )
        wait_until(lambda daemon=daemon: ready.exists() or daemon.poll() is not None, START_LIMIT_S, "ready")
        multiply(address)
        daemon.send_signal(signal.SIGTERM)
        output, _ = daemon.communicate(timeout=START_LIMIT_S)
        assert (daemon.returncode, output) == (0, "")
    events = [parse_log_line(line)["event"] for line in log_file.read_text().splitlines()]
    assert events.count("start") == events.count("stop") == 2
    assert events[-1] == "stop"


def test_log_level_off(daemons):
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", "--log-level=off")
    multiply(daemon.tcp)
    daemon.stop()
    assert daemon.stderr() == ""


@pytest.mark.parametrize(
    ("variable", "value", "found"),
    [
        (None, "", {"OMP_WAIT_POLICY=passive"}),
        ("OMP_WAIT_POLICY", "active", {"OMP_WAIT_POLICY=active"}),
        ("GOMP_SPINCOUNT", "7", {"GOMP_SPINCOUNT=7"}),
    ],
)
def test_idle_threads_of_openmp_sleep(daemons, monkeypatch, variable, value, found):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, value)
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms")
    with open(f"/proc/{daemon.pid}/environ") as environment:
        settings = environment.read().split("\0")
    assert {line for line in settings if line.startswith(("OMP_WAIT", "GOMP_"))} == found
