#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The check of the READMEs' tables finds every difference that is planted, and publishes nothing wrong.

usage: readme_tables_test.py [--gemmd GEMMD --gemmctl GEMMCTL], without which the tables of kernels and
metrics are left out.
"""

import argparse
import copy
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

import readme_tables as tables

PROGRAMS = argparse.Namespace(gemmd=None, gemmctl=None)

MEASUREMENT = {
    "kernel": "mma.m16n8k16.f32.bf16.bf16.f32_128x256x64_w2x4_s3",
    "instruction": "mma.m16n8k16.f32.bf16.bf16.f32",
    "types": "bf16 x bf16 into f32",
    "m": 8192,
    "n": 8192,
    "k": 8192,
    "batch": 1,
    "orders": "rcr",
    "leading_dimension_offset": 0,
    "output": "",
    "is_sparse": False,
    "has_default_recipe": True,
    "compared": 4096,
    "mismatches": 0,
    "problem": "",
    "seconds": 0.002,
    "spread": 0.0123,
    "kernel_seconds": None,
    "sm_clock_mhz": 1700,
    "ceiling": 630e12,
    "cublaslt": {"seconds": 0.0016, "ratio": 0.801},
    "cusparselt": None,
    "alone": None,
    "library_alone": None,
}
REPORT = {
    "gpu": "NVIDIA H200",
    "chip": "sm_90",
    "multiprocessors": 132,
    "max_sm_clock_mhz": 1980,
    "driver": "580",
    "cuda": "13.0",
    "cublaslt": "13.1.0",
    "cusparselt": "",
    "commit": "abc",
    "date": "2026-11-21",
    "command": "gemmbench --device cuda:0",
    "measurements": [MEASUREMENT],
}


def with_measurements(*changes):
    return {**REPORT, "measurements": [{**MEASUREMENT, **change} for change in changes]}


class GpuTableTest(unittest.TestCase):
    def rows(self, report):
        lines = tables.gpu_table(report).splitlines()
        return [line for line in lines if line.startswith("| `")]

    def test_a_row(self):
        self.assertEqual(
            self.rows(REPORT),
            [
                "| `mma.m16n8k16.f32.bf16.bf16.f32_128x256x64_w2x4_s3` | 8192 x 8192 x 8192 | rcr | 550 "
                "| 1.2% | - | 87% | 687 | 0.80 | - | - |"
            ],
        )

    def test_a_batch_and_its_rates_alone(self):
        operations = 2.0 * 8192**3
        report = with_measurements(
            {
                "batch": 4,
                "output": "bf16 bias",
                "alone": {"seconds": 0.0016, "joules": operations * 4 * 0.9e-12},
                "library_alone": {"seconds": 0.002},
            }
        )
        self.assertEqual(
            self.rows(report),
            [
                "| `mma.m16n8k16.f32.bf16.bf16.f32_128x256x64_w2x4_s3` | 4 * 8192 x 8192 x 8192 | rcr, bf16 bias "
                "| 2199 | 1.2% | - | 349% | 2749 | 0.80 | - | - | 2749 | 0.900 | 2199 | - |"
            ],
        )

    def test_a_sparse_row_with_a_longer_leading_dimension(self):
        report = with_measurements(
            {
                "is_sparse": True,
                "leading_dimension_offset": 8,
                "seconds": 0.02,
                "kernel_seconds": 0.016,
                "ceiling": None,
                "cublaslt": None,
                "cusparselt": {"seconds": 0.01, "ratio": 0.5},
            }
        )
        self.assertEqual(
            self.rows(report),
            [
                "| `mma.m16n8k16.f32.bf16.bf16.f32_128x256x64_w2x4_s3` * | 8192 x 8192 x 8192 | rcr, +8 "
                "| 55.0 | 1.2% | 68.7 | - | - | - | 110 | 0.50 |"
            ],
        )

    def test_each_product_has_its_fastest_kernel_where_its_first_stood(self):
        report = with_measurements(
            {"kernel": "slow"}, {"kernel": "other", "n": 4096}, {"kernel": "quick", "seconds": 0.001}
        )
        kernels = [line.split("`")[1] for line in self.rows(report)]
        self.assertEqual(kernels, ["quick", "other"])

    def test_the_heading_counts_everything(self):
        text = tables.gpu_table(with_measurements({"sm_clock_mhz": 1500}, {}))
        self.assertIn("1500 to 1700 MHz of 1980", text)
        self.assertIn("cuBLASLt 13.1.0, no cuSPARSELt, 2026-11-21, commit abc:\n`gemmbench", text)
        self.assertIn("2 measurements; 8192 elements of D", text)

    def test_what_is_wrong_is_not_published(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "report.json")
            wrong = [
                ({"mismatches": 1}, "4096 elements compared, 1 wrong"),
                ({"compared": 0}, "0 elements compared"),
                ({"problem": "not finite"}, "not finite"),
            ]
            for change, words in wrong:
                path.write_text(json.dumps(with_measurements(change)))
                with self.assertRaisesRegex(tables.BadTable, words):
                    tables.read_report(path)
            path.write_text(json.dumps({**REPORT, "measurements": []}))
            with self.assertRaisesRegex(tables.BadTable, "got no measurement"):
                tables.read_report(path)
            path.write_text(json.dumps(REPORT))
            self.assertEqual(tables.read_report(path), REPORT)

    def test_a_headline_is_the_fastest_kernel_for_the_large_cube(self):
        name = "wgmma.m64n{}k16.f32.bf16.bf16"
        report = with_measurements(
            {"instruction": name.format(256), "seconds": 0.0016},
            {"instruction": name.format(192), "seconds": 0.0015},
            {"instruction": name.format(128), "seconds": 0.0001, "m": 4096},
        )
        found = tables.headline_of(report, "bf16", r"wgmma\.m64n\d+k16\.f32\.bf16\.bf16")
        self.assertEqual(found["seconds"], 0.0015)

    def test_a_headline_needs_its_measurement(self):
        with self.assertRaisesRegex(tables.BadTable, "has no measurement of f16 into f32, want wgmma"):
            tables.headline_table(REPORT)


class RecipesTableTest(unittest.TestCase):
    def table(self, *changes):
        lines = tables.recipes_table(with_measurements(*changes)).splitlines()
        return [line for line in lines if line.startswith("| bf16")]

    def test_the_default_recipe_stands_beside_the_fastest_kernel(self):
        rows = self.table(
            {"kernel": "d", "seconds": 0.0101},
            {"kernel": "slow d", "seconds": 0.02},
            {"kernel": "other", "seconds": 0.01, "has_default_recipe": False},
            {"kernel": "d", "m": 64, "seconds": 0.01},
        )
        self.assertEqual(
            rows,
            [
                "| bf16 x bf16 into f32 | 8192 x 8192 x 8192 | 3 | `d` | 109 | `other` | 110 | 0.99 |",
                "| bf16 x bf16 into f32 | 64 x 8192 x 8192 | 1 | `d` | 0.9 | the same |  | 1.00 |",
            ],
        )

    def test_a_slow_default_recipe_is_refused(self):
        other = {"kernel": "other", "has_default_recipe": False}
        with self.assertRaisesRegex(tables.BadTable, "got 0.950 of the speed of other from d, want 0.97"):
            self.table({"kernel": "d", "seconds": 0.02}, {**other, "seconds": 0.019})
        with self.assertRaisesRegex(tables.BadTable, "got 0.000 of the speed|got nan of the speed"):
            self.table({"kernel": "d", "seconds": float("inf")}, {**other, "seconds": 0.019})
        with self.assertRaisesRegex(tables.BadTable, "got no row of the default recipe"):
            self.table(other)


class HostTablesTest(unittest.TestCase):
    REPORT = {
        "processor": "Xeon",
        "threads": 2,
        "libraries": {"oneDNN": "2.6.3"},
        "commit": "abc",
        "date": "2026-11-21",
        "command": "gemmbench",
    }
    CPU = {"kernel": "onednn.x", "library_call": "dnnl_sgemm", "m": 8, "n": 9, "k": 10, "check": "ok"}
    CPU |= {"kernel_gops": 462.44, "library_gops": 464.6, "ratio": 0.9954}
    SIMULATOR = {"kernel": "mma.x", "m": 8, "n": 9, "k": 10, "check": "ok", "multiplications": 720.0}

    def test_rows_of_the_cpu(self):
        text = tables.cpu_table({**self.REPORT, "measurements": [self.CPU]})
        self.assertIn("2 threads of an Xeon, oneDNN 2.6.3, 2026-11-21, commit abc:\n`gemmbench`.\n", text)
        self.assertIn("| `onednn.x` against dnnl_sgemm | 8 x 9 x 10 | 462.4 | 464.6 | 0.995 |\n", text)

    def test_rows_of_the_simulator_have_a_column_for_each_path(self):
        def at(path, seconds, kernel="mma.x"):
            return {**self.SIMULATOR, "kernel": kernel, "path": path, "median_seconds": seconds}

        measurements = [at("scalar", 1e-6), at("avx2", 1e-7), at("avx2", 1e-8, "mma.y")]
        text = tables.simulator_table({**self.REPORT, "measurements": measurements})
        self.assertIn("| scalar | avx2 |\n", text)
        self.assertIn("| `mma.x` | 8 x 9 x 10 | 0.72 | 7.2 |\n", text)
        self.assertIn("| `mma.y` | 8 x 9 x 10 | - | 72 |\n", text)

    def test_what_is_wrong_is_not_published(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "report.json")
            for measurements in ([], [self.CPU, {**self.CPU, "check": "d[0][0]: got nan, want 1"}]):
                path.write_text(json.dumps({**self.REPORT, "measurements": measurements}))
                with self.assertRaisesRegex(tables.BadTable, "want right ones"):
                    tables.read_host_report(path)


class DataPlaneTableTest(unittest.TestCase):
    def test_rows_that_begin_so(self):
        row = {"row": "Put, unix", "seen": 1234.5, "unit": "GB/s", "measure": "bare stream", "by": 0.51234, "ratio": 2}
        report = {"machine": "M", "date": "D", "commit": "abc", "commands": ["bench 1", "bench 2"], "rows": [row]}
        text = tables.data_plane_table(report, ("Put", "Get"))
        self.assertIn("Measured on M, D, commit abc:\n`bench 1`\n`bench 2`\n", text)
        self.assertIn("| Put, unix | 1,234 GB/s | bare stream: 0.512 | 2.00 |\n", text)
        with self.assertRaisesRegex(tables.BadTable, "no row of"):
            tables.data_plane_table(report, ("inline",))


class InstructionsTableTest(unittest.TestCase):
    def test_counts_by_family_and_chip(self):
        def instruction(family, *support):
            chips = [
                {"chip": chip, "support": word}
                for chip, word in zip(("sm_80", "sm_90"), support)
            ]
            return {"family": family, "chips": chips}

        text = tables.instructions_table(
            [instruction("mma", "native", "emulated")] * 1000
            + [instruction("mma", "native", "native"), instruction("wgmma", "unavailable", "emulated")]
        )
        self.assertEqual(
            text,
            "| family | instructions | sm_80 | sm_90 |\n"
            "| --- | ---: | ---: | ---: |\n"
            "| mma | 1,001 | 1,001 | 1 + 1,000 emulated |\n"
            "| wgmma | 1 | - | 1 emulated |\n",
        )


class CheckTest(unittest.TestCase):
    """Works on a copy of the READMEs."""

    @classmethod
    def setUpClass(cls):
        cls.tables = tables.all_tables(tables.ROOT, PROGRAMS.gemmd, PROGRAMS.gemmctl)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for path, _ in self.tables:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tables.ROOT / path, self.root / path)

    def test_nothing_differs(self):
        self.assertEqual(tables.difference(self.root, self.tables), "")

    def plant(self, path, old, new):
        text = (self.root / path).read_text()
        self.assertIn(old, text)
        (self.root / path).write_text(text.replace(old, new, 1))

    def test_planted_differences_are_found(self):
        for (path, name), made in self.tables.items():
            last = made.strip().splitlines()[-1] if "</details>" not in made else made.splitlines()[-3]
            planted = {
                "a missing row": (f"{last}\n", ""),
                "a row too many": (f"{last}\n", f"{last}\n{last}\n"),
                "another cell": (last, last[:-3] + "x |"),
                "another line before the end": (f"<!-- {name}: end", f"words\n<!-- {name}: end"),
            }
            for what, (old, new) in planted.items():
                with self.subTest(table=name, planted=what):
                    self.plant(path, old, new)
                    self.assertIn(path, tables.difference(self.root, self.tables))
                    shutil.copy(tables.ROOT / path, self.root / path)

    def test_other_tables_are_found_to_differ(self):
        for key in self.tables:
            changed = copy.deepcopy(self.tables)
            changed[key] = changed[key].replace("|\n", "| new |\n", 1)
            with self.subTest(table=key):
                self.assertIn("new", tables.difference(self.root, changed))

    def test_a_missing_mark_is_found(self):
        for path, name in self.tables:
            for mark in ("begin", "end"):
                with self.subTest(table=name, mark=mark):
                    self.plant(path, f"<!-- {name}: {mark}", "<!-- other")
                    with self.assertRaisesRegex(tables.BadTable, "not one pair of marks"):
                        tables.difference(self.root, self.tables)
                    shutil.copy(tables.ROOT / path, self.root / path)

    def test_marks_in_the_wrong_order_are_found(self):
        begin = "<!-- t: begin, written by tests/readme_tables.py -->\n"
        end = "<!-- t: end -->\n"
        self.assertEqual(tables.replace("f", begin + "old\n" + end, "t", "new\n"), begin + "new\n" + end)
        for text in (end + begin, begin + begin + end, begin, "", begin + end + end):
            with self.assertRaises(tables.BadTable):
                tables.replace("f", text, "t", "new\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gemmd")
    parser.add_argument("--gemmctl")
    PROGRAMS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
