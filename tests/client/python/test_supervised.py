# SPDX-License-Identifier: Apache-2.0
"""A lone daemon that a supervisor starts again at the same address whenever it ends, stopped under load: clients
that retry lose no call."""

import json
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import gemmd
import numpy as np
import pytest
from daemon import PATIENCE_S, wait_until
from gemmd.v1 import registry_pb2_grpc, statistics_pb2

import grpc

CALLERS = 3
# So that reconnecting takes as long as a restart, not as long as the longest backoff.
QUICK = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]


class Supervised:
    """A daemon, and how many products of each type it has computed."""

    def __init__(self, daemons):
        self._daemons = daemons
        self._daemon = daemons.start("--devices=cpu", "--lame-duck=1ms")
        self.address = self._daemon.tcp
        self._listen = f"{self._daemon.tcp},{self._daemon.unix}"

    def restart(self):
        self._daemon.signal(signal.SIGTERM)
        assert self._daemon.wait() == 0
        self._daemon = self._daemons.start("--devices=cpu", "--lame-duck=1ms", listen=self._listen)

    def products(self, element):
        with grpc.insecure_channel(self._daemon.unix) as channel:
            registry = registry_pb2_grpc.RegistryStub(channel)
            statistics = registry.GetStatistics(statistics_pb2.GetStatisticsRequest(), timeout=PATIENCE_S)
        return sum(row.products for row in statistics.kernels if f".{element}." in row.name)


class PythonCallers:
    """Threads that multiply until `stop`, each with a client of its own."""

    def __init__(self, address, **options):
        self.answered = [0] * CALLERS
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(CALLERS)
        self._calls = [self._threads.submit(self._call, i, address, options) for i in range(CALLERS)]

    def _call(self, index, address, options):
        a, b = np.full((3, 40), index + 1.0), np.ones((40, 5))
        with gemmd.Client(address, channel_options=QUICK, timeout=2 * PATIENCE_S, **options) as client:
            while not self._is_over.is_set():
                np.testing.assert_array_equal(client.multiply(a, b).array, a @ b)
                self.answered[index] += 1

    def failed(self):
        return [call.exception() for call in self._calls if call.done() and call.exception()]

    def stop(self):
        self._is_over.set()
        self._threads.shutdown()
        return [call.exception() for call in self._calls]


@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_restarts_lose_no_call(daemons, gemmload, tmp_path, times):
    """Of three threads with Python's client, and of four calls at once with the C++ client."""
    daemon = Supervised(daemons)
    report = tmp_path / "report.json"
    command = [gemmload, "--address", daemon.address, "--shape", "8,24,16", "--type", "f32", "--concurrency", "4"]
    command += ["--retries", "4", "--wait-for-ready", "--timeout", f"{2 * PATIENCE_S}s", "--duration", "1h"]
    command += ["--warmup", "0", "--quiet", "--json", report]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    callers = PythonCallers(daemon.address, wait_for_ready=True)

    def wait_for_both():
        before = list(callers.answered)

        def have_all_answers():
            assert not callers.failed()
            has_each = all(now > then for now, then in zip(callers.answered, before, strict=True))
            return has_each and daemon.products("f32") >= 4

        wait_until(have_all_answers, 2 * PATIENCE_S, "answers to all callers")

    try:
        for _ in range(times):
            wait_for_both()
            daemon.restart()
        wait_for_both()
    finally:
        load.send_signal(signal.SIGINT)
        failures = callers.stop()
        _, error = load.communicate(timeout=2 * PATIENCE_S)
    assert failures == [None] * CALLERS
    assert load.returncode == 0, error
    (step,) = json.loads(report.read_text())["steps"]
    assert step["calls_by_status"].keys() == {"OK"}, step["calls_by_status"]
    assert step["calls"] >= 4 * times


def test_callers_that_do_not_retry_lose_calls(daemons):
    """Shows that the test above can fail."""
    daemon = Supervised(daemons)
    callers = PythonCallers(daemon.address, max_attempts=1)
    try:
        wait_until(lambda: all(callers.answered), PATIENCE_S, "answers")
        daemon.restart()
        wait_until(callers.failed, PATIENCE_S, "a call that is lost")
    finally:
        failures = callers.stop()
    assert all(isinstance(failure, gemmd.Unavailable) for failure in failures if failure), failures
