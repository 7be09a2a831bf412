#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts the five archives of full recordings down to the ones kept here.

    trim.py FULL_DIR OUT_DIR

Every variant stays; README.md says which of its cases do and why. The same input gives the same
bytes again: names sorted, no times, no owners. Needs the xz program.
"""

import collections
import io
import pathlib
import re
import subprocess
import sys
import tarfile

Archive = collections.namedtuple("Archive", "name families cases integer_cases")

# Case i of a variant belongs to input family i mod `families`. The numbers of cases are those of
# the full recordings.
ARCHIVES = (
    Archive("h200_sm90a", 12, 48, 12),
    Archive("h200_sm90a_more", 12, 48, 12),
    Archive("h200_sm90a_directed", 8, 48, 8),
    Archive("h200_sm90a_wmma_wgmma", 12, 12, 12),
    Archive("h200_sm90a_wmma_wgmma_directed", 8, 8, 8),
)

# Cases of the integer and b1 variants of mma and mma.sp, by the number of families. Ordinary: C
# random, small and near the limits of s32, as far as a variant has them. Directed: without 4, 6 and
# 7, which are random or nearly.
INTEGER_CASES = {12: (0, 5, 7, 11), 8: (0, 1, 2, 3, 5)}

# How many families a variant of wmma and wgmma keeps, by the number there are. A float case of
# wgmma takes about 6 KB with n = 8 and 20 KB with n = 32.
WMMA_FLOAT = {12: 3, 8: 3}
WMMA_INTEGER = {12: 2, 8: 2}
WGMMA_FLOAT = {12: 4, 8: 3}
WGMMA_INTEGER = {12: 2, 8: 2}
WGMMA_N32 = {12: 1, 8: 1}


def is_integer(variant):
    return ".s32" in variant


def quota(variant, families):
    """The number of families to keep of a variant of wmma or wgmma."""
    if variant.startswith("wmma"):
        if is_integer(variant):
            # A case of m8n8k32 or m8n8k128 takes 768 bytes.
            return families if "m8n8k" in variant else WMMA_INTEGER[families]
        return WMMA_FLOAT[families]
    if "n32k" in variant:
        return WGMMA_N32[families]
    return (WGMMA_INTEGER if is_integer(variant) else WGMMA_FLOAT)[families]


def kinship(variant):
    """The name without the parts that do not change the arithmetic of one element."""
    name = re.sub(r"\.m\d+n\d+k\d+|\.row|\.col|\.sp|\.sel\d", "", variant)
    name = re.sub(r"\.e[45]m[23]", ".fp8", name)
    return re.sub(r"\.[su]8|\.[su]4|\.satfinite", "", name)


def plan(archive, variants):
    """The cases to keep of each variant, ascending."""
    kept = {}
    next_family = collections.Counter()  # By kinship.
    for variant in sorted(variants):
        if not variant.startswith(("wmma", "wgmma")):
            whole_round = range(archive.families)
            kept[variant] = INTEGER_CASES[archive.families] if is_integer(variant) else whole_round
            continue
        # Each variant of a kinship continues with the families after those of the one before.
        kin = kinship(variant)
        first = next_family[kin]
        count = quota(variant, archive.families)
        next_family[kin] += count
        kept[variant] = sorted((first + i) % archive.families for i in range(count))
    return kept


BITS = {
    **{"f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8},
    **{"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1},
}


def array_bytes(variant):
    """The sizes in bytes of A, B, C, E (0 for a dense variant) and D of one case."""
    m, n, k = map(int, re.search(r"\.m(\d+)n(\d+)k(\d+)", variant).groups())
    types = [BITS[word] for word in variant.split(".") if word in BITS]
    # mma.f64 names its type once; wgmma does not name C.
    if len(types) == 1:
        types = types * 4
    if len(types) == 3:
        types.append(types[0])
    d, a, b, c = types
    is_sparse = ".sp." in variant
    is_warpgroup = variant.startswith("wgmma")
    products = 4 if variant.startswith("mma.m8n8k4.") and a == 16 else 1
    metadata = (128 if is_warpgroup else 32) * 32 if is_sparse else 0
    a_size = m * (k // 2 if is_sparse else k) * a
    bits = (a_size * products, k * n * b * products, m * n * c * products, metadata, m * n * d * products)
    return [count // 8 for count in bits]


def keep(data, sizes, cases, kept):
    """The kept cases of a file: all cases of one array come before those of the next."""
    parts = []
    start = 0
    for size in sizes:
        parts += [data[start + i * size : start + (i + 1) * size] for i in kept]
        start += cases * size
    assert start == len(data)
    return b"".join(parts)


def trim(archive, full_dir, out_dir):
    with tarfile.open(full_dir / f"{archive.name}.tar.xz") as tar:
        full = {m.name.removesuffix(".bin"): tar.extractfile(m).read() for m in tar if m.isfile()}
    kept = plan(archive, full)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for variant in sorted(full):
            cases = archive.integer_cases if is_integer(variant) else archive.cases
            data = keep(full[variant], array_bytes(variant), cases, kept[variant])
            entry = tarfile.TarInfo(f"{variant}.bin")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    compressed = subprocess.run(
        ["xz", "-9e", "--threads=1"], input=packed.getvalue(), stdout=subprocess.PIPE, check=True
    ).stdout
    (out_dir / f"{archive.name}.tar.xz").write_bytes(compressed)
    total = sum(len(c) for c in kept.values())
    print(f"{archive.name}: {len(full)} variants, {total} cases, {len(compressed)} bytes")


def main():
    full_dir, out_dir = map(pathlib.Path, sys.argv[1:])
    for archive in ARCHIVES:
        trim(archive, full_dir, out_dir)


if __name__ == "__main__":
    main()
