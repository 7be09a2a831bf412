#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inferences a second of two unmodified clients of KServe's protocol, perf_analyzer and tritonclient, against gemmd on
the CPU and against Triton with a model of NumPy (triton_server.py): A times B in f32, both sent with each request.

    kserve_bench.py --bin BIN --triton-python PYTHON --perf-analyzer COMMAND --report REPORT

BIN is the folder with gemmd, PYTHON has nvidia-pytriton, and COMMAND runs perf_analyzer: where its C library is too
old, as tests/deploy/newer_debian.py does. Needs tritonclient. The servers are measured in turns, and the medians count.
The report has the table that is printed, and where and how it was measured."""

import argparse
import concurrent.futures
import csv
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "end_to_end")]

import numpy as np
import tritonclient.grpc as triton
from daemon import Daemon
from data_plane_bench import triton as triton_server

EXTENTS = (64, 512)
IN_FLIGHT = (1, 16)
# triton_server.py's ACCESS_TOKEN. gemmd ignores it.
TRITON_HEADER = "triton-grpc-protocol-triton-access-token:benchmark"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--triton-python", required=True)
    parser.add_argument("--perf-analyzer", type=shlex.split, required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement")
    parser.add_argument("--report", type=pathlib.Path, required=True)
    return parser.parse_args()


def with_perf_analyzer(command, address, extent, in_flight, seconds):
    with tempfile.NamedTemporaryFile(suffix=".csv") as report:
        shapes = [word for name in "AB" for word in ("--shape", f"{name}:{extent},{extent}")]
        done = subprocess.run(
            [
                *(*command, "-m", "gemm", *shapes, "-i", "grpc", "-u", address),
                *(f"--concurrency-range={in_flight}", f"--measurement-interval={1000 * seconds:.0f}"),
                *("--stability-percentage=999", "-f", report.name, "-H", TRITON_HEADER),
            ],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (row,) = csv.DictReader(pathlib.Path(report.name).read_text().splitlines())
        return float(row["Inferences/Second"])


def with_tritonclient(address, extent, in_flight, seconds):
    """As many threads as requests in flight, which share a client."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (extent, extent)).astype(np.float32) for _ in "AB")
    with triton.InferenceServerClient(address) as client:

        def infer():
            inputs = [triton.InferInput(name, list(array.shape), "FP32") for name, array in (("A", a), ("B", b))]
            for each, array in zip(inputs, (a, b), strict=True):
                each.set_data_from_numpy(array)
            return client.infer("gemm", inputs, client_timeout=120).as_numpy("D")

        assert np.array_equal(infer(), a @ b)  # Small integers are exact.
        until = time.perf_counter() + seconds

        def repeat():
            count = 0
            while time.perf_counter() < until:
                infer()
                count += 1
            return count

        with concurrent.futures.ThreadPoolExecutor(in_flight) as pool:
            began = time.perf_counter()
            counts = [each.result() for each in [pool.submit(repeat) for _ in range(in_flight)]]
            return sum(counts) / (time.perf_counter() - began)


def measure(options, addresses):
    """Of each row the rates of both servers, in turns."""
    tools = {
        "perf_analyzer": lambda *case: with_perf_analyzer(options.perf_analyzer, *case, options.seconds),
        "tritonclient": lambda *case: with_tritonclient(*case, options.seconds),
    }
    cases = [(tool, extent, in_flight) for tool in tools for extent in EXTENTS for in_flight in IN_FLIGHT]
    seen = {case: {server: [] for server in addresses} for case in cases}
    for _ in range(options.turns):
        for tool, extent, in_flight in cases:
            for server, address in addresses.items():
                seen[tool, extent, in_flight][server].append(tools[tool](address, extent, in_flight))
    return seen


def table(seen):
    yield "| client | A and B | requests in flight | gemmd | Triton | gemmd / Triton |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for (tool, extent, in_flight), rates in seen.items():
        gemmd, other = (statistics.median(rates[server]) for server in ("gemmd", "Triton"))
        yield f"| {tool} | {extent} x {extent} | {in_flight} | {gemmd:,.0f} | {other:,.0f} | {gemmd / other:.2f} |"


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} processors of an {names[0]}"


def main():
    options = parse_arguments()
    version = subprocess.run([options.bin / "gemmd", "--version"], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="gemmd-bench-") as folder:
        daemon = Daemon((options.bin / "gemmd").resolve(), pathlib.Path(folder) / "gemmd", "--devices=cpu")
        try:
            daemon.wait_until_ready()
            with triton_server(options.triton_python) as address:
                addresses = {"gemmd": daemon.tcp, "Triton": address}
                loads = [pathlib.Path("/proc/loadavg").read_text().split()[0]]
                seen = measure(options, addresses)
                loads.append(pathlib.Path("/proc/loadavg").read_text().split()[0])
        finally:
            daemon.stop()
    report = [
        f"Inferences a second, medians of {options.turns} turns of {options.seconds:g} s: {processor()},",
        f"{datetime.now(UTC):%Y-%m-%d}, load average {loads[0]} before and {loads[1]} after, Linux {platform.release()},",
        *(f"{line}," for line in version.splitlines()),
        f"`kserve_bench.py --bin BIN --triton-python PYTHON --perf-analyzer COMMAND --turns {options.turns} --seconds {options.seconds:g} --report REPORT`",
        "",
        *table(seen),
        "",
        "Of each turn:",
        *(f"{case}: {[(server, [round(rate) for rate in rates]) for server, rates in each.items()]}" for case, each in seen.items()),
    ]
    options.report.write_text("\n".join(report) + "\n")
    print(options.report.read_text())


if __name__ == "__main__":
    main()
