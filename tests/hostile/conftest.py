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
import time

import grpc
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "end_to_end"))
import fixtures  # noqa: E402
import metrics_page  # noqa: E402
from fixtures import *  # noqa: E402, F403

RELEASE_S = 30  # A busy machine may take seconds over that.


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
    parser.getgroup("gemmd").addoption(
        "--device",
        help="the device, such as cuda:0, that every daemon has first and that products without a name "
        "go to (default: those that each file names)",
    )
    parser.getgroup("gemmd").addoption(
        "--worker",
        help="the worker of every daemon's GPUs in place of the tests' own, which is without a GPU; "
        "'default' takes the daemon's",
    )


def pytest_configure(config):
    fixtures.pytest_configure(config)
    config.addinivalue_line("markers", "own_device: makes sense only on the devices that it names itself")
    config.battery = Battery(config.getoption("--long"), config.getoption("--kills"))


def pytest_generate_tests(metafunc):
    """Where a file has DEVICES, its tests take one as `device`: each of them, or the one of --device."""
    if "device" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--device")
        metafunc.parametrize("device", [chosen] if chosen else metafunc.module.DEVICES, scope="module")


def pytest_runtest_setup(item):
    if item.config.getoption("--device") and item.get_closest_marker("own_device"):
        pytest.skip("measures on devices of its own")


@pytest.fixture(scope="session")
def battery(request):
    return request.config.battery


class Daemons(fixtures.Daemons):
    """Daemons with the device and the worker that the options name."""

    def __init__(self, config, binary, make_folder):
        super().__init__(binary, make_folder)
        self._device = config.getoption("--device")
        worker = config.getoption("--worker") or config.getoption("--fake-worker")
        self._worker_flags = [] if worker in (None, "default") else [f"--worker-binary={worker}"]

    def launch(self, *flags, **keywords):
        named = [flag for flag in flags if flag.startswith("--devices=")]
        devices = named[-1].removeprefix("--devices=").split(",") if named else []
        if self._device:
            others = [name for name in devices if name != self._device]
            devices = [self._device, *(others or ["cpu"])]  # A GPU does not take every type.
        flags = [flag for flag in flags if flag not in named]
        if devices:
            flags.append(f"--devices={','.join(devices)}")
        has_worker = any(flag.startswith("--worker-binary=") for flag in flags)
        if not has_worker and any(name.startswith("cuda") for name in devices):
            flags += self._worker_flags
        return super().launch(*flags, **keywords)


@pytest.fixture
def daemons(request, gemmd, tmp_path_factory):
    daemons = Daemons(request.config, gemmd, tmp_path_factory.mktemp)
    yield daemons
    daemons.end()


@pytest.fixture(scope="session")
def has_worker_faults(request):
    """For tests of what only the tests' own worker does."""
    if request.config.getoption("--worker"):
        pytest.skip("needs the faults of the tests' worker")


@pytest.fixture(scope="session")
def is_slow_device(request):
    """For tests of a product that runs for seconds: small ones do so where a processor computes."""
    if request.config.getoption("--worker") and (request.config.getoption("--device") or "").startswith("cuda"):
        pytest.skip("no small request takes a GPU for seconds")


@pytest.fixture
def attacked(request, bystander, battery):
    """As that of tests/end_to_end, with what was seen."""
    yield bystander
    bystander.check_served()
    began = time.monotonic()
    bystander.check_nothing_kept()
    name = request.node.name.removeprefix("test_").replace("_", " ")
    seen_s = time.monotonic() - began
    battery.holds(f"{name}: all let go of", most=RELEASE_S, seen=seen_s, unit="s")
    from bystander import KEPT_THREADS  # Needs the stubs.

    kept = bystander.daemon.threads() - bystander.threads
    battery.holds(f"{name}: threads kept", most=KEPT_THREADS, seen=kept)


@pytest.fixture(scope="module")
def daemon(request, gemmd, tmp_path_factory, battery, is_sanitized):
    """As that of tests/end_to_end. At the end it tells for how long any handler held a thread of gRPC's,
    whatever the tests of the file sent. Where other work takes the processors that says little."""
    daemons = Daemons(request.config, gemmd, tmp_path_factory.mktemp)
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
