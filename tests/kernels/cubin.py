# SPDX-License-Identifier: Apache-2.0
"""Reads GPU code: cubins, and the program files that contain cubins and PTX."""

import re
import struct

# The low 12 bits of a 128-bit instruction, as nvdisasm of CUDA 13 distinguishes them.
TENSOR_OPCODES = {
    0x23C: "HMMA",
    0x237: "IMMA",
    0x23D: "BMMA",
    0x23F: "DMMA",
    0x27A: "QMMA",
    0x47A: "QMMA",  # .SF
    0x47F: "OMMA",
    0x9F0: "HGMMA",  # A in shared memory.
    0x9F1: "IGMMA",
    0x9F2: "BGMMA",
    0x9F3: "QGMMA",
    0xDF0: "HGMMA",  # A in registers.
    0xDF1: "IGMMA",
    0xDF2: "BGMMA",
    0xDF3: "QGMMA",
}
# .884; later chips have another instruction there.
TENSOR_OPCODES_BEFORE_SM_80 = {0x236: "HMMA"}
LOCAL_OPCODES = {0x983: "LDL", 0x387: "STL"}
REGISTER_OPCODES = {0x9C8: "USETMAXREG"}
INSTRUCTION_BYTES = 16

FATBIN_MAGIC = 0xBA55ED50
KIND_PTX = 1
KIND_CUBIN = 2
COMPRESSED_FLAGS = 0xF000  # A compressed part has one of these flags, depending on the algorithm.


def sections(elf):
    """Names and contents of the sections of a 64-bit ELF file."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry_bytes) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        start = names + name
        yield elf[start:elf.index(b"\0", start)].decode("ascii"), elf[offset:offset + size]


def opcodes(code, table):
    """The names of the instructions of a kernel that are in the table, in order."""
    found = []
    for at in range(0, len(code), INSTRUCTION_BYTES):
        word, = struct.unpack_from("<H", code, at)
        found += [table[word & 0xFFF]] if word & 0xFFF in table else []
    return found


def tensor_opcodes(code, capability):
    older = TENSOR_OPCODES_BEFORE_SM_80 if capability < 80 else {}
    return opcodes(code, TENSOR_OPCODES | older)


def archive_members(archive):
    """The files in a static library."""
    header_bytes = 60
    at = len(b"!<arch>\n")
    while at < len(archive):
        size = int(archive[at + 48:at + 58])
        yield archive[at + header_bytes:at + header_bytes + size]
        at += header_bytes + size + size % 2


def fatbin_contents(section, wanted_kind):
    """Compute capabilities and contents of one kind of one .nv_fatbin section, which holds fat binaries."""
    at = 0
    while at < len(section):
        magic, _, header_bytes, size = struct.unpack_from("<IHHQ", section, at)
        if magic != FATBIN_MAGIC:  # Alignment.
            at += 8
            continue
        end = at + header_bytes + size
        at += header_bytes
        while at < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", section, at)
            capability, = struct.unpack_from("<I", section, at + 28)
            flags, = struct.unpack_from("<Q", section, at + 40)
            content = section[at + entry_header:at + entry_header + entry_size]
            at += entry_header + entry_size
            if kind != wanted_kind:
                continue
            if flags & COMPRESSED_FLAGS or (kind == KIND_CUBIN and content[:4] != b"\x7fELF"):
                raise ValueError("compressed code: build with --compress-mode=default or none")
            yield capability, content


def contents(file, kind):
    """Compute capabilities and contents of an object file, a program or a static library."""
    if file.startswith(b"!<arch>\n"):
        for member in archive_members(file):
            if member.startswith(b"\x7fELF"):
                yield from contents(member, kind)
        return
    for name, content in sections(file):
        if name == ".nv_fatbin":
            yield from fatbin_contents(content, kind)


def cubins(file):
    return contents(file, KIND_CUBIN)


def ptx_texts(file):
    for capability, content in contents(file, KIND_PTX):
        yield capability, content.rstrip(b"\0").decode("ascii")


def ptx_mnemonics(text):
    """Names of the kernels of PTX, and the mnemonics of their matrix instructions."""
    for kernel in text.split("\n.visible .entry ")[1:]:
        name = re.match(r"\w+", kernel).group()
        yield name, re.findall(r"^\s*(w?mma\.(?!load|store)\S+)", kernel, re.M)


def kernels(cubin):
    """Names and machine code of the kernels of a cubin."""
    for name, content in sections(cubin):
        if name.startswith(".text."):
            yield name[len(".text."):], content
