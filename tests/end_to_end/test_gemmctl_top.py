# SPDX-License-Identifier: Apache-2.0
"""gemmctl top on a terminal: what fits, what keys do, and the state in which it leaves the
terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

GEMMD_FLAGS = ("--devices=cpu,sim:sm_80,sim:sm_90", "--cpu-threads=1")
LIMIT_S = 300
HOME = "\x1b[H\x1b[J"


class Terminal:
    """A program on its own terminal."""

    def __init__(self, command, columns=80, lines=24):
        self.main, terminal = pty.openpty()
        self.before = termios.tcgetattr(self.main)
        self.resize(columns, lines)
        # It leads its session, so that the terminal is its controlling terminal.
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(terminal)
        self.text = ""

    def resize(self, columns, lines):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys):
        os.write(self.main, keys.encode())

    def view(self, wanted):
        """The first complete view from now on for which `wanted` is true, as lines."""
        self.text = self.text[self.text.rfind(HOME) :] if HOME in self.text else self.text
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if select.select([self.main], [], [], 0.2)[0]:
                self.text += os.read(self.main, 1 << 16).decode(errors="ignore")
            # The text between two moves home is a complete view.
            for view in self.text.split(HOME)[1:-1]:
                lines = view.replace("\r\n", "\n").splitlines()
                if wanted(lines):
                    return lines
        raise AssertionError(f"not within {LIMIT_S} s; seen: {self.text[-2000:]!r}")

    def end(self):
        """Waits for the end. Returns the exit code."""
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.main], [], [], 0.1)[0]:
                try:
                    os.read(self.main, 1 << 16)
                except OSError:  # No process holds the terminal any more.
                    pass
        return self.process.wait(timeout=1)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.main)


@pytest.fixture
def top(gemmctl, daemon):
    terminals = []

    def start(*arguments, **size):
        command = [gemmctl, "--address", daemon.unix, "top", "--interval=100ms", *arguments]
        terminals.append(Terminal(command, **size))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def has(word):
    return lambda lines: any(word in line for line in lines)


def test_fits_and_keys(top):
    terminal = top()
    lines = terminal.view(has("2 idle simulators not shown"))
    assert max(map(len, lines)) <= 80 and not has("sim:")(lines)
    [heading] = [line for line in lines if line.startswith("device")]
    assert re.search(r"waiting +busy +products/s", heading) and "bytes waiting" not in heading
    lines = terminal.view(has("history"))
    assert any(line.startswith("cpu") and line.endswith("_") for line in lines), lines

    terminal.press("a")
    lines = terminal.view(has("sim:sm_80"))
    assert max(map(len, lines)) <= 80 and not has("not shown")(lines)

    terminal.resize(40, 24)
    lines = terminal.view(lambda lines: max(map(len, lines)) <= 40)
    assert has("sim:sm_80")(lines) and has("products/s")(lines)
    terminal.resize(200, 6)
    lines = terminal.view(lambda lines: has("bytes waiting")(lines) and len(lines) <= 5)
    assert lines[-1] == "2 more lines"

    assert terminal.before[3] & termios.ECHO and not termios.tcgetattr(terminal.main)[3] & termios.ECHO
    terminal.press("q")
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.main) == terminal.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_leave_the_terminal_as_it_was(top, number):
    terminal = top()
    terminal.view(has("cpu"))
    assert termios.tcgetattr(terminal.main) != terminal.before
    if number == signal.SIGINT:
        terminal.press("\x03")
    else:
        terminal.process.send_signal(number)
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.main) == terminal.before


def test_sorted_by_what_devices_do(top, gemmctl, daemon):
    """A simulator with a product is not shown as idle, is busy while the product runs, and comes
    first."""
    terminal = top("--sort=busy")
    terminal.view(has("2 idle simulators not shown"))
    product = ["multiply", "--random=96,96,96", "--type=f16", "--device=sim:sm_90", "--repeat=1000000"]
    with subprocess.Popen([gemmctl, "--address", daemon.unix, *product]) as load:
        try:
            # The first view with the product may be of a moment right after it came: the device is
            # first, at 0 %.
            def is_busy(lines):
                devices = [line for line in lines if line.startswith(("cpu", "sim:"))]
                names = [line.split()[0] for line in devices]
                return names == ["sim:sm_90", "cpu"] and int(re.search(r"(\d+) %", devices[0])[1]) > 0

            assert has("1 idle simulator not shown")(terminal.view(is_busy))
            terminal.press("n")
            terminal.view(lambda lines: has("cpu")(lines) and has("sim:sm_90")(lines)
                          and [line[:3] for line in lines if line.startswith(("cpu", "sim:"))] == ["cpu", "sim"])  # fmt: skip
            lines = terminal.view(has("\u2588"))
            assert any(line.startswith("sim:sm_90") and "\u2588" in line for line in lines)
        finally:
            load.kill()
    terminal.press("q")
    assert terminal.end() == 0


def test_one_view(ctl, daemon):
    """Of one interval, for people and for programs; not on a terminal."""
    code, out, err = ctl("top", "--once", "--interval=1ms")
    assert code == 0, err
    assert out.startswith(f"gemmd {daemon.unix}   serving   up ") and out.count("gemmd unix:") == 1
    assert re.search(r" admitted 0 of [\d,]+, .* [\d,]+/s admitted   0/s refused\n", out), out
    assert re.search(r"\ncpu +ready +0 ", out) and "\x1b" not in out, out
    code, out, err = ctl("top", "--once", "--json", "--interval=1ms")
    assert code == 0, err
    told = json.loads(out)
    assert told["interval_seconds"] >= 0.001
    assert [rate["device"] for rate in told["rates"]] == ["cpu", "sim:sm_80", "sim:sm_90"]
    assert told["rates"][0]["products_per_second"] == 0
    assert [device["queued_requests"] for device in told["statistics"]["devices"]] == [0, 0, 0]
