#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Whether the census and the compiler's flags see what they are there for.

usage: census_selftest.py NVCC FLAG...    The flags are those of the kernels.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import census

FIXTURE = pathlib.Path(__file__).resolve().parent / "fixture.cu"
RIGHT = {0: ("HMMA", "row0"), 1: ("none", "row1"), 2: ("absent", "row2")}
NVCC = []


def build(folder, output, *flags):
    """The result of a compilation of the fixture for sm_90a, and the file."""
    path = os.path.join(folder, output)
    return subprocess.run([*NVCC[:1], "-arch=sm_90a", *flags, str(FIXTURE), "-o", path],
                          capture_output=True, text=True, check=False), path


class CensusTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        result, self.object = build(self.folder.name, "fixture.o", "-c")
        self.assertEqual(result.returncode, 0, result.stderr)

    def complaints(self, rows, file=None):
        return census.census(file or self.object, rows)[0]

    def test_takes_what_is_right(self):
        self.assertEqual(census.census(self.object, RIGHT), ([], 2, 0))

    def test_looks_into_archives(self):
        archive = os.path.join(self.folder.name, "fixture.a")
        subprocess.run(["ar", "qc", archive, self.object], check=True)
        self.assertEqual(census.census(archive, RIGHT), ([], 2, 0))

    def test_finds_another_instruction(self):
        self.assertEqual(self.complaints(RIGHT | {0: ("IMMA", "row0")}),
                         ["row0: got {'HMMA': 1}, want IMMA"])
        self.assertEqual(self.complaints(RIGHT | {0: ("none", "row0")}),
                         ["row0: got {'HMMA': 1}, want none"])

    def test_finds_no_instruction(self):
        self.assertEqual(self.complaints(RIGHT | {1: ("HMMA", "row1")}),
                         ["row1: got {}, want HMMA"])

    def test_finds_a_missing_kernel(self):
        self.assertEqual(self.complaints(RIGHT | {2: ("HMMA", "row2")}),
                         ["row2: got 0 kernels, want 1"])

    def test_wants_absent_kernels_empty(self):
        self.assertEqual(self.complaints(RIGHT | {1: ("absent", "row1")}), [])
        self.assertEqual(self.complaints(RIGHT | {0: ("absent", "row0")}),
                         ["row0: got {'HMMA': 1}, want absent"])

    def test_finds_a_second_kernel(self):
        archive = os.path.join(self.folder.name, "fixture.a")
        subprocess.run(["ar", "qc", archive, self.object, self.object], check=True)
        self.assertEqual(self.complaints(RIGHT, archive),
                         ["row0: got 2 kernels, want 1", "row1: got 2 kernels, want 1"])

    def test_finds_local_memory(self):
        result, file = build(self.folder.name, "spills.o", "-c", "-DGEMMD_SPILLS")
        self.assertEqual(result.returncode, 0, result.stderr)
        complaints = self.complaints(RIGHT, file)
        self.assertEqual(len(complaints), 1)
        self.assertRegex(complaints[0], r"Indexes.*: got .*'STL': \d+.*want no local memory")


class FlagsTest(unittest.TestCase):

    def test_refuse_local_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            result, _ = build(folder, "fixture.cubin", "-cubin", *NVCC[1:])
            self.assertEqual(result.returncode, 0, result.stderr)
            result, _ = build(folder, "spills.cubin", "-cubin", "-DGEMMD_SPILLS", *NVCC[1:])
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("local memory", (result.stdout + result.stderr).lower())


if __name__ == "__main__":
    NVCC = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
