# SPDX-License-Identifier: Apache-2.0
"""The load tester as a process, against the daemon, and compared with a generator that shares no
code with it."""

import json
import math
import re
import signal
import statistics
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from concurrent import futures

import grpc
import pytest
from daemon import wait_until
from load_generator import closed_loop, f32_request

LIMIT_S = 600
DELAY_S = 0.03


@pytest.fixture
def load(gemmload, daemon, tmp_path):
    """Runs gemmload against the daemon. Returns exit code, standard output and the report."""

    def run(*arguments, address=None):
        report = tmp_path / "report.json"
        command = [gemmload, "--address", address or daemon.unix, "--timeout", "2m", "--quiet", "--json", report]
        done = subprocess.run([*command, *arguments], capture_output=True, timeout=LIMIT_S, text=True)
        return done.returncode, done.stdout + done.stderr, json.loads(report.read_text())

    return run


# Each call of the latter takes a quarter of a second of one core, including its check.
@pytest.mark.parametrize(
    "profile,count",
    [
        ("small", 40),
        ("sparse", 40),
        ("llm-decode", 8),
        pytest.param("llm-decode", 40, marks=pytest.mark.exhaustive),
    ],
)
def test_profiles_are_computed_and_checked(load, profile, count):
    code, text, report = load(
        "--profile", profile, "--count", str(count), "--warmup", "0", "--verify", "1", "--concurrency", "2"
    )
    assert code == 0, text
    step = report["steps"][0]
    assert step["calls_by_status"] == {"OK": count}
    checked = step["verification"]
    assert checked["wrong"] == 0 and checked["checked"] > 0
    assert checked["exact"] == checked["checked"]
    assert step["stages"]["compute"]["count"] == count


@pytest.mark.parametrize("streams", [0, 2])
@pytest.mark.parametrize("place,max_bytes", [("resident", 16 * 256 * 8 + 200), ("resident-all", 200)])
def test_operands_that_stay_do_not_travel(load, place, max_bytes, streams):
    code, text, report = load(
        "--shape", "16,256,256", "--operands", place, "--owners", "3", "--concurrency", "6",
        "--count", "300", "--warmup", "0", "--verify", "0.5", "--streams", str(streams),
    )  # fmt: skip
    assert code == 0, text
    step = report["steps"][0]
    assert step["calls_by_status"] == {"OK": 300}
    assert 0 < step["bytes_per_call"] <= max_bytes
    assert step["verification"]["wrong"] == 0 and step["verification"]["checked"] > 0


# A line of an interval in which calls were answered.
ANSWERED = re.compile(r" [\d.]*[1-9][\d.]*/s ")


def is_measured(line):
    """Whether it is the line of an interval after the warm-up."""
    return "in flight" in line and "warm-up" not in line


def test_a_load_on_streams_outlives_its_daemon(gemmload, daemons, tmp_path):
    daemon = daemons.start("--lame-duck=1ms")
    report = tmp_path / "report.json"
    command = [gemmload, "--address", daemon.unix, "--shape", "8,8,8", "--streams", "2"]
    command += ["--concurrency", "16", "--duration", "1h", "--warmup", "100ms", "--interval", "100ms"]
    load = subprocess.Popen([*command, "--json", report], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any(is_measured(line) and ANSWERED.search(line) for line in load.stderr)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert any(is_measured(line) and "UNAVAILABLE" in line for line in load.stderr)
    load.send_signal(signal.SIGINT)
    output, error = load.communicate(timeout=LIMIT_S)
    assert load.returncode != 0, output + error
    calls = json.loads(report.read_text())["steps"][0]["calls_by_status"]
    assert calls["OK"] > 0 and calls["UNAVAILABLE"] > 0


def test_a_mix_may_have_operands_of_both_kinds(load, tmp_path):
    (tmp_path / "mix.json").write_text(
        json.dumps(
            [
                {"m": 8, "n": 64, "k": 64, "operands": "resident"},
                {"m": 8, "n": 7, "k": 65, "type": "s8", "b_order": "column", "operands": "resident"},
                {"m": 4, "n": 32, "k": 32, "batch": 3, "operands": "resident-all"},
                {"m": 64, "n": 64, "k": 64, "type": "bf16", "sparse": True, "operands": "resident-all"},
                {"m": 16, "n": 16, "k": 16},
            ]
        )
    )
    arguments = ["--mix", tmp_path / "mix.json", "--count", "80", "--warmup", "0", "--verify", "1"]
    code, text, report = load(*arguments)
    assert code == 0, text
    assert report["steps"][0]["verification"]["wrong"] == 0


@pytest.mark.timed
def test_a_stopped_daemon_shows_in_the_corrected_percentiles(gemmload, daemons, tmp_path):
    daemon = daemons.start("--lame-duck=1ms")
    report = tmp_path / "report.json"
    command = [gemmload, "--address", daemon.unix, "--shape", "8,8,8", "--rate", "100"]
    command += ["--duration", "3", "--warmup", "500ms", "--max-in-flight", "2", "--json", report]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The line of the warm-up shows that the window has begun.
    assert any("warm-up" in line for line in load.stderr)
    daemon.signal(signal.SIGSTOP)
    time.sleep(1)
    daemon.signal(signal.SIGCONT)
    output, error = load.communicate(timeout=LIMIT_S)
    assert load.returncode == 0, output + error
    step = json.loads(report.read_text())["steps"][0]
    # A third of all calls was due while the daemon was stopped.
    assert step["latency"]["p75_ns"] >= 150e6
    assert step["latency"]["p99_ns"] >= 900e6
    assert step["blocked"]["p99_ns"] >= 800e6
    # Two of the 300 calls were in flight.
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


def test_an_interrupted_search_says_so(gemmload, daemon, tmp_path, timed):
    report = tmp_path / "report.json"
    command = [gemmload, "--address", daemon.unix, "--slo", "p50=30s", "--shape", "8,8,8"]
    command += ["--warmup", "0", "--duration", "600ms", "--interval", "100ms", "--json", report]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The second window has begun.
    for _ in range(2):
        assert any(re.match(r"\d+\.\d/s$", line) for line in load.stderr)
    load.send_signal(signal.SIGINT)
    output, error = load.communicate(timeout=LIMIT_S)
    assert "highest rate that holds" not in output
    found = json.loads(report.read_text())
    assert found["interrupted"] and found["slo"]["interrupted"]
    held = found["slo"]["rate_per_s"]
    timed("what held before the search was interrupted", least=100, seen=held, unit="calls/s")
    # On a busy machine the first rate may not have held.
    assert ("search interrupted; at least " if held else "search interrupted before any rate held") in output
    assert load.returncode == (0 if held else 1), output + error


@pytest.mark.timed
def test_three_searches_find_the_same_rate(load, timed):
    rates = []
    for seed in ("1", "2", "3"):
        objective = ["--slo", "p90=10ms", "--warmup", "300ms", "--duration", "3s", "--seed", seed]
        code, text, report = load("--shape", "192,192,192", *objective)
        assert code == 0, text
        rates.append(report["slo"]["rate_per_s"])
    print(rates)
    timed("rates that three searches find", most=15, seen=100 * (max(rates) / min(rates) - 1), unit="% apart")


def is_pending(pid, number):
    """Whether the process has yet to handle the signal."""
    with open(f"/proc/{pid}/status") as status:
        masks = [int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_a_stop_while_blocked_reports_the_stall(gemmload, daemons, tmp_path):
    daemon = daemons.start("--lame-duck=1ms")
    report = tmp_path / "report.json"
    command = [gemmload, "--address", daemon.unix, "--shape", "8,8,8", "--rate", "100"]
    command += ["--duration", "1h", "--warmup", "300ms", "--interval", "100ms"]
    command += ["--max-in-flight", "2", "--json", report]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any(is_measured(line) for line in load.stderr)
    daemon.signal(signal.SIGSTOP)
    for _ in range(12):
        assert any(" 0.0/s " in line for line in load.stderr)
    load.send_signal(signal.SIGINT)
    wait_until(lambda: not is_pending(load.pid, signal.SIGINT), LIMIT_S, "it knows that it is to stop")
    daemon.signal(signal.SIGCONT)
    output, error = load.communicate(timeout=LIMIT_S)
    assert load.returncode == 1, output + error
    step = json.loads(report.read_text())["steps"][0]
    # Ten calls were due in each of twelve intervals without an answer; two of the calls were in
    # flight.
    assert step["unsent"] >= 90
    assert "calls were never sent" in output


def test_a_closed_pipe_costs_no_report(gemmload, daemon, tmp_path):
    report = tmp_path / "report.json"
    command = [gemmload, "--address", daemon.unix, "--shape", "8,8,8", "--count", "20"]
    command += ["--warmup", "300ms", "--interval", "50ms", "--json", report]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    load.stdout.close()
    load.stderr.close()
    load.wait(LIMIT_S)
    assert json.loads(report.read_text())["steps"][0]["calls"] == 20


@pytest.fixture
def slow_server():
    """Answers each call 30 ms after its arrival without a result, eight at once."""
    from gemmd.v1 import gemm_pb2, gemm_pb2_grpc

    class Gemm(gemm_pb2_grpc.GemmServicer):
        def Multiply(self, request, context):
            time.sleep(DELAY_S)
            return gemm_pb2.MultiplyResponse()

    server = grpc.server(futures.ThreadPoolExecutor(8))
    gemm_pb2_grpc.add_GemmServicer_to_server(Gemm(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


# Student's distribution with five degrees of freedom exceeds this once in a thousand times.
T_OF_SIX_PAIRS = 6.869


@pytest.mark.timed
def test_an_independent_generator_agrees(load, slow_server):
    """In turns, so that both see the same machine; the delay is most of every latency."""
    ours, theirs = [], []
    for _ in range(6):
        code, text, report = load(
            *("--shape", "8,8,8", "--concurrency", "4", "--count", "120"),
            *("--warmup", "0", "--verify", "0"),
            address=slow_server,
        )
        assert code == 0, text
        step = report["steps"][0]
        ours.append((4 / step["rate_per_s"], step["latency"]["p50_ns"] * 1e-9))
        rate, latencies = closed_loop(slow_server, f32_request(8, 8, 8), 4, 120)
        theirs.append((4 / rate, statistics.median(latencies)))
    for name, mine, other in zip(("seconds a call", "p50"), zip(*ours), zip(*theirs)):
        # Logarithms of the ratio of each pair: their mean and their scatter.
        ratios = [math.log(a / b) for a, b in zip(mine, other)]
        noise = T_OF_SIX_PAIRS * statistics.stdev(ratios) / math.sqrt(len(ratios))
        # The time that calls take beside the delay depends on the generator: the smaller of the
        # two.
        own = math.log(min(*mine, *other) / DELAY_S)
        difference = statistics.mean(ratios)
        print(f"{name}: gemmload is {difference:+.2%} off, noise {noise:.2%}, own cost {own:.2%}")
        assert own >= 0
        assert abs(difference) <= min(0.2, noise + own)
