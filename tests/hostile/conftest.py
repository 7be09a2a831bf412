# SPDX-License-Identifier: Apache-2.0
"""The battery: what a hostile or careless peer tries, the bound that must hold, and what was seen.

Every test measures with `battery.holds` at least once; the table of all of them ends the run. The
fixtures and the means to speak with a daemon are those of tests/end_to_end.
"""

import dataclasses
import math
import os
import pathlib
import sys

import grpc
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "end_to_end"))
import fixtures  # noqa: E402
import metrics_page  # noqa: E402
from fixtures import *  # noqa: E402, F403


@dataclasses.dataclass
class Line:
    attack: str
    bound: str
    seen: str
    held: bool


class Battery:
    """What was tried so far."""

    def __init__(self, is_long, kills=None):
        self.is_long = is_long
        self.kills = kills or (200 if is_long else 6)
        self.lines = []

    def holds(self, attack, *, most=None, least=None, seen, unit=""):
        """Demands that what was seen is at most, or at least, the bound: NaN is neither."""
        assert (most is None) != (least is None), "one bound, please"
        held = seen <= most if least is None else seen >= least
        bound = f"<= {most:g}" if least is None else f">= {least:g}"
        line = Line(attack, f"{bound} {unit}".strip(), f"{seen:.4g} {unit}".strip(), bool(held))
        self.lines.append(line)
        assert held, f"{attack}: got {seen:g} {unit}, want {bound}"


def pytest_addoption(parser):
    fixtures.pytest_addoption(parser)
    parser.getgroup("gemmd").addoption(
        "--long", action="store_true", help="attack for longer, and with more, than in continuous integration"
    )
    parser.getgroup("gemmd").addoption(
        "--kills", type=int, help="owners of tensors to kill on each device (default: 6, with --long 200)"
    )


def pytest_configure(config):
    fixtures.pytest_configure(config)
    config.battery = Battery(config.getoption("--long"), config.getoption("--kills"))


@pytest.fixture(scope="session")
def battery(request):
    return request.config.battery


@pytest.fixture(scope="module")
def daemon(request, gemmd, tmp_path_factory, battery, is_sanitized):
    """As that of tests/end_to_end. At the end it tells for how long any handler held a thread of gRPC's,
    whatever the tests of the file sent. Where other work takes the processors that says little."""
    daemons = fixtures.Daemons(gemmd, tmp_path_factory.mktemp)
    flags = ["--lame-duck=1ms", *getattr(request.module, "GEMMD_FLAGS", ())]
    if not any(flag.startswith("--metrics-listen") for flag in flags):
        flags.append("--metrics-listen=127.0.0.1:0")
    daemon = daemons.start(*flags)
    before = metrics_page.scrape(daemon)
    yield daemon
    longest = metrics_page.longest_handler_ms(metrics_page.scrape(daemon), before)
    daemons.end()
    if longest:
        has_room = (os.cpu_count() or 1) >= 8 and not is_sanitized
        method = max(longest, key=longest.get)
        battery.holds(
            f"all of {request.path.name}: a handler ({method})",
            most=5 if has_room else math.inf,
            seen=longest[method],
            unit="ms",
        )


def pytest_terminal_summary(terminalreporter, config):
    lines = config.battery.lines
    if not lines:
        return
    width = max(len(line.attack) for line in lines)
    bound_width = max(len(line.bound) for line in lines)
    terminalreporter.section("attack, bound, seen")
    for line in lines:
        mark = "" if line.held else "  BROKEN"
        terminalreporter.write_line(f"{line.attack:<{width}}  {line.bound:>{bound_width}}  {line.seen}{mark}")


@pytest.fixture
def large(daemon):
    """A channel for messages of any length."""
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    with grpc.insecure_channel(daemon.tcp, options=options) as channel:
        yield channel
