# SPDX-License-Identifier: Apache-2.0
"""The battery: what a hostile or careless peer tries, the bound that must hold, and what was seen.

Every test measures with `battery.holds` at least once, or it fails; the table of all of them ends the run. What
only a clock or resident memory can show is demanded with `battery.timed`, which decides in the timed run alone. The
fixtures and the means to speak with a daemon are those of tests/end_to_end.
"""

import dataclasses
import http.client
import math
import os
import pathlib
import sys
import time

import grpc
import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "end_to_end"), str(TESTS / "timed")]
import fixtures  # noqa: E402
import metrics_page  # noqa: E402
import table  # noqa: E402
from figures import Figures  # noqa: E402
from fixtures import *  # noqa: E402, F403
from wall_clock import WallClock  # noqa: E402

RELEASE_S = 30  # A busy machine may take seconds over that.


class Battery(Figures):
    """The values measured so far."""

    def __init__(self, is_timed, is_long, kills=None):
        super().__init__(is_timed)
        self.is_long = is_long
        self.model_s = 0
        self.kills = kills or (200 if is_long else 6)


def pytest_addoption(parser):
    fixtures.pytest_addoption(parser)
    parser.getgroup("gemmd").addoption(
        "--long", action="store_true", help="attack for longer, and with more, than in continuous integration"
    )
    parser.getgroup("gemmd").addoption(
        "--model-minutes",
        type=float,
        default=0,
        metavar="MINUTES",
        help="rounds of a minute for so long, for each kind of worker, while workers die (test_model.py); from an "
        "hour on, what is resident must be level",
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
    parser.getgroup("gemmd").addoption(
        "--wall-clock",
        help="the library of wall_clock.cc (default: libgemmd_wall_clock.so beside the daemon)",
    )


def pytest_configure(config):
    config.figures = Battery(config.getoption("--timed"), config.getoption("--long"), config.getoption("--kills"))
    config.battery = config.figures
    fixtures.pytest_configure(config)
    config.addinivalue_line("markers", "own_device: makes sense only on the devices that it names itself")
    config.battery.model_s = max(60 * config.getoption("--model-minutes"), 150 if config.battery.is_long else 0)


def pytest_generate_tests(metafunc):
    """If a file has DEVICES, its tests run with each of them as `device`, or with the one of
    --device."""
    if "device" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--device")
        metafunc.parametrize("device", [chosen] if chosen else metafunc.module.DEVICES, scope="module")


ROWS_BEFORE = pytest.StashKey()
HAS_PASSED = pytest.StashKey()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that passes without adding a row to the table, itself or through its fixtures, fails
    at its end: the table would not show what it measured."""
    outcome = yield
    report = outcome.get_result()
    if call.when == "call":
        item.stash[HAS_PASSED] = report.passed
    has_rows = len(item.config.battery.lines) > item.stash.get(ROWS_BEFORE, 0)
    if call.when == "teardown" and report.passed and item.stash.get(HAS_PASSED, False) and not has_rows:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} has measured nothing, want battery.holds at least once, or the mark timed"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.config.battery.file = item.path.stem
    item.stash[ROWS_BEFORE] = len(item.config.battery.lines)
    if item.config.getoption("--device") and item.get_closest_marker("own_device"):
        pytest.skip("measures on devices of its own")


@pytest.fixture(scope="session")
def battery(request):
    return request.config.battery


class Daemons(fixtures.Daemons):
    """Daemons with the device and the worker that the options name."""

    def __init__(self, config, name, binary, make_folder):
        super().__init__(binary, make_folder)
        self._battery = config.battery
        self._is_sanitized = config.getoption("--sanitized")
        self._name = name
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
        if not any(flag.startswith("--metrics-listen") for flag in flags):
            flags.append("--metrics-listen=127.0.0.1:0")
        return super().launch(*flags, **keywords)

    def end(self):
        """Reports how long any handler held a thread of gRPC's, whatever the tests sent: in
        processor time and, if no other work uses the processors, in wall time. With few processors,
        as on a small virtual machine, one time per daemon and method may be the machine's: a
        thread's processor time includes the host's time to find a page for it, and a single page
        took 23 ms."""
        wanted = self._started if self._battery.is_timed else []
        pages = [page for daemon in wanted if (page := page_of(daemon)) is not None]
        super().end()
        has_room = (os.cpu_count() or 1) >= 8
        longest_ms = [metrics_page.longest_handler_cpu_ms(page) for page in pages]
        second_ms = [metrics_page.longest_handler_cpu_ms(page, second=True) for page in pages]
        # A thread that shares a core with others is slower, in processor time too.
        for what, max_ms, times in (
            ("processor time", 5 if has_room else math.inf, longest_ms),
            ("second longest processor time", 5 if has_room else 20, second_ms),
            ("time", 5 if has_room else math.inf, map(metrics_page.longest_handler_ms, pages)),
        ):
            longest = max(((ms, method) for by_method in times for method, ms in by_method.items()), default=None)
            if longest is None:
                continue
            self._battery.timed(
                f"{self._name}: {what} of a handler ({longest[1]})",
                most=math.inf if self._is_sanitized else max_ms,
                seen=longest[0],
                unit="ms",
            )


def page_of(daemon):
    """The metrics of a daemon that can still report them."""
    if daemon.was_awaited or not daemon.events("metrics_listening"):
        return None
    try:
        return metrics_page.scrape(daemon)
    except (OSError, http.client.HTTPException):
        return None


@pytest.fixture
def daemons(request, gemmd, tmp_path_factory):
    name = f"{request.path.stem}.{request.node.name}"
    daemons = Daemons(request.config, name, gemmd, tmp_path_factory.mktemp)
    yield daemons
    daemons.end()


@pytest.fixture(scope="session")
def has_worker_faults(request):
    """For tests of faults that only the tests' own worker can produce."""
    if request.config.getoption("--worker"):
        pytest.skip("needs the faults of the tests' worker")


@pytest.fixture(scope="session")
def is_slow_device(request):
    """For tests of a product that runs for seconds: small ones do so if a processor computes
    them."""
    if request.config.getoption("--worker") and (request.config.getoption("--device") or "").startswith("cuda"):
        pytest.skip("no small request takes a GPU for seconds")


@pytest.fixture
def wall_clock(request, gemmd, is_sanitized, tmp_path):
    """A wall clock for one daemon, which gets its `environment`."""
    if is_sanitized:
        pytest.skip("a sanitizer has to be the first library of a program")
    given = request.config.getoption("--wall-clock")
    library = pathlib.Path(given) if given else gemmd.parent / "libgemmd_wall_clock.so"
    return WallClock(library.resolve(strict=True), tmp_path)


@pytest.fixture
def attacked(request, bystander, battery):
    """Like that of tests/end_to_end, and adds the values to the table."""
    yield bystander
    bystander.check_served()
    began = time.monotonic()
    bystander.check_nothing_kept()
    name = request.node.name.removeprefix("test_").replace("_", " ")
    seen_s = time.monotonic() - began
    battery.timed(f"{name}: all let go of", most=RELEASE_S, seen=seen_s, unit="s")
    from bystander import KEPT_THREADS  # Needs the stubs.

    kept = bystander.daemon.threads() - bystander.threads
    battery.holds(f"{name}: threads kept", most=KEPT_THREADS, seen=kept)


@pytest.fixture(scope="module")
def daemon(request, gemmd, tmp_path_factory):
    """Like that of tests/end_to_end."""
    daemons = Daemons(request.config, request.path.stem, gemmd, tmp_path_factory.mktemp)
    yield daemons.start("--lame-duck=1ms", *getattr(request.module, "GEMMD_FLAGS", ()))
    daemons.end()


def pytest_sessionfinish(session, exitstatus):
    """If no test of a file applies with a sanitizer, that is no failure; without one it is."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("--sanitized"):
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter, config):
    lines = config.battery.lines
    if not lines:
        return
    terminalreporter.section("attack, bound, seen, verdict")
    for text in table.texts(map(dataclasses.asdict, lines)):
        terminalreporter.write_line(text)


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
