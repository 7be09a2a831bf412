# SPDX-License-Identifier: Apache-2.0
"""Owners of tensors that are killed at any moment: everything that they had is released, in host
memory, on a GPU and in between, files and sessions included."""

import os
import pathlib
import select
import signal
import subprocess
import sys

import pytest
from bystander import Bystander
from daemon import wait_until
from kept import kept_bytes
from tensor_account import DEADLINE_S, held, wait_until_nothing_is_held
from tensors import MIB

FLAGS = [
    "--lame-duck=1ms",
    "--cpu-threads=1",
    "--max-queued-bytes=200MiB",
    "--metrics-listen=127.0.0.1:0",
    "--session-linger=500ms",
]
VICTIM = pathlib.Path(__file__).parent / "doomed_owner.py"
KINDS = ["product", "upload", "holding"]


DEVICES = ["cpu", "sim:sm_90", "cuda:0"]


@pytest.fixture
def victims(request, device, daemons):
    """A daemon, and a function that starts an owner which does something with one device."""
    devices = device if device == "cpu" else f"cpu,{device}"
    daemon = daemons.start(*FLAGS, f"--devices={devices}")
    engine = "host" if device == "cpu" else "gpu" if request.config.getoption("--worker") else "simulated"
    folders = [os.path.dirname(sys.modules["tensors"].__file__), request.config.stubs]

    def start(what):
        command = [sys.executable, str(VICTIM), daemon.unix, device, what, engine, *folders]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    return daemon, device, start


def kill_when_ready(victim):
    try:
        assert victim.stdout.readline() == b"ready\n"
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait(DEADLINE_S)
        victim.stdout.close()
    assert victim.returncode == -signal.SIGKILL


def what_one_holds(daemon, start, what):
    victim = start(what)
    select.select([victim.stdout], [], [], DEADLINE_S)
    holds = held(daemon)
    kill_when_ready(victim)
    wait_until_nothing_is_held(daemon)
    return holds


def kill_one_that_holds(daemon, start, what, least):
    """Resources that are found to be free afterwards were in use before: an owner is seen to have
    at least this much of each. If an owner's products have ended already, another one follows."""

    def has_held():
        holds = what_one_holds(daemon, start, what)
        return all(holds[name] >= count for name, count in least.items())

    wait_until(has_held, DEADLINE_S, f"{what} takes {least}")


def test_killed_owners_leave_nothing(victims, battery, is_sanitized, is_timed):
    daemon, device, start = victims
    with Bystander(daemon) as bystander:
        wait_until_nothing_is_held(daemon)
        of_device = {f"gemmd_tensor_bytes {device}": 1} if device.startswith("cuda:") else {}
        kill_one_that_holds(daemon, start, "upload", {"gemmd_tensor_bytes host": 24 * MIB + 1})
        kill_one_that_holds(daemon, start, "holding", {"gemmd_tensors": 6} | of_device)
        kill_one_that_holds(daemon, start, "product", {"gemmd_admitted_requests": 1})
        files, resident = daemon.open_files(), daemon.rss_bytes()
        killed = len(KINDS)
        while killed < battery.kills:
            kinds = KINDS[: battery.kills - killed]
            for victim in [start(what) for what in kinds]:
                kill_when_ready(victim)
            killed += len(kinds)
        wait_until_nothing_is_held(daemon)
        wait_until(lambda: daemon.open_files() <= files, DEADLINE_S, "descriptors are closed")
        name = f"{killed} owners killed on {device}"
        battery.holds(f"{name}: descriptors", most=files, seen=daemon.open_files())
        battery.holds(f"{name}: sessions, tensors, uploads, products, bytes", most=0, seen=sum(held(daemon).values()))
        # One victim has 16 to 24 MiB; a kernel's library keeps some memory of its own. A device
        # keeps its workspace and its last results for a second.
        if is_timed and not is_sanitized:
            grown = kept_bytes(daemon, resident, most=40 * MIB, limit_s=DEADLINE_S) / MIB
            battery.timed(f"{name}: growth", most=40, seen=grown, unit="MiB")
        bystander.check()
