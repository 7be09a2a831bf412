# SPDX-License-Identifier: Apache-2.0
"""Options, generated stubs and daemons for the tests. Everything uses only loopback or unix
sockets; all files are made in a temporary folder."""

import os
import pathlib
import random
import shutil
import sys

import grpc
import pytest

import stubs
from daemon import Daemon
from figures import Figures


def pytest_addoption(parser):
    group = parser.getgroup("gemmd")
    group.addoption(
        "--gemmd",
        default=os.environ.get("GEMMD_BINARY"),
        help="the daemon to test (default: environment variable GEMMD_BINARY)",
    )
    group.addoption(
        "--gemmctl",
        default=os.environ.get("GEMMCTL_BINARY"),
        help="the command line client (default: environment variable GEMMCTL_BINARY)",
    )
    group.addoption(
        "--gemmload",
        default=os.environ.get("GEMMLOAD_BINARY"),
        help="the load tester (default: environment variable GEMMLOAD_BINARY)",
    )
    group.addoption("--chromium", help="a browser, for tests of pages")
    group.addoption(
        "--fake-worker",
        default=os.environ.get("GEMMD_FAKE_WORKER"),
        help="a worker without a GPU (default: environment variable GEMMD_FAKE_WORKER)",
    )
    group.addoption("--lying-worker", help="a worker of which one answer is not true")
    group.addoption(
        "--fake-nvml",
        default=os.environ.get("GEMMD_FAKE_NVML"),
        help="a library that stands in for NVML (default: environment variable GEMMD_FAKE_NVML)",
    )
    group.addoption(
        "--sanitized",
        action="store_true",
        help="the daemon is built with AddressSanitizer, which keeps freed memory: tests of "
        "resident memory are deselected, and its own check finds leaks when the daemon ends",
    )
    group.addoption(
        "--timed",
        action="store_true",
        help="also the tests, and the checks of the others, that a clock or the resident size of a process "
        "decides: for an idle machine",
    )
    group.addoption(
        "--exhaustive",
        action="store_true",
        help="the tests that take long, and no others",
    )
    group.addoption(
        "--part",
        metavar="I/N",
        help="of N parts of the tests, which are alike in length, that with the number I, from 0",
    )
    group.addoption(
        "--rows", metavar="FOLDER", help="keep what was measured there, as lines of JSON (tests/timed/table.py)"
    )
    group.addoption(
        "--seed",
        type=int,
        default=int(os.environ.get("GEMMD_TEST_SEED", 20240611)),
        help="the seed of all random data, which each test that uses it prints (default: environment "
        "variable GEMMD_TEST_SEED, or 20240611)",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "resident_memory: measures the daemon's resident memory")
    config.addinivalue_line("markers", "timed: decided by a clock or by resident memory, so only with --timed")
    config.addinivalue_line("markers", "exhaustive: takes long, so only with --exhaustive")
    if not hasattr(config, "figures"):
        config.figures = Figures(config.getoption("--timed"))
    config.stubs = stubs.generate()
    sys.path.insert(0, config.stubs)


def pytest_unconfigure(config):
    if config.getoption("--rows") and config.figures.lines:
        part = (config.getoption("--part") or "").split("/")[0]
        config.figures.keep(pathlib.Path(config.getoption("--rows")), part)
    shutil.rmtree(config.stubs, ignore_errors=True)


def is_wanted(item):
    """Whether a test belongs to this run."""
    config = item.config
    if config.getoption("--sanitized") and item.get_closest_marker("resident_memory"):
        return False
    if item.get_closest_marker("exhaustive") or config.getoption("--exhaustive"):
        return bool(item.get_closest_marker("exhaustive")) and config.getoption("--exhaustive")
    return config.getoption("--timed") or not item.get_closest_marker("timed")


def pytest_collection_modifyitems(config, items):
    wanted = [item for item in items if is_wanted(item)]
    if config.getoption("--part"):
        part, parts = map(int, config.getoption("--part").split("/"))
        wanted = wanted[part::parts]
    dropped = [item for item in items if item not in wanted]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = wanted


def given_program(request, option, missing):
    path = request.config.getoption(option)
    if not path:
        pytest.fail(missing)
    return pathlib.Path(path).resolve(strict=True)


@pytest.fixture(scope="session")
def gemmd(request):
    return given_program(
        request, "--gemmd", "no daemon: give --gemmd=PATH or set GEMMD_BINARY"
    )


@pytest.fixture(scope="session")
def gemmctl(request):
    return given_program(
        request,
        "--gemmctl",
        "no command line client: give --gemmctl=PATH or set GEMMCTL_BINARY",
    )


@pytest.fixture(scope="session")
def gemmload(request):
    return given_program(
        request, "--gemmload", "no load tester: give --gemmload=PATH or set GEMMLOAD_BINARY"
    )


@pytest.fixture(scope="session")
def fake_worker(request):
    """A worker without a GPU."""
    return given_program(request, "--fake-worker", "no worker: give --fake-worker=PATH")


@pytest.fixture(scope="session")
def lying_worker(request):
    """A worker that gives one false answer."""
    return given_program(request, "--lying-worker", "no worker: give --lying-worker=PATH")


@pytest.fixture(scope="session")
def chromium(request):
    path = request.config.getoption("--chromium")
    if not path:
        pytest.fail("no browser: give --chromium=PATH")
    return path


@pytest.fixture(scope="session")
def is_sanitized(request):
    return request.config.getoption("--sanitized")


@pytest.fixture(scope="session")
def is_timed(request):
    """Whether clocks decide in this run."""
    return request.config.getoption("--timed")


@pytest.fixture
def timed(request):
    """Requires a bound for a time in the timed run: timed(what, most=..., seen=..., unit=...)."""
    request.config.figures.file = request.path.stem
    return request.config.figures.timed


@pytest.fixture
def seed(request):
    value = request.config.getoption("--seed")
    print(f"seed {value}")
    return value


@pytest.fixture
def rng(seed):
    return random.Random(seed)


class Daemons:
    """Starts daemons, and ends those that still run at the end of the test or the module."""

    def __init__(self, binary, make_folder):
        self._binary = binary
        self._make_folder = make_folder
        self._started = []

    def launch(self, *flags, **keywords):
        """Starts a daemon and does not wait for it."""
        daemon = Daemon(self._binary, self._make_folder("d"), *flags, **keywords)
        self._started.append(daemon)
        return daemon

    def start(self, *flags, **keywords):
        return self.launch(*flags, **keywords).wait_until_ready()

    def end(self):
        """Daemons that a test has ended itself were checked then."""
        running = [daemon for daemon in self._started if not daemon.was_awaited]
        try:
            for daemon in running:
                daemon.stop()
        finally:
            for daemon in running:
                daemon.kill()


@pytest.fixture
def daemons(gemmd, tmp_path_factory):
    """Starts daemons with flags chosen by the test."""
    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    yield daemons
    daemons.end()


@pytest.fixture(scope="module")
def daemon(request, gemmd, tmp_path_factory):
    """A daemon for all tests of a file, with the flags in the file's GEMMD_FLAGS."""
    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    yield daemons.start("--lame-duck=1ms", *getattr(request.module, "GEMMD_FLAGS", ()))
    daemons.end()


@pytest.fixture
def channel(daemon):
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(daemon.tcp, options=options) as channel:
        yield channel


@pytest.fixture
def session(channel):
    """A session of gemmd.v1.Tensors."""
    from tensors import Session  # Needs the stubs.

    with Session(channel) as session:
        yield session


@pytest.fixture(scope="module")
def bystander(daemon):
    from bystander import Bystander  # Needs the stubs.

    with Bystander(daemon) as bystander:
        yield bystander


@pytest.fixture
def attacked(bystander):
    """The bystander, which checks after the test has released everything (except fixtures that the
    test names before this one) that the attack harmed nobody and that the daemon kept nothing."""
    yield bystander
    bystander.check()
