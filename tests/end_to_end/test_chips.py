# SPDX-License-Identifier: Apache-2.0
"""Simulated chips through the command line: which instructions each has, that its kernels multiply,
and that their arithmetic is that of the chip."""

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from elements import ELEMENTS, convert

GEMMD_FLAGS = ("--devices=cpu,sim", "--cpu-threads=1")
LIMIT_S = 300
CHIPS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")

# From the tables of PTX ISA 9.0: the chips for which the assembler accepts an instruction.
TAKEN_BY = {
    "mma.m8n8k4.row.col.f32.f16.f16.f32": CHIPS,
    "mma.m16n8k8.f32.f16.f16.f32": CHIPS[1:],
    "mma.m8n8k16.s32.s8.s8.s32": CHIPS[1:],
    "mma.m8n8k128.s32.b1.b1.s32.xor.popc": CHIPS[1:],
    "mma.m16n8k16.f32.bf16.bf16.f32": CHIPS[2:],
    "mma.m8n8k4.f64": CHIPS[2:],
    "mma.sp.m16n8k32.f32.f16.f16.f32": CHIPS[2:],
    "wmma.m16n16k16.row.col.f32.f16.f16.f32": CHIPS,
    "wmma.m16n16k8.row.col.f32.tf32.tf32.f32": CHIPS[2:],
    "mma.m16n8k32.f32.e4m3.e4m3.f32": CHIPS[4:],
    "mma.m16n8k16.f64": CHIPS[5:],
    "wgmma.m64n256k16.f32.bf16.bf16": ("sm_90",),
    "wgmma.sp.m64n8k32.f32.f16.f16": ("sm_90",),
    "mma.m16n8k64.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0": ("sm_120",),
}


@pytest.fixture
def ctl(gemmctl, daemon):
    """Runs gemmctl, which must succeed, and returns its output."""

    def run(*arguments, code=0):
        command = [gemmctl, "--address", daemon.unix, "--timeout", "60", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S)
        assert done.returncode == code, done.stderr.decode()
        return done.stdout.decode() if code == 0 else done.stderr.decode()

    return run


def kernels_of(ctl, device, *flags):
    return json.loads(ctl("--json", "kernels", "--device", device, *flags))["kernels"]


def available_on(kernel, device):
    return next(a["available"] for a in kernel["availability"] if a["device"] == device)


@pytest.fixture
def multiply(ctl, tmp_path):
    """Multiplies two arrays with gemmctl, through files."""

    def run(a, b, *flags):
        np.save(tmp_path / "a.npy", a)
        np.save(tmp_path / "b.npy", b)
        files = [tmp_path / "a.npy", tmp_path / "b.npy", "-o", tmp_path / "d.npy"]
        ctl("multiply", *files, *flags)
        return np.load(tmp_path / "d.npy")

    return run


@pytest.mark.parametrize("chip", CHIPS)
def test_each_chip_has_what_ptx_gives_it(ctl, chip):
    device = f"sim:{chip}"
    kernels = {kernel["name"]: kernel for kernel in kernels_of(ctl, device, "--all")}
    listed = json.loads(ctl("--json", "instructions", "--chip", chip))["instructions"]
    available = [name for name, kernel in kernels.items() if available_on(kernel, device)]
    plain = [name for name in available if not kernels[name].get("promotion_k", 0)]
    assert plain == [instruction["name"] for instruction in listed]
    promoted = available[len(plain) :]
    split = [name for name in promoted if "_from_f32" in name]
    assert set(split) <= {f"{name}_from_f32_p64" for name in plain}
    assert bool(split) == (chip == "sm_90")
    assert set(promoted) - set(split) <= {f"{name}_p128" for name in plain}
    assert all(int(kernels[name]["promotion_k"]) == (64 if name in split else 128) for name in promoted)
    assert available == [kernel["name"] for kernel in kernels_of(ctl, device)]
    for name, chips in TAKEN_BY.items():
        assert available_on(kernels[name], device) == (chip in chips), name
    for kernel in kernels.values():
        reasons = {a["device"]: a["reason"] for a in kernel["availability"]}
        assert (reasons[device] == "") == available_on(kernel, device)


def test_devices_tell_how_far_to_trust_them(ctl):
    devices = json.loads(ctl("--json", "devices"))["devices"]
    told = {device["name"]: device["arithmetic"] for device in devices}
    assert told == {
        "cpu": "",
        **{f"sim:{chip}": "verified" if chip == "sm_90" else "modelled" for chip in CHIPS},
    }


# A term 2^24 below the leading one. In one sum of 16 products it remains when the large terms
# cancel; if the first 8 are added separately it is cut off.
@pytest.mark.parametrize(
    "chip,bits",
    [(chip, 0) for chip in ("sm_80", "sm_86", "sm_89")]
    + [(chip, 0x33800000) for chip in ("sm_90", "sm_100", "sm_103", "sm_120")],
)
def test_one_kernel_has_the_bits_of_each_chip(multiply, chip, bits):
    a, b = np.zeros((1, 9), np.float16), np.zeros((9, 1), np.float16)
    a[0, [0, 1, 8]] = 1, 2.0**-12, -1
    b[[0, 1, 8], 0] = 1, 2.0**-12, 1
    d = multiply(a, b, "--chip", chip, "--kernel", "mma.m16n8k16.f32.f16.f16.f32")
    assert hex(d.view(np.uint32)[0, 0]) == hex(bits)


def integers(rng, name, rows, columns):
    """Small enough that every sum is exact even in f16."""
    low = 0 if ELEMENTS[name].low == 0 else -2
    high = min(2, ELEMENTS[name].high)
    values = [rng.randint(low, high) for _ in range(rows * columns)]
    return np.array(values).reshape(rows, columns)


def as_file(values, name):
    return values.astype(bool) if name == "b1" else convert(values, ELEMENTS[name])


def sample(rng, kernels):
    """A kernel for each family, pair of types and accumulation type."""
    groups = {}
    for kernel in kernels:
        family = kernel["name"].partition(".m")[0]
        is_xor = ".xor." in kernel["name"]
        types = tuple(kernel[key] for key in ("a_type", "b_type", "accumulation_type"))
        groups.setdefault((family, *types, is_xor), []).append(kernel)
    assert {group[0] for group in groups} == {"mma", "mma.sp", "wmma", "wgmma", "wgmma.sp"}
    return [rng.choice(group) for group in groups.values()]


def keep_half(a, name):
    """Keeps two of four neighbours in A along k (of 4-bit types, two of four pairs), which also
    keeps one of two."""
    place = np.arange(a.shape[1]) // (2 if ELEMENTS[name].bits == 4 else 1)
    return np.where(place % 2 == 1, a, 0)


def test_kernels_of_every_family_multiply(ctl, multiply, rng):
    chosen = sample(rng, kernels_of(ctl, "sim:sm_90"))
    assert len(chosen) > 60
    for kernel in chosen:
        a_type, b_type = kernel["a_type"], kernel["b_type"]
        a, b = integers(rng, a_type, 17, 37), integers(rng, b_type, 37, 11)
        is_sparse = ".sp." in kernel["name"]
        if is_sparse:
            a = keep_half(a, a_type)
        is_xor = ".xor." in kernel["name"]
        want = a @ (1 - b) + (1 - a) @ b if is_xor else a @ b
        flags = ["--chip", "sm_90", "--kernel", kernel["name"]]
        flags += ["--a-type", a_type, "--b-type", b_type]
        flags += ["--accumulation-type", kernel["accumulation_type"]]
        flags += ["--bit-operation", "xor" if is_xor else "and"]
        flags += ["--sparse-a"] if is_sparse else []
        got = multiply(as_file(a, a_type), as_file(b, b_type), *flags)
        assert np.array_equal(got.astype(np.float64), want), kernel["name"]


def test_explain_is_short_unless_asked(ctl):
    flags = ("explain", "--random", "64,64,64", "--type", "f16", "--chip", "sm_90")
    lines = ctl(*flags).splitlines()
    assert lines[0] == "device   sim:sm_90"
    assert lines[3].startswith("recipe   sums of 16 products, 25 fraction bits, ")
    name = r"w?g?mma\.m\d+n\d+k16\.f32\.f16\.f16(\.f32)?"
    assert re.match(name + r" +[\d.]+ [mu]s +[\d.]+ [GM]FLOP/s  ", lines[6]), lines[6]
    assert len(lines) < 50
    assert len(ctl(*flags, "--all").splitlines()) > 1500


def test_listings_are_short_unless_asked(ctl):
    for command in ("kernels", "instructions"):
        short = ctl(command, "--pattern", "wgmma.m*").splitlines()
        every = ctl(command, "--pattern", "wgmma.m*", "--all").splitlines()
        assert short[1].startswith("wgmma.m64nNk16.f32.f16.f16, N = 8..256 by 8 ")
        assert len(short) < 30 and len(every) > 546


def test_fragment_is_the_manuals_figure(ctl):
    name = "mma.m16n8k16.f32.f16.f16.f32"
    lines = ctl("fragment", name).splitlines()
    assert lines[0] == name
    start = lines.index("A: 16 x 16 f16, 4 registers in each of 32 lanes") + 2
    assert lines[start].split() == [f"{i}..{i + 1}" for i in range(0, 16, 2)]
    want = [f"T{lane}:{{a{i},a{i + 1}}}" for i in (2, 6) for lane in (20, 21, 22, 23)]
    assert lines[start + 14].split() == ["13", *want]


def test_fragment_draws_every_place(ctl, tmp_path):
    path = tmp_path / "fragment.svg"
    ctl("fragment", "mma.sp.m16n8k64.s32.s8.u8.s32", "--svg", path)
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    cells = [text for text in texts if text.startswith("T")]
    # A is 16 x 32 and B 64 x 8, with four elements per cell; D is 16 x 8, with two per cell; a
    # row's 16 groups of metadata are in two lanes.
    assert len(cells) == len(set(cells)) == 16 * 8 + 16 * 8 + 16 * 4 + 16 * 2
    assert "T31:{b12..b15}" in cells


def test_refusals(ctl):
    assert "nearest: sm_90" in ctl("instructions", "--chip", "sm_91", code=1)
    assert "mma.m16n8k16.f64" in ctl("fragment", "mma.m16n8k16.f65", code=1)
    name = "wgmma.m64n8k16.f32.f16.f16"
    assert "shared memory" in ctl("fragment", name, "--operand", "b", code=1)
    flags = ("multiply", "--random", "4,4,4", "--chip", "sm_80")
    assert "want either" in ctl(*flags, "--device", "cpu", code=2)
    assert "sim:sm_99" in ctl("multiply", "--random", "4,4,4", "--chip", "sm_99", code=1)
