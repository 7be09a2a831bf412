# SPDX-License-Identifier: Apache-2.0
"""What a load consists of and how it is watched: operands from files, streams, live metrics, and
the search for a rate; the load tester runs as a process against the daemon."""

import csv
import json
import pathlib
import re
import signal
import subprocess
import urllib.error
import urllib.request

import numpy as np
import pytest
from metrics_page import Page

LIMIT_S = 600
README = pathlib.Path(__file__).resolve().parents[2] / "client/load/README.md"


@pytest.fixture
def numbers(seed):
    """NumPy's generator for this run's random data."""
    return np.random.default_rng(seed)


@pytest.fixture
def load(gemmload, daemon, tmp_path):
    """Runs gemmload against the daemon. Returns exit code, standard output and the report."""

    def run(*arguments):
        report = tmp_path / "report.json"
        command = [gemmload, "--address", daemon.unix, "--timeout", "2m", "--quiet", "--json", report, *arguments]
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, text=True)
        text = done.stdout + done.stderr
        return done.returncode, text, json.loads(report.read_text()) if report.exists() else None

    return run


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("place", ["inline", "resident", "resident-all"])
def test_operands_come_from_files(load, tmp_path, numbers, place, order):
    a = numbers.standard_normal((5, 33)).astype(np.float32)
    b = numbers.standard_normal((33, 17)).astype(np.float32)
    np.save(tmp_path / "a.npy", np.asarray(a, order=order))
    np.save(tmp_path / "b.npy", np.asarray(b, order=order))
    counts = "--count", "30", "--warmup", "0", "--verify", "1"
    code, text, report = load(
        "--a", tmp_path / "a.npy", "--b", tmp_path / "b.npy", "--operands", place, *counts
    )  # fmt: skip
    assert code == 0, text
    step = report["steps"][0]
    assert step["calls_by_status"] == {"OK": 30}
    assert step["verification"]["checked"] > 0 and step["verification"]["wrong"] == 0
    assert "5x17x33 f32" in report["mix"] and "a.npy" in report["mix"]
    assert report["operands"] == f"{place} from files"
    code, text, short = load("--operands", f"{place},{tmp_path}/a.npy,{tmp_path}/b.npy", *counts)
    assert code == 0, text
    assert (short["operands"], short["mix"]) == (report["operands"], report["mix"])


def test_results_stay_in_as_many_tensors_as_there_is_room_for(gemmload, daemons):
    daemon = daemons.start("--devices=cpu", "--tensor-bytes=1mb:1mb")
    # Seven of 131,072 bytes: A, B, a D whose answers are checked, and four others.
    done = subprocess.run(
        [gemmload, "--address", daemon.unix, "--shape", "128,128,128", "--type", "f64", "--operands",
         "resident-all", "--count", "50", "--warmup", "0", "--quiet"],
        capture_output=True, timeout=LIMIT_S, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_weights_from_a_file_meet_random_activations(load, tmp_path, numbers):
    np.save(tmp_path / "w.npy", numbers.integers(-128, 128, (2, 40, 24), dtype=np.int8))
    code, text, report = load(
        "--b", tmp_path / "w.npy", "--shape", "7,24,40", "--batch", "2", "--count", "20",
        "--warmup", "0", "--verify", "1",
    )  # fmt: skip
    assert code == 0, text
    assert report["steps"][0]["verification"]["wrong"] == 0
    assert report["operands"] == "inline from files and integers"
    code, text, _ = load("--operands", tmp_path / "w.npy", "--shape", "7,24,41", "--batch", "2")
    assert code == 2 and "w.npy: got k = 40, want 41" in text


def test_a_report_overwrites_no_operand(load, tmp_path, numbers):
    path = tmp_path / "a.npy"
    np.save(path, numbers.standard_normal((4, 4)).astype(np.float32))
    before = path.read_bytes()
    code, text, _ = load("--a", path, "--b", path, "--html", path)
    assert code == 2 and "want another file" in text
    assert path.read_bytes() == before


@pytest.mark.parametrize("loop", [["--concurrency", "8"], ["--rate", "200"]])
def test_streams_have_every_figure_of_a_report(load, tmp_path, loop):
    code, text, report = load(
        "--profile", "small", "--streams", "2", "--duration", "1", "--warmup", "200ms",
        "--interval", "100ms", "--verify", "1", *loop,
        "--csv", tmp_path / "r.csv", "--html", tmp_path / "r.html",
    )  # fmt: skip
    assert code == 0, text
    assert report["streams"] == 2
    step = report["steps"][0]
    calls = step["calls_by_status"]["OK"]
    assert calls == step["calls"] == step["latency"]["count"] == step["service"]["count"] > 0
    assert sum(kernel["latency"]["count"] for kernel in step["kernels"]) == calls
    assert sum(product["count"] for product in step["products"].values()) == calls
    assert {kernel["device"] for kernel in step["kernels"]} == {"cpu"}
    assert all(kernel["stage_means_ns"]["compute"] > 0 for kernel in step["kernels"])
    assert step["stages"]["total"]["count"] == calls and step["bytes_per_call"] > 0
    assert step["intervals"] and step["verification"]["checked"] > 0
    assert step["verification"]["wrong"] == 0
    (row,) = csv.DictReader((tmp_path / "r.csv").read_text().splitlines())
    assert int(row["calls"]) == calls
    page = (tmp_path / "r.html").read_text()
    for kernel in step["kernels"]:
        assert kernel["kernel"] in text and kernel["kernel"] in page


def test_reports_name_both_machines(load, daemon):
    code, text, report = load("--shape", "8,8,8", "--count", "5", "--warmup", "0")
    assert code == 0, text
    (server,) = report["servers"]
    assert server["address"] == daemon.unix
    assert server["version"] == report["gemmload"]
    assert [device["name"] for device in server["devices"]] == ["cpu"]
    assert re.fullmatch(r"cpu: .+, \d+ threads?", server["devices"][0]["description"])
    client = report["client"]
    assert client["cores"] >= 1 and 0 < client["usable_cores"] <= client["cores"]
    assert "verdict   all 5 calls were sent and answered" in text
    assert "warning: client and server share this machine" in text.split("verdict")[1]


def scrape(address):
    with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
        return Page(answer.read().decode())


def test_a_running_load_serves_its_metrics(gemmload, daemon):
    command = [gemmload, "--address", daemon.unix, "--shape", "8,8,8", "--concurrency", "3"]
    command += ["--duration", "1h", "--warmup", "0", "--interval", "50ms"]
    command += ["--metrics-listen", "127.0.0.1:0", "--verify", "0"]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = re.fullmatch(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n", load.stderr.readline())[1]
    seen = scrapes = 0
    while scrapes < 3 or seen == 0:
        scrapes += 1
        # The next interval has ended once its line is there.
        assert any("p50" in line for line in load.stderr)
        page = scrape(address)
        calls = page.value("gemmload_calls_total", code="OK")
        assert calls >= seen and page.value("gemmload_latency_seconds_count") == calls
        assert page.value("gemmload_latency_seconds_bucket", le="+Inf") == calls
        assert page.value("gemmload_step_target", step="3 in flight", loop="closed") == 3
        seen = calls
    own = {name for name in page.types if name.startswith("gemmload_")}
    listed = re.findall(r"^\| `(gemmload_\w+)` \| (\w+) \|", README.read_text(), re.MULTILINE)
    assert own == {name for name, _ in listed}
    assert all(page.types[name] == kind for name, kind in listed)
    load.send_signal(signal.SIGINT)
    output, error = load.communicate(timeout=LIMIT_S)
    assert load.returncode == 0, output + error
    with pytest.raises(urllib.error.URLError):
        scrape(address)


@pytest.mark.timed
def test_a_search_says_how_sure_it_is(gemmload, daemon, tmp_path):
    """On a busy machine an answer may be inconclusive, which the search then reports."""
    report = tmp_path / "report.json"
    command = [gemmload, "--address", daemon.unix, "--slo", "p90=100ms", "--shape", "8,8,8"]
    command += ["--max-in-flight", "1", "--rate", "20", "--duration", "600ms", "--warmup", "0"]
    command += ["--verify", "0", "--quiet", "--json", report]
    done = subprocess.run(command, capture_output=True, timeout=600, text=True)
    slo = json.loads(report.read_text())["slo"]
    assert done.returncode == (0 if slo["conclusive"] else 5), done.stdout + done.stderr
    assert f"verdict   {slo['verdict']}\n" in done.stdout
    verdicts = [window["verdict"] for window in slo["windows"]]
    assert set(verdicts) <= {"holds", "fails", "discarded"}
    assert verdicts.count("discarded") == slo["windows_discarded"]
    assert "holds" in verdicts
    if slo["verdict"].startswith("highest"):
        low, high = slo["interval_per_s"]
        assert low <= slo["rate_per_s"] <= high <= 1.25 * low * 1.001
