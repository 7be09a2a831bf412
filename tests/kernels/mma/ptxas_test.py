#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks ptxas whether the tables of kernels/mma are right: it must take exactly the instructions that
a target has, and emit for the native ones exactly so many instructions of the tensor core.

usage: ptxas_test.py PTXAS_KERNELS. Exit codes: 0, 1 a table is wrong, 77 there is no ptxas.
"""

import concurrent.futures
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

TARGETS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a"]

# The low 12 bits of an instruction of 128, as nvdisasm of CUDA 13 tells them apart.
OPCODES = {
    0x236: "HMMA",  # .884
    0x23C: "HMMA",
    0x237: "IMMA",
    0x23D: "BMMA",
    0x23F: "DMMA",
    0x27A: "QMMA",
    0x47A: "QMMA",  # .SF
    0x47F: "OMMA",
    0xDF0: "HGMMA",
    0xDF1: "IGMMA",
    0xDF2: "BGMMA",
    0xDF3: "QGMMA",
}
INSTRUCTION_BYTES = 16


class Kernel:
    """What a '// kernel' line says, and where in the file the instruction stands."""

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
    cubin = os.path.join(folder, target + ".cubin")
    with open(source, "w", encoding="ascii") as file:
        file.write(ptx)
    run = subprocess.run(["ptxas", "-arch=" + target, source, "-o", cubin],
                         capture_output=True, text=True, check=False)
    refused = {int(number) for number in re.findall(r", line (\d+); error", run.stderr)}
    if run.returncode != 0 and not refused:
        sys.exit(f"ptxas -arch={target}: {run.stderr}")
    if run.returncode != 0:
        return None, refused
    with open(cubin, "rb") as file:
        return file.read(), refused


def sections(elf):
    """Names and contents of the sections of a 64-bit ELF file."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry_bytes) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        start = names + name
        yield elf[start:elf.index(b"\0", start)].decode("ascii"), elf[offset:offset + size]


def tensor_opcodes(code):
    opcodes = []
    for at in range(0, len(code), INSTRUCTION_BYTES):
        word, = struct.unpack_from("<H", code, at)
        opcodes += [OPCODES[word & 0xFFF]] if word & 0xFFF in OPCODES else []
    return opcodes


def check_available(target, ptx, folder):
    kernels = parse_kernels(ptx)
    cubin, refused = assemble(target, ptx, folder)
    for kernel in kernels:
        if kernel.mnemonic_line in refused:
            yield f"{target} refuses {kernel.instruction}, want {kernel.support}"
    if cubin is None:
        yield f"{target}: ptxas refuses {len(refused)} lines"
        return
    code = {name: content for name, content in sections(cubin) if name.startswith(".text.")}
    for kernel in kernels:
        got = tensor_opcodes(code[".text." + kernel.name])
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
