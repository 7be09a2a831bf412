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
from census import cubin

FIXTURE = pathlib.Path(__file__).resolve().parent / "fixture.cu"
MNEMONIC = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
ROW0 = census.Row("HMMA", 1, 0, MNEMONIC, "row0")
ROW1 = census.Row("none", 1, 0, MNEMONIC, "row1")
KIND = [f"gemmd::row_type::Row<{i}>" for i in range(3)]
RIGHT = {KIND[0]: ROW0, KIND[1]: ROW1, KIND[2]: census.Row("absent", 1, 0, MNEMONIC, "row2")}
NVCC = []


def build(folder, output, *flags):
    """The result of a compilation of the fixture, by default for sm_90a, and the file."""
    path = os.path.join(folder, output)
    target = [] if any("-gencode" in flag for flag in flags) else ["-arch=sm_90a"]
    return subprocess.run([*NVCC[:1], *target, *flags, str(FIXTURE), "-o", path],
                          capture_output=True, text=True, check=False), path


def kernels_of(file):
    return census.kernels_by_capability([pathlib.Path(file).read_bytes()])


class CensusTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        result, cls.object = build(cls.folder.name, "fixture.o", "-c")
        assert result.returncode == 0, result.stderr

    def complaints(self, rows, file=None):
        return census.census(90, kernels_of(file or self.object)[90], rows)[0]

    def test_takes_what_is_right(self):
        kernels = kernels_of(self.object)
        self.assertEqual(list(kernels), [90])
        self.assertEqual(census.census(90, kernels[90], RIGHT), ([], 2, 0))

    def test_looks_into_archives(self):
        archive = os.path.join(self.folder.name, "fixture.a")
        subprocess.run(["ar", "qc", archive, self.object], check=True)
        self.assertEqual(census.census(90, kernels_of(archive)[90], RIGHT), ([], 2, 0))

    def test_tells_chips_apart(self):
        result, file = build(self.folder.name, "both.o", "-c", "-gencode=arch=compute_80,code=sm_80",
                             "-gencode=arch=compute_120a,code=sm_120a")
        self.assertEqual(result.returncode, 0, result.stderr)
        kernels = kernels_of(file)
        self.assertEqual(sorted(kernels), [80, 120])
        for capability in kernels:
            self.assertEqual(census.census(capability, kernels[capability], RIGHT), ([], 2, 0))

    def test_finds_another_instruction(self):
        self.assertEqual(self.complaints(RIGHT | {KIND[0]: ROW0._replace(opcode="IMMA")}),
                         ["row0: got {'HMMA': 1}, want IMMA"])
        self.assertEqual(self.complaints(RIGHT | {KIND[0]: ROW0._replace(opcode="none")}),
                         ["row0: got {'HMMA': 1}, want none"])

    def test_finds_no_instruction(self):
        self.assertEqual(self.complaints(RIGHT | {KIND[1]: ROW1._replace(opcode="HMMA")}),
                         ["row1: got {}, want HMMA"])

    def test_finds_one_that_is_left_out(self):
        self.assertEqual(self.complaints(RIGHT | {KIND[0]: ROW0._replace(divisor=2)}),
                         ["row0: got {'HMMA': 1}, want a multiple of 2"])

    def test_finds_registers_that_do_not_move(self):
        self.assertEqual(self.complaints(RIGHT | {KIND[0]: ROW0._replace(moves=2)}),
                         ["row0: got 0 setmaxnreg, want 2"])

    def test_finds_a_missing_kernel(self):
        self.assertEqual(self.complaints(RIGHT | {KIND[2]: ROW0._replace(name="row2")}),
                         ["row2: got 0 kernels, want 1"])

    def test_wants_absent_kernels_empty(self):
        self.assertEqual(self.complaints(RIGHT | {KIND[1]: ROW1._replace(opcode="absent")}), [])
        self.assertEqual(self.complaints(RIGHT | {KIND[0]: ROW0._replace(opcode="absent")}),
                         ["row0: got {'HMMA': 1}, want absent"])

    def test_finds_a_second_kernel(self):
        archive = os.path.join(self.folder.name, "twice.a")
        subprocess.run(["ar", "qc", archive, self.object, self.object], check=True)
        self.assertEqual(self.complaints(RIGHT, archive),
                         ["row0: got 2 kernels, want 1", "row1: got 2 kernels, want 1"])

    def test_finds_local_memory(self):
        result, file = build(self.folder.name, "spills.o", "-c", "-DGEMMD_SPILLS")
        self.assertEqual(result.returncode, 0, result.stderr)
        complaints = self.complaints(RIGHT, file)
        self.assertEqual(len(complaints), 1)
        self.assertRegex(complaints[0], r"Indexes.*: got .*'STL': \d+.*want no local memory")


class PtxTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            result, file = build(folder, "fixture.o", "-c", "--compress-mode=none",
                                 "-gencode=arch=compute_90a,code=[compute_90a,sm_90a]")
            assert result.returncode == 0, result.stderr
            (cls.capability, cls.text), = cubin.ptx_texts(pathlib.Path(file).read_bytes())

    def test_takes_what_is_right(self):
        self.assertEqual(self.capability, 90)
        self.assertEqual(census.ptx_census(self.text, {KIND[0]: ROW0, KIND[1]: ROW1._replace(opcode="absent")}),
                         [])

    def test_finds_another_instruction(self):
        other = MNEMONIC.replace("f16.f16", "bf16.bf16")
        self.assertEqual(
            census.ptx_census(self.text, {KIND[0]: ROW0._replace(mnemonic=other), KIND[1]: ROW0}),
            [f"row0: got {{'{MNEMONIC}': 1}}, want {other}", f"row0: got {{}}, want {MNEMONIC}"])


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
