#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Counts, in the machine code that is shipped, the instructions of the tensor core and those of local
memory: for every chip that the code is for, every row has a kernel of instructions of its own kind
alone, nothing spills, and registers move where the row says (ptxas may leave that out with a note,
C7508). Where there is PTX too, its instructions are those of the row by name.

usage: census.py CUDA_ROWS [--sample] FILE...
FILE is an object file, a static library or a program; CUDA_ROWS prints the rows (cuda_rows_main.cc),
with --sample those of sample.h alone. Exit codes: 0, 1 something is wrong.
"""

import collections
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import cubin  # noqa: E402, pylint: disable=wrong-import-position

# A template over the row as a type; other kernels are not.
ROW_KERNEL = re.compile(r"\bgemmd::(?:Mma|Warpgroup)Kernel<(gemmd::row_type::Row<.*>)\s*>\(")


Row = collections.namedtuple("Row", "opcode divisor moves mnemonic name")


def read_rows(program, capability, *arguments):
    """Rows by their types, as on a chip."""
    text = subprocess.run([program, f"sm_{capability}", *arguments], capture_output=True, text=True,
                          check=True).stdout
    fields = [line.split(maxsplit=5) for line in text.splitlines()]
    return {kind: Row(opcode, int(divisor), int(moves), mnemonic, name)
            for opcode, divisor, moves, mnemonic, name, kind in fields}


def rows_of(names):
    """For each symbol, the type of the row whose kernel it is, or None."""
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                          check=True).stdout
    matches = [ROW_KERNEL.search(line) for line in text.splitlines()]
    return [match and match.group(1) for match in matches]


def counts_complaint(row, got, want):
    """`got` are the kernel's instructions, `want` is the only one allowed."""
    counts = collections.Counter(got)
    wanted = {want} - {"none", "absent"}  # The kernel of an absent one may be an empty shell.
    if set(counts) != wanted:
        return [f"{row.name}: got {dict(counts)}, want {want}"]
    if len(got) % row.divisor:
        return [f"{row.name}: got {dict(counts)}, want a multiple of {row.divisor}"]
    return []


def census(capability, kernels, rows):
    """The faults of the kernels of one chip, given by names and machine code, and the numbers of
    kernels of rows and of others."""
    complaints = []
    seen = collections.Counter()
    others = 0
    for (name, code), index in zip(kernels, rows_of([name for name, _ in kernels])):
        local = collections.Counter(cubin.opcodes(code, cubin.LOCAL_OPCODES))
        if local:
            complaints.append(f"{name}: got {dict(local)}, want no local memory")
        if index is None:
            others += 1
            continue
        seen[index] += 1
        complaints += counts_complaint(rows[index], cubin.tensor_opcodes(code, capability),
                                       rows[index].opcode)
        moves = len(cubin.opcodes(code, cubin.REGISTER_OPCODES))
        if moves != rows[index].moves:
            complaints.append(f"{rows[index].name}: got {moves} setmaxnreg, want {rows[index].moves}")
    for index, row in rows.items():
        if row.opcode != "absent" and seen[index] != 1:
            complaints.append(f"{row.name}: got {seen[index]} kernels, want 1")
    return complaints, len(seen), others


def ptx_census(text, rows):
    """The faults of one chip's PTX."""
    complaints = []
    found = list(cubin.ptx_mnemonics(text))
    for (_, mnemonics), index in zip(found, rows_of([name for name, _ in found])):
        if index is not None and rows[index].opcode != "absent":
            complaints += counts_complaint(rows[index], mnemonics, rows[index].mnemonic)
    return complaints


def kernels_by_capability(files):
    kernels = collections.defaultdict(list)
    for file in files:
        for capability, binary in cubin.cubins(file):
            kernels[capability] += cubin.kernels(binary)
    return kernels


def main():
    samples = sys.argv[2:3] == ["--sample"]
    paths = sys.argv[3 if samples else 2:]
    if not paths:
        sys.exit("usage: census.py CUDA_ROWS [--sample] FILE...")
    files = [pathlib.Path(path).read_bytes() for path in paths]
    arguments = ["sample"] if samples else []
    complaints = []
    kernels = kernels_by_capability(files)
    if not kernels:
        complaints.append("no machine code")
    for capability in sorted(kernels):
        rows = read_rows(sys.argv[1], capability, *arguments)
        new, of_rows, others = census(capability, kernels[capability], rows)
        print(f"sm_{capability}: {of_rows} kernels of rows, {others} others, {len(new)} complaints")
        complaints += [f"sm_{capability}: {complaint}" for complaint in new]
    for capability, text in (entry for file in files for entry in cubin.ptx_texts(file)):
        new = ptx_census(text, read_rows(sys.argv[1], capability, *arguments))
        print(f"compute_{capability}: {len(list(cubin.ptx_mnemonics(text)))} kernels, "
              f"{len(new)} complaints")
        complaints += [f"compute_{capability}: {complaint}" for complaint in new]
    print("\n".join(complaints[:50]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
