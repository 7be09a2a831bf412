#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of the READMEs that follow from the programs and from committed reports.

Each table stands between two marks, `<!-- NAME: begin, ... -->` and `<!-- NAME: end -->`. Without
--check the script writes the tables; with --check it changes nothing, prints what differs and exits
with 1. Tables that need a program are left alone where the program is not given.
"""

import argparse
import contextlib
import difflib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
START_DEADLINE_S = 60

# The rows of README.md from the GPU report: the reader's name of a product, and the instructions of
# the kernels that compute it.
HEADLINES = {
    "f16 into f32": r"wgmma\.m64n\d+k16\.f32\.f16\.f16",
    "bf16 into f32": r"wgmma\.m64n\d+k16\.f32\.bf16\.bf16",
    "tf32 into f32": r"wgmma\.m64n\d+k8\.f32\.tf32\.tf32",
    "f64": r"mma\.m16n8k16\.f64",
    "s8 into s32": r"wgmma\.m64n\d+k32\.s32\.s8\.s8",
    "e4m3 into f32": r"wgmma\.m64n\d+k32\.f32\.e4m3\.e4m3_p128",
    "f16 into f32, A 2:4 sparse": r"wgmma\.sp\.m64n\d+k32\.f32\.f16\.f16",
    "s8 into s32, A 2:4 sparse": r"wgmma\.sp\.m64n\d+k64\.s32\.s8\.s8",
}
HEADLINE_EXTENT = 8192
HEADLINE_REPORT = "h200.json"
ERRORS_REPORT = "errors.json"
# Kernels of every recipe beside those of the default one, and the minimum ratio of the fastest
# default kernel's speed to the fastest of all.
RECIPES_REPORT = "h200_recipes.json"
MIN_SPEED_OF_DEFAULT = 0.97
# Rows of libraries on a CPU and of the simulator, measured on that GPU's host.
CPU_REPORT = "cpu.json"
SIMULATOR_REPORT = "simulator.json"
DATA_PLANE_REPORT = "tests/data_plane/reports/h200.json"


class BadTable(Exception):
    """Raised if a table cannot be made, or has no place."""


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def table(columns, rows):
    """A Markdown table. A column whose name begins with `>` is right-aligned."""
    names = [name.removeprefix(">") for name in columns]
    lines = ["---:" if name.startswith(">") else "---" for name in columns]
    return row(names) + row(lines) + "".join(row(cells) for cells in rows)


def details(summary, text):
    return f"<details><summary>{summary}</summary>\n\n{text}\n</details>\n"


# ---- What a running daemon tells.


def type_name(value):
    return value.removeprefix("ELEMENT_TYPE_").lower()


def kernels_table(kernels):
    def cells(kernel):
        computed = [type_name(kernel["compute_type_a"]), type_name(kernel["compute_type_b"])]
        return [
            kernel["name"],
            type_name(kernel["a_type"]),
            type_name(kernel["b_type"]),
            type_name(kernel["accumulation_type"]),
            ", ".join(dict.fromkeys(computed)),
            kernel["provider"],
            kernel["description"],
        ]

    columns = ["kernel", "A", "B", "accumulation", "computed in", "provider", "how"]
    return details(f"{len(kernels)} kernels", table(columns, map(cells, kernels)))


def support_text(native, emulated):
    if native == 0 and emulated == 0:
        return "-"
    parts = [f"{native:,}"] if native else []
    parts += [f"{emulated:,} emulated"] if emulated else []
    return " + ".join(parts)


def instructions_table(instructions):
    """The number of instructions of each family that each chip has."""
    chips = [chip["chip"] for chip in instructions[0]["chips"]]
    families = {}
    for instruction in instructions:
        families.setdefault(instruction["family"], []).append(instruction)

    def count(family, chip, support):
        wanted = {"chip": chip, "support": support}
        return sum(
            wanted.items() <= at.items() for instruction in family for at in instruction["chips"]
        )

    rows = [
        [name, f"{len(family):,}"]
        + [support_text(*(count(family, chip, s) for s in ("native", "emulated"))) for chip in chips]
        for name, family in families.items()
    ]
    return table(["family", ">instructions", *(f">{chip}" for chip in chips)], rows)


@contextlib.contextmanager
def running(gemmd):
    """Runs a daemon with only the CPU. Yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        ready = pathlib.Path(folder, "ready")
        address = f"unix:{folder}/gemmd.sock"
        command = [gemmd, "--devices=cpu", f"--listen={address}", "--lame-duck=0s"]
        with open(pathlib.Path(folder, "log"), "wb") as log:
            daemon = subprocess.Popen([*command, f"--ready-file={ready}"], stderr=log)
        try:
            end = time.monotonic() + START_DEADLINE_S
            while not ready.exists():
                if daemon.poll() is not None or time.monotonic() > end:
                    raise BadTable(f"{gemmd} does not start: {pathlib.Path(folder, 'log').read_text()}")
                time.sleep(0.05)
            yield address
        finally:
            daemon.terminate()
            daemon.wait()


def output(*command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def daemon_tables(gemmd, gemmctl):
    with running(gemmd) as address:
        ask = [gemmctl, "--address", address, "--json"]
        kernels = output(*ask, "kernels", "--device", "cpu", "--all")["kernels"]
        instructions = output(*ask, "instructions")["instructions"]
    return {
        ("kernels/cpu/kernels.md", "kernels"): kernels_table(kernels),
        ("kernels/sim/README.md", "instructions"): instructions_table(instructions),
    }


# ---- The metrics that the daemon describes.


def metrics_table(metrics):
    text = ""
    for path in dict.fromkeys(metric["path"] for metric in metrics):
        rows = [
            [
                f"`{metric['name']}`",
                metric["type"],
                metric["unit"],
                ", ".join(metric["labels"]),
                metric["help"],
            ]
            for metric in metrics
            if metric["path"] == path
        ]
        columns = ["metric", "type", "unit", "labels", "meaning"]
        text += f"{chr(10) if text else ''}Metrics of `{path}`:\n\n{table(columns, rows)}"
    return text


# ---- What gemmbench measured on GPUs.


def shape_of(m):
    batch = f"{m['batch']} * " if m["batch"] > 1 else ""
    return f"{batch}{m['m']} x {m['n']} x {m['k']}"


def product_of(m):
    places = ("instruction", "m", "n", "k", "batch", "orders", "leading_dimension_offset", "output")
    return tuple(m[place] for place in places)


def rate_of(m, seconds):
    """Operations per second; those of a sparse A count as if it were dense."""
    return 2.0 * m["m"] * m["n"] * m["k"] * m["batch"] / seconds


def tera(rate):
    return f"{rate / 1e12:.{1 if rate < 1e14 else 0}f}"


def library_cells(m, name):
    if m[name] is None:
        return ["-", "-"]
    return [tera(rate_of(m, m[name]["seconds"])), f"{m[name]['ratio']:.2f}"]


def alone_cells(m, name):
    """T/s without other work on the GPU, and picojoules per operation."""
    if m[name] is None:
        return ["-", "-"]
    joules = m[name].get("joules")
    rate = rate_of(m, m[name]["seconds"])
    energy = "-" if joules is None else f"{joules / (rate * m[name]['seconds']) * 1e12:.3f}"
    return [tera(rate), energy]


def measurement_cells(m, has_alone):
    rate = rate_of(m, m["seconds"])
    offset = m["leading_dimension_offset"]
    alone = m["kernel_seconds"]
    return [
        f"`{m['kernel']}`{' *' if m['is_sparse'] else ''}",
        shape_of(m),
        m["orders"] + (f", +{offset}" if offset else "") + (f", {m['output']}" if m["output"] else ""),
        tera(rate),
        f"{100 * m['spread']:.1f}%",
        "-" if alone is None else tera(rate_of(m, alone)),
        "-" if m["ceiling"] is None else f"{100 * rate / m['ceiling']:.0f}%",
        *library_cells(m, "cublaslt"),
        *library_cells(m, "cusparselt"),
        *(alone_cells(m, "alone") + alone_cells(m, "library_alone") if has_alone else []),
    ]


def fastest(report):
    """The fastest kernel of each product, in the position of the product's first kernel."""
    best = {}
    for m in report["measurements"]:
        other = best.setdefault(product_of(m), m)
        if m["seconds"] < other["seconds"]:
            best[product_of(m)] = m
    return list(best.values())


def read_report(path):
    """Refuses reports that must not be published: without measurements, or with a result that was
    not checked."""
    report = json.loads(path.read_text())
    if not report["measurements"]:
        raise BadTable(f"{path}: got no measurement, want one or more")
    for m in report["measurements"]:
        if m["mismatches"] != 0 or m["problem"] or m["compared"] == 0:
            raise BadTable(
                f"{path}: {m['kernel']} at {shape_of(m)}: {m['compared']} elements compared, "
                f"{m['mismatches']} wrong; {m['problem']}"
            )
    return report


def version(report, name, key):
    return f"{name} {report[key]}" if report[key] else f"no {name}"


def where(report):
    clocks = [m["sm_clock_mhz"] for m in report["measurements"]]
    return (
        f"one {report['gpu']} ({report['chip']}, {report['multiprocessors']} multiprocessors, "
        f"{min(clocks)} to {max(clocks)} MHz of {report['max_sm_clock_mhz']}), driver "
        f"{report['driver']}, CUDA {report['cuda']}, {version(report, 'cuBLASLt', 'cublaslt')}, "
        f"{version(report, 'cuSPARSELt', 'cusparselt')}, {report['date']}, commit {report['commit']}"
    )


def gpu_table(report):
    columns = ["kernel", "m x n x k", "layout", ">T/s", ">spread", ">kernel alone", ">of ceiling"]
    columns += [">cuBLASLt", ">ratio", ">cuSPARSELt", ">ratio"]
    has_alone = any(m["alone"] is not None for m in report["measurements"])
    if has_alone:
        columns += [">alone", ">pJ", ">library alone", ">pJ"]
    compared = sum(m["compared"] for m in report["measurements"])
    return (
        f"Measured on {where(report)}:\n`{report['command']}`.\n"
        f"{len(report['measurements'])} measurements; {compared} elements of D were compared with the "
        "simulator's, and all of them were equal bit for bit.\n\n"
        + table(columns, [measurement_cells(m, has_alone) for m in fastest(report)])
    )


def headline_of(report, words, pattern):
    """The fastest kernel with these instructions for the product that README.md shows."""
    cube = (HEADLINE_EXTENT,) * 3
    found = [
        m
        for m in fastest(report)
        if re.fullmatch(pattern, m["instruction"]) and (m["m"], m["n"], m["k"]) == cube
    ]
    if not found:
        raise BadTable(f"{HEADLINE_REPORT} has no measurement of {words}, want {pattern}")
    return min(found, key=lambda m: m["seconds"])


def headline_table(report):
    rows = []
    for words, pattern in HEADLINES.items():
        m = headline_of(report, words, pattern)
        library = "cusparselt" if m["is_sparse"] else "cublaslt"
        name = "cuSPARSELt" if m["is_sparse"] else "cuBLASLt"
        rate, ratio = library_cells(m, library)
        cells = [words, f"`{m['instruction']}`", shape_of(m), tera(rate_of(m, m["seconds"]))]
        rows.append([*cells, f"{name} {rate}", ratio])
    columns = ["product", "instruction", "m x n x k", ">T/s", ">library, T/s", ">ratio"]
    return f"Measured on {where(report)}:\n`{report['command']}`.\n\n{table(columns, rows)}"


def errors_table(report):
    def cells(row):
        methods = ("gemmd", "gemmd_fast", "cublaslt", "cublaslt_fast")
        errors = ("-" if row[method] is None else f"{row[method]:.2e}" for method in methods)
        return [row["k"], row["type"], row["data"], *errors]

    columns = [">k", "type", "data", ">gemmd", ">gemmd, fast", ">cuBLASLt", ">cuBLASLt, fast"]
    return (
        f"Measured on one {report['gpu']}, driver {report['driver']}, CUDA {report['cuda']}, cuBLASLt "
        f"{report['cublaslt']}, commit {report['commit']}:\n`{report['command']}`.\n\n"
        + table(columns, map(cells, report["errors"]))
    )


def recipes_table(report):
    """For each product the fastest kernel of the default recipe, and the fastest of any recipe."""
    if report["chip"] != "sm_90":
        raise BadTable(f"{RECIPES_REPORT}: got {report['chip']}, want sm_90")
    products = {}
    for m in report["measurements"]:
        # A request for sums in f16 gets the default recipe's sums in f32.
        if m["types"].endswith("into f16"):
            continue
        sparse = ", A 2:4 sparse" if m["is_sparse"] else ""
        products.setdefault((m["types"] + sparse, shape_of(m), m["orders"]), []).append(m)
    rows = []
    for (types, shape, _), found in products.items():
        best = min(found, key=lambda m: m["seconds"])
        defaults = [m for m in found if m["has_default_recipe"]]
        if not defaults:
            raise BadTable(f"{RECIPES_REPORT}: {types}, {shape}: got no row of the default recipe, want one")
        default = min(defaults, key=lambda m: m["seconds"])
        speed = best["seconds"] / default["seconds"]
        if not speed >= MIN_SPEED_OF_DEFAULT:
            raise BadTable(
                f"{RECIPES_REPORT}: {types}, {shape}: got {speed:.3f} of the speed of {best['kernel']} from "
                f"{default['kernel']}, want {MIN_SPEED_OF_DEFAULT} from the default recipe"
            )
        fastest_of = [f"`{default['kernel']}`", tera(rate_of(default, default["seconds"]))]
        other = [f"`{best['kernel']}`", tera(rate_of(best, best["seconds"]))]
        same = ["the same", ""]
        rows.append([types, shape, len(found), *fastest_of, *(same if best is default else other), f"{speed:.2f}"])
    columns = ["product", "m x n x k", ">rows", "fastest of the default recipe", ">T/s"]
    columns += ["fastest of all", ">T/s", ">ratio"]
    return f"Measured on {where(report)}:\n`{report['command']}`.\n\n{table(columns, rows)}"


# ---- What gemmbench measured on CPUs.


def measured_on(report):
    libraries = "".join(f", {name} {number}" for name, number in report.get("libraries", {}).items())
    return (
        f"Measured on {report['threads']} threads of an {report['processor']}{libraries}, {report['date']}, "
        f"commit {report['commit']}:\n`{report['command']}`.\n\n"
    )


def read_host_report(path):
    report = json.loads(path.read_text())
    wrong = [m["kernel"] for m in report["measurements"] if m["check"] != "ok"]
    if wrong or not report["measurements"]:
        raise BadTable(f"{path}: got wrong rows {wrong}, want right ones")
    return report


def cpu_table(report):
    def cells(m):
        return [
            f"`{m['kernel']}` against {m['library_call']}",
            f"{m['m']} x {m['n']} x {m['k']}",
            f"{m['kernel_gops']:.1f}",
            f"{m['library_gops']:.1f}",
            f"{m['ratio']:.3f}",
        ]

    columns = ["kernel", "m x n x k", ">kernel, Gop/s", ">library, Gop/s", ">ratio"]
    return measured_on(report) + table(columns, map(cells, report["measurements"]))


def simulator_table(report):
    paths = list(dict.fromkeys(m["path"] for m in report["measurements"]))
    rates = {}
    for m in report["measurements"]:
        rate = m["multiplications"] / m["median_seconds"] / 1e9
        rates.setdefault((m["kernel"], m["m"], m["n"], m["k"]), {})[m["path"]] = f"{rate:.3g}"
    rows = [
        [f"`{kernel}`", " x ".join(map(str, shape)), *(found.get(path, "-") for path in paths)]
        for (kernel, *shape), found in rates.items()
    ]
    columns = ["kernel, G multiplications/s", "m x n x k", *(f">{path}" for path in paths)]
    return measured_on(report) + table(columns, rows)


# ---- What tests/data_plane measured.


def show(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def data_plane_table(report, begins):
    """The rows whose names begin with `begins`."""

    def compared(r):
        # A stage stands beside nothing.
        return [f"{r['measure']}: {show(r['by'])}", f"{r['ratio']:.2f}"] if r["measure"] else ["", ""]

    rows = [
        [r["row"], f"{show(r['seen'])} {r['unit']}", *compared(r)]
        for r in report["rows"]
        if r["row"].startswith(begins)
    ]
    if not rows:
        raise BadTable(f"{DATA_PLANE_REPORT} has no row of {begins}")
    commands = "".join(f"`{command}`\n" for command in report["commands"])
    return (
        f"Measured on {report['machine']}, {report['date']}, commit {report['commit']}:\n{commands}\n"
        + table(["what", ">seen", "beside it", ">ratio"], rows)
    )


def check_figures(root):
    """Checks the sentences in READMEs about gpu_check's report."""
    report = json.loads((root / "tests/gpu/reports/h200.json").read_text())
    if not report["passed"] or report["mismatches"] or report["cases_left"]:
        raise BadTable("tests/gpu/reports/h200.json: got a check that did not pass, want one that did")
    kernels = f"{report['rows_passed']} kernels"
    cases = f"{report['cases']:,} cases"
    elements = f"{report['elements'] / 1e9:.1f}e9 elements of D"
    for path in ("README.md", "tests/README.md"):
        text = " ".join((root / path).read_text().split())
        for figure in (kernels, cases, elements):
            if figure not in text:
                raise BadTable(f"{path}: got another figure, want {figure}, as gpu_check reported")


def report_tables(root):
    check_figures(root)
    folder = root / "kernels/bench/reports"
    reports = sorted(folder.glob("*.json"))
    others = {ERRORS_REPORT, RECIPES_REPORT, CPU_REPORT, SIMULATOR_REPORT}
    found = {path.name: read_report(path) for path in reports if path.name not in others}
    tables = {("kernels/bench/reports/README.md", "gpu"): "\n".join(map(gpu_table, found.values()))}
    if HEADLINE_REPORT not in found:
        raise BadTable(f"kernels/bench/reports has no {HEADLINE_REPORT}")
    errors = json.loads((folder / ERRORS_REPORT).read_text())
    data_plane = json.loads((root / DATA_PLANE_REPORT).read_text())
    tables["kernels/bench/reports/README.md", "errors"] = errors_table(errors)
    tables["kernels/bench/reports/README.md", "recipes"] = recipes_table(read_report(folder / RECIPES_REPORT))
    tables["kernels/bench/reports/README.md", "cpu"] = cpu_table(read_host_report(folder / CPU_REPORT))
    tables["kernels/bench/reports/README.md", "simulator"] = simulator_table(read_host_report(folder / SIMULATOR_REPORT))
    tables["tests/data_plane/reports/README.md", "data_plane"] = data_plane_table(data_plane, ("inline", "64", "8192", "16x", "4096", "8 x"))
    tables["tests/data_plane/reports/README.md", "transfer"] = data_plane_table(data_plane, ("Put", "Get"))
    tables["README.md", "headline"] = headline_table(found[HEADLINE_REPORT])
    return tables


# ---- Tables and files.


def replace(path, text, name, made):
    begin = f"<!-- {name}: begin, written by tests/readme_tables.py -->\n"
    end = f"<!-- {name}: end -->\n"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise BadTable(f"{path} has not one pair of marks: {begin}{end}")
    head, rest = text.split(begin)
    return head + begin + made + end + rest.split(end)[1]


def all_tables(root, gemmd=None, gemmctl=None):
    """The file, the name and the text of each table."""
    tables = report_tables(root)
    if gemmd:
        tables["server/metrics/metrics.md", "metrics"] = metrics_table(output(gemmd, "--list-metrics"))
    if gemmd and gemmctl:
        tables |= daemon_tables(gemmd, gemmctl)
    return tables


def with_tables(root, tables):
    """The present text of each file, and its text with the new tables."""
    files = {}
    for (path, name), made in tables.items():
        old, new = files.get(path) or 2 * ((root / path).read_text(),)
        files[path] = old, replace(path, new, name, made)
    return files


def difference(root, tables):
    """The differences from the tables as lines of a diff; empty if there are none."""
    lines = []
    for path, (old, new) in with_tables(root, tables).items():
        lines += difflib.unified_diff(
            old.splitlines(True), new.splitlines(True), path, f"{path} as it should be", n=0
        )
    return "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Compare the tables, write nothing")
    parser.add_argument("--gemmd", help="The daemon, for the tables of kernels and metrics")
    parser.add_argument("--gemmctl", help="The command line, for the tables of kernels")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="The repository")
    options = parser.parse_args()
    try:
        tables = all_tables(options.root, options.gemmd, options.gemmctl)
        if options.check:
            differs = difference(options.root, tables)
            sys.stdout.write(differs)
            if differs:
                sys.exit("The tables differ: run tests/readme_tables.py --gemmd ... --gemmctl ...")
            return
        for path, (_, new) in with_tables(options.root, tables).items():
            (options.root / path).write_text(new)
    except BadTable as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
