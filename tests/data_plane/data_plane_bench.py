#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the goals of the data plane, each beside what it should be compared with in the same
run: bare gRPC that moves the same bytes, NumPy, the kernel's own time; for the Python client
tritonclient, the C++ client and Arrow Flight; and, with --baseline, the daemon of an older build.
Starts the daemons, prints a table, and exits with 0 whatever was reached. Use it on a machine
without other work. It needs NumPy and, for the rows of the Python client, the packages of
tests/end_to_end/requirements.txt and pyarrow."""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "end_to_end"))

import python_rows  # noqa: E402
from daemon import Daemon  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of gemmd")
    parser.add_argument("--bench", type=pathlib.Path, help="data_plane_bench (default: in --bin)")
    parser.add_argument("--baseline", type=pathlib.Path, help="folder of an older gemmd")
    parser.add_argument("--device", default="cpu", help="for products in bf16 and tensors: cpu or cuda:0")
    parser.add_argument("--worker", help="worker of the GPU, in place of the daemon's own")
    parser.add_argument("--rows", default="", help="inline,transfer,small,stacking,weights,cpu,triton,large,python; a part of small alone is small.lists")
    parser.add_argument("--python-baseline", type=pathlib.Path, help="an older folder as client/python")
    parser.add_argument("--triton-python", help="Python with nvidia-pytriton, for the row beside Triton")
    parser.add_argument("--get-mib", type=int, default=1024, help="length of Get of the Python client")
    parser.add_argument("--transfer-mib", type=int, default=4096, help="length of Put and Get")
    parser.add_argument("--seconds", type=float, default=2, help="for one measurement")
    parser.add_argument("--turns", type=int, default=5, help="of which the median counts")
    parser.add_argument(
        "--report",
        type=pathlib.Path,
        help="file for machine, commit, command and rows; rows of another command on the same build and day stay there",
    )
    return parser.parse_args()


def show(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table_line(row):
    signs = {"at_most": "<=", "at_least": ">="}
    bound = "".join(f"{sign} {row[name]:g}" for name, sign in signs.items() if name in row)
    baseline = show(row["baseline"]) if "baseline" in row else ""
    seen = f"{show(row['seen'])} {row['unit']}"
    # A stage stands beside nothing.
    beside, ratio = (f"{row['measure']}: {show(row['by'])}", f"{row['ratio']:.2f}") if row["measure"] else ("", "")
    return f"| {row['row']} | {seen} | {baseline} | {beside} | {ratio} | {bound} | {row.get('verdict', '')} |"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def machine(device):
    models = [line.split(": ")[1] for line in open("/proc/cpuinfo") if line.startswith("model name")]
    text = f"{os.cpu_count()} processors of an {models[0].strip()}"
    if device == "cpu":
        return text
    gpus = output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return f"one {gpus[0]} and {text}"


def save(options, rows):
    """Adds the rows to those that another command has saved for the same machine, build and day."""
    version = output(options.bin / "gemmd", "--version").splitlines()
    where = {
        "machine": machine(options.device),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": next(line.removeprefix("commit ") for line in version if line.startswith("commit ")),
    }
    report = {"commands": [], "rows": []}
    if options.report.exists():
        earlier = json.loads(options.report.read_text())
        if where.items() <= earlier.items():
            report = earlier
    names = {row["row"] for row in rows}
    command = f"data_plane_bench.py --bin BIN --device {options.device} --rows {options.rows} --turns {options.turns} --seconds {options.seconds:g}"
    report = {
        **where,
        "commands": [*report["commands"], command],
        "rows": [row for row in report["rows"] if row["row"] not in names] + rows,
    }
    options.report.write_text(json.dumps(report, indent=1) + "\n")


@contextlib.contextmanager
def triton(python):
    """The address of Triton's gRPC service; see triton_server.py."""
    command = [python, HERE / "triton_server.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True) as server:
        # Triton writes to the same output.
        lines = (line.strip() for line in server.stdout)
        yield next(line for line in lines if re.fullmatch(r"127\.0\.0\.1:\d+", line))
        server.stdin.close()


def main():
    options = parse_arguments()
    devices = "cpu" if options.device == "cpu" else f"{options.device},cpu"
    room = f"{2 * options.transfer_mib + 4096}MiB"
    tensors = [f"--tensor-bytes={room}:{room}"]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gemmd-bench-"))
    daemons = []

    def start(name, binaries, *flags):
        gemmd = (binaries / "gemmd").resolve()
        worker = [f"--worker-binary={options.worker}"] if options.worker else []
        daemons.append(Daemon(gemmd, folder / name, f"--devices={devices}", *worker, *flags))
        return daemons[-1].wait_until_ready(120)

    command = [str(options.bench or options.bin / "data_plane_bench")]
    rows = []
    stack = contextlib.ExitStack()
    try:
        now = start("now", options.bin, *tensors)
        alone = start("alone", options.bin, *tensors, "--batch=1")
        command += [f"--tcp={now.tcp}", f"--unix={now.unix}", f"--alone={alone.unix}"]
        if options.baseline:
            # Older builds refuse products that are larger than their staging area.
            staging = [] if options.device == "cpu" else ["--gpu-staging-bytes=2GiB"]
            before = start("before", options.baseline, *staging)
            command += [f"--baseline-tcp={before.tcp}", f"--baseline-unix={before.unix}"]
        command += [
            f"--device={options.device}",
            f"--pid={now.pid}",
            f"--numpy={sys.executable} {HERE / 'numpy_product.py'}",
            f"--library={sys.executable} {HERE / 'library_product.py'} {options.bin / 'gemmbench'}",
            *([f"--triton={stack.enter_context(triton(options.triton_python))}"] if options.triton_python else []),
            f"--transfer-mib={options.transfer_mib}",
            f"--seconds={options.seconds}",
            f"--turns={options.turns}",
            f"--rows={options.rows}",
        ]
        print("| what | seen | baseline | beside | ratio | wanted | verdict |")
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
        wanted = options.rows.split(",") if options.rows else []
        status = 0
        if wanted != ["python"]:
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
                for line in bench.stdout:
                    rows.append(json.loads(line))
                    print(table_line(rows[-1]), flush=True)
            status = bench.returncode
        if not wanted or "python" in wanted:
            for row in python_rows.measure(
                now.tcp, command[0], folder, options.turns, options.get_mib, options.python_baseline
            ):
                rows.append(row)
                print(table_line(row), flush=True)
        for daemon in daemons:
            daemon.stop()
    finally:
        stack.close()
        for daemon in daemons:
            daemon.kill()
    if options.report:
        save(options, rows)
    sys.exit(status)


if __name__ == "__main__":
    main()
