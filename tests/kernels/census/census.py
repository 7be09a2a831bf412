#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Counts, in the machine code that is shipped, the instructions of the tensor core and those of local
memory: every row has a kernel of instructions of its own kind alone, and nothing spills.

usage: census.py FILE CUDA_ROWS
FILE is a static library or a program; CUDA_ROWS prints the rows (cuda_rows_main.cc). Only code for
sm_90 is looked at. Exit codes: 0, 1 something is wrong.
"""

import collections
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import cubin  # noqa: E402, pylint: disable=wrong-import-position

CAPABILITY = 90
# A template over the row's index, as the compiler writes it.
ROW_KERNEL = re.compile(r"MmaKernelILm(\d+)E|WmmaKernelILm(\d+)E")


def read_rows(program):
    """Opcodes and names by index."""
    text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {int(index): (opcode, name) for index, opcode, name in map(str.split, text.splitlines())}


def read_kernels(file):
    """Names and machine code."""
    for capability, binary in cubin.cubins(pathlib.Path(file).read_bytes()):
        if capability == CAPABILITY:
            yield from cubin.kernels(binary)


def tensor_complaint(row, code):
    opcode, name = row
    counts = collections.Counter(cubin.opcodes(code, cubin.TENSOR_OPCODES))
    want = {opcode} - {"none", "absent"}  # The kernel of an absent one may be an empty shell.
    if set(counts) != want:
        return f"{name}: got {dict(counts)}, want {opcode}"
    return None


def census(file, rows):
    """What is wrong, and how many kernels of rows and others there are."""
    complaints = []
    seen = collections.Counter()
    others = 0
    for name, code in read_kernels(file):
        local = collections.Counter(cubin.opcodes(code, cubin.LOCAL_OPCODES))
        if local:
            complaints.append(f"{name}: got {dict(local)}, want no local memory")
        match = ROW_KERNEL.search(name)
        if match is None:
            others += 1
            continue
        index = int(match.group(1) or match.group(2))
        seen[index] += 1
        complaint = tensor_complaint(rows[index], code)
        complaints += [complaint] if complaint else []
    for index, (opcode, name) in rows.items():
        if opcode != "absent" and seen[index] != 1:
            complaints.append(f"{name}: got {seen[index]} kernels, want 1")
    return complaints, len(seen), others


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: census.py FILE CUDA_ROWS")
    complaints, rows, others = census(sys.argv[1], read_rows(sys.argv[2]))
    print(f"{rows} kernels of rows, {others} others, {len(complaints)} complaints")
    print("\n".join(complaints[:50]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
