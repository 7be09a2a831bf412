#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Asks ptxas whether the tables of kernels/mma are right: it must take exactly the instructions that
a target has, and emit for the native ones exactly so many instructions of the tensor core.

usage: ptxas_test.py PTXAS_KERNELS. Exit codes: 0, 1 a table is wrong, 77 there is no ptxas.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import cubin  # noqa: E402, pylint: disable=wrong-import-position

TARGETS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a"]


class Kernel:
    """The contents of a '// kernel' line, and the line of the instruction."""

    def __init__(self, fields):
        self.name, self.support, self.opcode, count, self.instruction = fields
        self.count = int(count)
        self.mnemonic_line = None


def parse_kernels(ptx):
    kernels = []
    for number, line in enumerate(ptx.splitlines(), start=1):
        if line.startswith("// kernel "):
            kernels.append(Kernel(line.split()[2:]))
        elif re.match(r"mma\.s|wmma\.mma|wgmma\.mma_async", line):
            kernels[-1].mnemonic_line = number
    return kernels


def assemble(target, ptx, folder):
    """The cubin, or None, and the numbers of the lines that ptxas refuses."""
    source = os.path.join(folder, target + ".ptx")
    assembled = os.path.join(folder, target + ".cubin")
    with open(source, "w", encoding="ascii") as file:
        file.write(ptx)
    run = subprocess.run(["ptxas", "-arch=" + target, source, "-o", assembled],
                         capture_output=True, text=True, check=False)
    refused = {int(number) for number in re.findall(r", line (\d+); error", run.stderr)}
    if run.returncode != 0 and not refused:
        sys.exit(f"ptxas -arch={target}: {run.stderr}")
    if run.returncode != 0:
        return None, refused
    with open(assembled, "rb") as file:
        return file.read(), refused


def check_available(target, ptx, folder):
    kernels = parse_kernels(ptx)
    binary, refused = assemble(target, ptx, folder)
    for kernel in kernels:
        if kernel.mnemonic_line in refused:
            yield f"{target} refuses {kernel.instruction}, want {kernel.support}"
    if binary is None:
        yield f"{target}: ptxas refuses {len(refused)} lines"
        return
    code = dict(cubin.kernels(binary))
    for kernel in kernels:
        got = cubin.tensor_opcodes(code[kernel.name], int(re.search(r"\d+", target).group()))
        is_native = got == [kernel.opcode] * kernel.count
        if is_native != (kernel.support == "native"):
            yield (f"{target} {kernel.instruction}: got {got}, native is "
                   f"{kernel.count} {kernel.opcode}, want {kernel.support}")


def check_unavailable(target, ptx, folder):
    _, refused = assemble(target, ptx, folder)
    for kernel in parse_kernels(ptx):
        if kernel.mnemonic_line not in refused:
            yield f"{target} takes {kernel.instruction}, want unavailable"


def check(program, target):
    complaints = []
    counts = []
    for which, judge in (("available", check_available), ("unavailable", check_unavailable)):
        ptx = subprocess.run([program, target, which], capture_output=True, text=True,
                             check=True).stdout
        counts.append(len(parse_kernels(ptx)))
        with tempfile.TemporaryDirectory() as folder:
            complaints += judge(target, ptx, folder)
    print(f"{target}: {counts[0]} taken, {counts[1]} refused, {len(complaints)} complaints")
    return complaints


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: ptxas_test.py PTXAS_KERNELS")
    if shutil.which("ptxas") is None:
        print("no ptxas on PATH")
        return 77
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        complaints = sum(pool.map(lambda target: check(sys.argv[1], target), TARGETS), [])
    print("\n".join(complaints[:50]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
