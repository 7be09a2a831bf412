# SPDX-License-Identifier: Apache-2.0
"""The systemd unit, checked by systemd itself. It is not started: no systemd runs in the tests."""

import configparser
import os
import re
import shlex
import shutil
import subprocess

import pytest

from daemon import wait_until
from image import SOURCE, run
from manifests import seconds

SYSTEMD = SOURCE / "deploy/systemd"
MAX_EXPOSURE = 1.5
MARGIN_S = 10
MODPROBE = "/usr/bin/nvidia-modprobe"


@pytest.fixture(params=["", "gpu.conf"])
def unit(request, tree, tmp_path):
    """The unit's file with the path of the installed tree, and a drop-in."""
    text = (SYSTEMD / "gemmd.service").read_text()
    path = tmp_path / "gemmd.service"
    path.write_text(text.replace("/opt/gemmd", str(tree)))
    if request.param:
        (tmp_path / "gemmd.service.d").mkdir()
        shutil.copy(SYSTEMD / "gemmd.service.d" / request.param, tmp_path / "gemmd.service.d")
        text = (SYSTEMD / "gemmd-gpu.service").read_text()
        # This machine need not have the driver.
        (tmp_path / "gemmd-gpu.service").write_text(text.replace(MODPROBE, "/bin/true"))
    return path


def test_systemd_understands_the_unit(unit):
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_calls_it_safe(unit):
    text = run("systemd-analyze", "security", "--offline=true", unit)
    exposure = float(re.search(r"Overall exposure level for gemmd.service: ([0-9.]+)", text)[1])
    assert exposure <= MAX_EXPOSURE, text


def test_the_devices_of_gpus_are_made_before_and_outside():
    """By a setuid program, which gemmd's own unit would not allow."""
    (command,) = re.findall(
        r"^ExecStart=(.*)$", (SYSTEMD / "gemmd-gpu.service").read_text(), re.MULTILINE
    )
    assert command.split() == [MODPROBE, "-u", "-c=0"]
    drop_in = (SYSTEMD / "gemmd.service.d/gpu.conf").read_text().splitlines()
    assert {"After=gemmd-gpu.service", "Requires=gemmd-gpu.service"} <= set(drop_in)


def settings():
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.optionxform = str
    unit.read(SYSTEMD / "gemmd.service")
    options = configparser.ConfigParser(interpolation=None, delimiters="=")
    options.read_string("[gemmd]\n" + (SYSTEMD / "gemmd.conf").read_text())
    return unit["Service"], options["gemmd"]


def test_the_service_ends_after_its_daemon():
    service, options = settings()
    drain_s = seconds(options["lame-duck"]) + seconds(options["grace"])
    assert drain_s + MARGIN_S <= seconds(service["TimeoutStopSec"])


def test_the_daemon_says_when_it_serves_and_that_it_lives():
    """The daemon's own checks come every 5 s, and three of them fit into the watchdog's time; it
    may take as long as a driver before it reports that it is ready."""
    service, _ = settings()
    assert service["Type"] == "notify"
    assert service["NotifyAccess"] == "main"
    assert 15 <= seconds(service["WatchdogSec"]) <= 60
    assert service["TimeoutStartSec"] == "5min"
    assert service["Restart"] in ("on-failure", "on-watchdog", "always")


def shell_of(setting):
    """The shell command that systemd runs for a setting of the unit, as systemd passes it on."""
    service, _ = settings()
    words = shlex.split(service[setting].replace("\\\n", " "))
    assert words[:2] == ["/bin/sh", "-c"]
    return [word.replace("$$", "$") for word in words]


def pauses_after(results, folder, failures_age_s=0):
    """How long each start waits after its daemon ended with these results; its sleep only prints
    the time."""
    told = folder / "told"
    sleep = folder / "bin/sleep"
    sleep.parent.mkdir(exist_ok=True)
    sleep.write_text(f'#!/bin/sh\necho "$1" >>{told}\n')
    sleep.chmod(0o755)
    environment = {"PATH": f"{sleep.parent}:{os.environ['PATH']}", "RUNTIME_DIRECTORY": str(folder)}
    pauses = []
    for result in results:
        told.write_text("0\n")
        for setting in ("ExecStopPost", "ExecStartPre"):
            subprocess.run(shell_of(setting), env={**environment, "SERVICE_RESULT": result}, check=True)
        pauses.append(int(told.read_text().split()[-1]))
        failures = folder / "failures"
        if failures.exists():
            past = failures.stat().st_mtime - failures_age_s
            os.utime(failures, (past, past))
    return pauses


def test_restarts_go_on_with_a_growing_pause(tmp_path):
    """Five crashes in a minute do not stop it: the unit has no limit, and a pause that grows to a
    minute."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.optionxform = str
    unit.read(SYSTEMD / "gemmd.service")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0" and "StartLimitBurst" not in unit["Unit"]
    assert seconds(unit["Service"]["RestartSec"]) == 1
    results = ["core-dump", "exit-code", "watchdog", *["signal"] * 6]
    assert pauses_after(results, tmp_path) == [0, 1, 3, 7, 15, 31, 63, 63, 63]
    assert pauses_after(["success", "signal"], tmp_path) == [0, 0]
    assert pauses_after(["signal"] * 3, tmp_path, failures_age_s=11 * 60) == [1, 0, 0]


def allowed_calls():
    """The system calls that the unit's filter allows."""
    names = {}
    for line in run("systemd-analyze", "syscall-filter").splitlines():
        if line.startswith("@"):
            group = names.setdefault(line.split()[0], [])
        elif line.startswith("    ") and not line.lstrip().startswith("#"):
            group.append(line.strip())

    def members(name):
        if not name.startswith("@"):
            return {name}
        return set().union(*(members(each) for each in names[name]))

    text = (SYSTEMD / "gemmd.service").read_text()
    allowed, *denied = re.findall(r"^SystemCallFilter=(.*)$", text, re.MULTILINE)
    calls = set().union(*(members(name) for name in allowed.split()))
    for line in denied:
        assert line.startswith("~")
        calls -= set().union(*(members(name) for name in line[1:].split()))
    return calls


def test_all_users_multiply_and_root_alone_operates(tree, tmp_path, program):
    """Over the unit's socket, which is open to all."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    _, options = settings()
    socket, ready = tmp_path / "gemmd.sock", tmp_path / "ready"
    daemon = program(
        tree / "bin/gemmd",
        f"--listen=unix:{socket}",
        f"--socket-mode={options['socket-mode']}",
        "--devices=cpu",
        "--lame-duck=1ms",
        f"--ready-file={ready}",
    )
    wait_until(lambda: ready.exists() or daemon.poll() is not None, 60, "gemmd ready")

    def gemmctl_as(user, *arguments):
        groups = ["--regid=65534", "--clear-groups"]
        command = ["setpriv", f"--reuid={user}", *groups, tree / "bin/gemmctl", f"--address=unix:{socket}"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True)

    for user in (65534, 0):
        assert gemmctl_as(user, "multiply", "--random=8,8,8").returncode == 0
    for command in (["sessions"], ["drop-session", "0123456789abcdef"], ["incidents"], ["restart-device", "cpu"]):
        refused = gemmctl_as(65534, *command)
        assert refused.returncode != 0, command
        assert "PERMISSION_DENIED: caller: got uid:65534, want an operator" in refused.stderr
        assert "PERMISSION_DENIED" not in gemmctl_as(0, *command).stderr


@pytest.mark.parametrize("devices", ["cpu,sim:sm_90", "cuda:0"])
def test_the_daemon_lives_with_the_calls_that_it_is_left(
    devices, tree, tmp_path, program, fake_worker
):
    """The unit's options, except the socket's folder, under strace: start, products, end. The GPU's
    worker uses host memory, and makes the daemon's system calls but not the driver's."""
    options = (SYSTEMD / "gemmd.conf").read_text()
    config = tmp_path / "gemmd.conf"
    config.write_text(
        f"{options}\ndevices={devices}\nworker-binary={fake_worker}\n".replace(
            "/run/gemmd", str(tmp_path)
        )
        .replace("127.0.0.1:8470", "127.0.0.1:0")
        .replace("127.0.0.1:8471", "127.0.0.1:0")
        .replace("lame-duck=5s", "lame-duck=1ms")
    )
    traced = tmp_path / "calls"
    ready = tmp_path / "ready"
    daemon = program(
        "strace",
        "--follow-forks",
        "--summary-only",
        f"--output={traced}",
        tree / "bin/gemmd",
        f"--config={config}",
        f"--ready-file={ready}",
    )
    wait_until(lambda: ready.exists() or daemon.poll() is not None, 60, "gemmd ready")
    assert ready.exists(), (tmp_path / "log0").read_text()
    address = f"--address=unix:{tmp_path}/gemmd.sock"
    for device in devices.split(","):
        run(
            tree / "bin/gemmctl",
            address,
            "multiply",
            "--random=200,200,200",
            "--type=bf16",
            f"--device={device}",
            "--verify",
        )
    (pid,) = run("pgrep", "--parent", daemon.pid).split()
    run("kill", "-TERM", pid)
    assert daemon.wait(60) == 0
    used = {line.split()[-1] for line in traced.read_text().splitlines()[2:-2]}
    assert {"futex", "mmap", "execve"} <= used
    assert used <= allowed_calls()
