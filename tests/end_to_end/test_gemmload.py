# SPDX-License-Identifier: Apache-2.0
"""The load tester as a process, against the daemon, and beside a generator that shares nothing with
it."""

import json
import signal
import statistics
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from concurrent import futures

import grpc
import pytest
from load_generator import closed_loop, f32_request

LIMIT_S = 120


@pytest.fixture
def load(gemmload, daemon, tmp_path):
    """Runs gemmload against the daemon: exit code, standard output and the report."""

    def run(*arguments, address=None):
        report = tmp_path / "report.json"
        command = [gemmload, "--address", address or daemon.unix, "--quiet", "--json", report]
        done = subprocess.run([*command, *arguments], capture_output=True, timeout=LIMIT_S, text=True)
        return done.returncode, done.stdout + done.stderr, json.loads(report.read_text())

    return run


@pytest.mark.parametrize("profile", ["small", "sparse", "llm-decode"])
def test_profiles_are_computed_and_checked(load, profile):
    code, text, report = load(
        "--profile", profile, "--count", "40", "--warmup", "0", "--verify", "1", "--concurrency", "2"
    )
    assert code == 0, text
    step = report["steps"][0]
    assert step["calls_by_status"] == {"OK": 40}
    checked = step["verification"]
    assert checked["wrong"] == 0 and checked["checked"] > 0
    assert checked["exact"] == checked["checked"]
    assert step["stages"]["compute"]["count"] == 40


def test_a_stopped_daemon_shows_in_the_corrected_percentiles(gemmload, daemons, tmp_path):
    daemon = daemons.start("--lame-duck=1ms")
    report = tmp_path / "report.json"
    command = [gemmload, "--address", daemon.unix, "--shape", "8,8,8", "--rate", "100"]
    command += ["--duration", "3", "--warmup", "500ms", "--most-in-flight", "2", "--json", report]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The line of the warm-up says that the window has begun.
    assert any("warm-up" in line for line in load.stderr)
    daemon.signal(signal.SIGSTOP)
    time.sleep(1)
    daemon.signal(signal.SIGCONT)
    output, error = load.communicate(timeout=LIMIT_S)
    assert load.returncode == 0, output + error
    step = json.loads(report.read_text())["steps"][0]
    # A third of all calls was due while the daemon stood still.
    assert step["latency"]["p75_ns"] >= 150e6
    assert step["latency"]["p99_ns"] >= 900e6
    assert step["blocked"]["p99_ns"] >= 800e6
    # Of the 300 calls two were under way.
    assert step["service"]["p99_ns"] < step["latency"]["p75_ns"]


def test_an_interrupt_ends_a_run_with_its_report(gemmload, daemon, tmp_path):
    page = tmp_path / "report.html"
    command = [gemmload, "--address", daemon.unix, "--duration", "1h", "--warmup", "100ms"]
    command += ["--interval", "100ms", "--html", page]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(5):
        load.stderr.readline()
    load.send_signal(signal.SIGINT)
    output, error = load.communicate(timeout=LIMIT_S)
    assert load.returncode == 0, output + error
    assert "warning: interrupted" in output
    assert "p99.99" in output
    figures = ElementTree.fromstring(page.read_text()).iter("figure")
    assert [figure.find("figcaption").text for figure in figures] == [
        "Latency percentiles",
        "Latency over time (from intended send)",
        "Rate against latency (intervals of the run)",
        "Where a call's time goes (means)",
    ]


@pytest.fixture
def slow_server():
    """Answers each call 30 ms behind its arrival, eight at once, with nothing."""
    from gemmd.v1 import gemm_pb2, gemm_pb2_grpc

    class Gemm(gemm_pb2_grpc.GemmServicer):
        def Multiply(self, request, context):
            time.sleep(0.03)
            return gemm_pb2.MultiplyResponse()

    server = grpc.server(futures.ThreadPoolExecutor(8))
    gemm_pb2_grpc.add_GemmServicer_to_server(Gemm(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_an_independent_generator_agrees(load, slow_server):
    """In turns, so that both meet the same machine; the delay is most of every latency."""
    ours, theirs = [], []
    for _ in range(3):
        code, text, report = load(
            *("--shape", "8,8,8", "--concurrency", "4", "--count", "120"),
            *("--warmup", "0", "--verify", "0"),
            address=slow_server,
        )
        assert code == 0, text
        step = report["steps"][0]
        ours.append((step["rate_per_s"], step["latency"]["p50_ns"] * 1e-9))
        rate, latencies = closed_loop(slow_server, f32_request(8, 8, 8), 4, 120)
        theirs.append((rate, statistics.median(latencies)))
    for name, mine, other in zip(("rate", "p50"), zip(*ours), zip(*theirs)):
        a, b = statistics.median(mine), statistics.median(other)
        print(f"{name}: gemmload {a:.4g}, generator {b:.4g}")
        assert abs(a - b) <= 0.2 * b
