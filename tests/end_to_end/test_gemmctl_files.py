# SPDX-License-Identifier: Apache-2.0
"""What gemmctl does with files, compared with NumPy: where their bits differ, and conversion to
other types and formats."""

import json
import math
import os
import struct
import xml.etree.ElementTree as ElementTree

import ml_dtypes
import numpy as np
import pytest
from elements import ELEMENTS, convert
from product import small_integers

GEMMD_FLAGS = ("--devices=cpu,sim:sm_80,sim:sm_86,sim:sm_90", "--cpu-threads=1")


def patterns(array):
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.itemsize])


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "e4m3", "e5m2", "s8", "s32"])
def test_differences_of_files(ctl, tmp_path, rng, name):
    a = convert(small_integers(rng, ELEMENTS[name], 70, 33), ELEMENTS[name])
    b = a.copy()
    steps = {(rng.randrange(70), rng.randrange(33)): rng.randint(1, 3) for _ in range(20)}
    bits = patterns(b)
    for place, step in steps.items():
        # Away from zero, whose two signs would be one step.
        bits[place] = patterns(convert(np.array([[4]]), ELEMENTS[name]))[0, 0]
    patterns(a)[:] = bits
    for place, step in steps.items():
        bits[place] += step
    np.save(tmp_path / "a.npy", np.asfortranarray(a))
    np.save(tmp_path / "b.npy", b)
    files = (tmp_path / "a.npy", tmp_path / "b.npy")
    code, out, error = ctl("--json", "diff", *files, "--type", name, "--worst", "100")
    assert code == 1, error
    found = json.loads(out)
    assert found["type"] == name and found["elements"] == 70 * 33
    assert {(e["row"], e["column"]): e["ulps"] for e in found["worst"]} == steps
    assert found["differing"] == len(steps) and found["most_ulps"] == max(steps.values())
    gaps = np.abs(b.astype(np.float64) - a.astype(np.float64))
    assert found["most_absolute"] == gaps.max()
    assert found["most_relative"] == pytest.approx((gaps / np.maximum(np.abs(a.astype(np.float64)), 1)).max())
    assert [e["ulps"] for e in found["worst"]] == sorted(steps.values(), reverse=True)
    for e in found["worst"]:
        assert int(e["b_bits"], 16) == bits[e["row"], e["column"]]
    assert ctl("diff", files[0], files[0], "--type", name)[0] == 0


def test_heat_maps(ctl, tmp_path):
    """Every cell with a difference is drawn, has a description, and lies where its elements do."""
    a = np.zeros((200, 100), np.float32)
    b = a.copy()
    b[0, 0], b[199, 99], b[100, 3] = 1, np.nan, -0.0
    np.save(tmp_path / "a & b.npy", a)
    np.save(tmp_path / "b.npy", b)
    svg, html = tmp_path / "map.svg", tmp_path / "map.html"
    code, out, error = ctl("diff", tmp_path / "a & b.npy", tmp_path / "b.npy", "--svg", svg, "--html", html)
    assert code == 1, error
    assert "other bits in 3 of 20,000 elements" in out
    root = ElementTree.parse(svg).getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    cells = root.findall("svg:rect[@class='cell']", space)
    outline = root.find("svg:rect[@class='map']", space)
    places = [tuple(int(c.get(axis)) - int(outline.get(axis)) for axis in "xy") for c in cells]
    # 200 rows are 50 cells of 4, and 100 columns are 50 cells of 2, of 10 pixels each.
    assert places == [(0, 0), (10, 250), (490, 490)]
    titles = [c.find("svg:title", space).text for c in cells]
    assert titles[0].startswith("rows 0 to 3, columns 0 to 1: 1 differ, at most by 1065353216 ulps")
    assert "1 with NaN on a side" in titles[2] and "0x7fc00000" in titles[2]
    assert len({c.get("fill") for c in cells}) == 3
    assert not [e for e in root.iter() if "href" in "".join(e.attrib)]
    page = html.read_text()
    assert page.startswith("<!DOCTYPE html>") and "a &amp; b.npy" in page and "<svg " in page


def test_chips_differ_where_their_arithmetic_does(ctl, tmp_path):
    """A term 2^24 below the leading one remains on an H100 and is cut off on an A100."""
    a, b = np.zeros((3, 9), np.float16), np.zeros((9, 5), np.float16)
    a[1, [0, 1, 8]] = 1, 2.0**-12, -1
    b[[0, 1, 8], 2] = 1, 2.0**-12, 1
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    product = ("--json", "diff", tmp_path / "a.npy", tmp_path / "b.npy")
    kernel = ("--kernel", "mma.m16n8k16.f32.f16.f16.f32")
    code, out, error = ctl(*product, *kernel, "--chips", "sm_80,sm_86,sm_90")
    assert code == 1, error
    same, other = map(json.loads, out.splitlines())
    assert same["same"] and same["b"].startswith("sim:sm_86 ")
    assert not other["same"] and other["a"].startswith("sim:sm_80 ") and other["b"].startswith("sim:sm_90 ")
    assert [(e["row"], e["column"], e["a_bits"], e["b_bits"]) for e in other["worst"]] == [
        (1, 2, "0x00000000", "0x33800000")
    ]
    assert ctl(*product, *kernel, "--chips", "sm_80,sm_86")[0] == 0
    # A refusal is no difference.
    code, _, error = ctl(*product, "--chips", "sm_80,sm_0")
    assert code == 2 and "sim:sm_0: device: got sim:sm_0" in error
    # Other devices are named without `sim:`, too.
    code, out, error = ctl("--json", "diff", "--random", "2,3,4", "--type=f16", "--chips", "cpu,sm_80,sm_90")
    first, second = map(json.loads, out.splitlines())
    assert first["a"] == second["a"] and first["a"].startswith("cpu "), error


# The format's names of types; each array of a file is (name of the type, array).
TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def write_tensors(path, tensors, metadata=None):
    """A .safetensors file, written according to the format's description."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, array in tensors.items():
        kind = next(kind for kind, dtype in TYPES.items() if array.dtype == dtype)
        begin = len(data)
        data += np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def read_tensors(path):
    """The arrays and the metadata. A type without an array type gives bytes."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] in TYPES:
            array = np.frombuffer(data[begin:end], TYPES[entry["dtype"]])
            tensors[name] = array.reshape(entry["shape"])
        else:
            tensors[name] = (entry, data[begin:end])
    return tensors, metadata


@pytest.fixture
def model(tmp_path, rng):
    """A file like those of models: matrices, vectors, a kernel of four dimensions, indices."""
    random = np.random.default_rng(rng.randrange(2**32))
    tensors = {
        "layer.0.weight": random.standard_normal((48, 33)).astype(np.float32),
        "layer.0.bias": random.standard_normal(48).astype(np.float32),
        "convolution": random.standard_normal((2, 3, 4, 5)).astype(np.float16),
        "half": random.standard_normal((5, 7)).astype(ml_dtypes.bfloat16),
        "scalar": np.array(3.25, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "positions": np.arange(9, dtype=np.int64),
        "mask": random.integers(0, 2, (3, 5)).astype(bool),
    }
    return write_tensors(tmp_path / "model.safetensors", tensors, {"format": "pt"}), tensors


def test_all_tensors_of_a_file(ctl, model, tmp_path):
    path, tensors = model
    out = tmp_path / "half.safetensors"
    code, output, error = ctl("convert", path, "--type", "f16", "-o", out)
    assert code == 0, error
    assert "6 tensors converted, 2 copied as they are" in output
    got, metadata = read_tensors(out)
    assert metadata == {"format": "pt"}
    assert sorted(got) == sorted(tensors)
    for name, array in tensors.items():
        is_float = array.dtype not in (np.int64, np.bool_)
        want = array.astype(np.float16) if is_float else array
        assert got[name].dtype == want.dtype and np.array_equal(got[name], want), name
    # The output may replace the input.
    code, _, error = ctl("convert", out, "--type", "f16", "-o", out)
    assert code == 0, error
    assert read_tensors(out)[0].keys() == got.keys()
    assert sorted(tmp_path.glob("half*")) == [out]


def test_one_tensor_of_a_file(ctl, model, tmp_path):
    path, tensors = model
    for name, hint in (("layer.0.weight", []), ("half", ["--type", "f32"]), ("mask", ["--type", "u8"])):
        code, _, error = ctl("convert", path, "--tensor", name, *hint, "-o", tmp_path / "one.npy")
        assert code == 0, error
        got = np.load(tmp_path / "one.npy")
        assert got.shape == tensors[name].shape
        assert np.array_equal(got, tensors[name].astype(got.dtype)), name
    code, _, error = ctl("convert", path, "--tensor", "positions", "-o", tmp_path / "one.npy")
    assert code == 2 and "positions: got a tensor of I64, want one of an element type" in error
    code, _, error = ctl("convert", path, "-o", tmp_path / "one.npy")
    assert code == 2 and "--tensor: got none, want one of the 8 tensors of" in error
    assert "layer.0.weight, layer.0.bias" in error


@pytest.mark.parametrize("name", ["f32", "f16", "s8", "u4", "b1"])
def test_any_number_of_dimensions(ctl, tmp_path, rng, name):
    """From zero dimensions on; for types narrower than a byte, NumPy's items are whole bytes."""
    shapes = [(), (0,), (1,), (3,), (2, 3), (0, 3), (2, 1, 3), (1, 2, 1, 3), (2, 3, 0, 1), (2, 1, 2, 1, 3)]
    tensors = {f"t{i}": np.array(rng.choices([0, 1], k=math.prod(s))).reshape(s) for i, s in enumerate(shapes)}
    floats = {key: array.astype(np.float32) for key, array in tensors.items()}
    path = write_tensors(tmp_path / "any.safetensors", floats)
    for key, want in tensors.items():
        code, _, error = ctl("convert", path, "--tensor", key, "--type", name, "-o", tmp_path / "one.npy")
        assert code == 0, error
        got = np.load(tmp_path / "one.npy")
        if got.dtype.kind == "V":
            got = got.view(np.uint8)
        assert got.shape == want.shape
        assert np.array_equal(got.astype(np.float64), want), key
    if name in ("f32", "f16", "s8"):
        code, _, error = ctl("convert", path, "--type", name, "-o", tmp_path / "all.safetensors")
        assert code == 0, error
        for key, got in read_tensors(tmp_path / "all.safetensors")[0].items():
            assert got.shape == tensors[key].shape and np.array_equal(got.astype(np.float64), tensors[key]), key


def test_what_the_format_s_own_library_reads(ctl, tmp_path):
    """Metadata that are null, and members that only another program knows."""
    text = b'{"__metadata__":null,"w":{"note":{"by":["me",null]},"dtype":"F32","shape":[2],"data_offsets":[0,8],"v":1}}'
    path = tmp_path / "other.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + np.array([1, 2], np.float32).tobytes())
    code, _, error = ctl("convert", path, "--type", "f64", "-o", tmp_path / "out.safetensors")
    assert code == 0, error
    (got,) = read_tensors(tmp_path / "out.safetensors")[0].values()
    assert got.tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["F4", "F6_E2M3", "F6_E3M2"])
def test_narrow_tensors_follow_each_other_without_gaps(ctl, tmp_path, kind, rng):
    """Rows of 6 elements of 4 or 6 bits do not end on a byte boundary; in a file the next row
    begins right there."""
    name = {"F4": "e2m1", "F6_E2M3": "e2m3", "F6_E3M2": "e3m2"}[kind]
    bits = ELEMENTS[name].bits
    rows, columns = (4, 5) if bits == 4 else (4, 6)
    patterns_ = np.array([rng.randrange(2**bits) for _ in range(rows * columns)], np.uint8)
    np.save(tmp_path / "narrow.npy", patterns_.reshape(rows, columns))
    path = tmp_path / "narrow.safetensors"
    code, _, error = ctl("convert", tmp_path / "narrow.npy", "--input-type", name, "-o", path, "--name", "n")
    assert code == 0, error
    entry, data = read_tensors(path)[0]["n"]
    assert entry["dtype"] == kind and entry["shape"] == [rows, columns]
    number = sum(int(pattern) << (bits * i) for i, pattern in enumerate(patterns_))
    assert data == number.to_bytes(rows * columns * bits // 8, "little")
    code, _, error = ctl("convert", path, "-o", tmp_path / "back.npy")
    assert code == 0, error
    assert np.array_equal(np.load(tmp_path / "back.npy").view(np.uint8).ravel(), patterns_)


@pytest.mark.parametrize("per", ["matrix", "row", "column"])
@pytest.mark.parametrize("name", ["e4m3", "s8"])
def test_quantised_with_factors(ctl, model, tmp_path, name, per):
    path, tensors = model
    out = tmp_path / "small.safetensors"
    code, output, error = ctl("--json", "convert", path, "--type", name, "--quantize", per, "-o", out)
    assert code == 0, error
    assert [json.loads(line)["name"] for line in output.splitlines()] == ["layer.0.weight", "half"]
    got, _ = read_tensors(out)
    for tensor in ("layer.0.weight", "half"):
        want = tensors[tensor].astype(np.float64)
        scale = got[f"{tensor}_scale"]
        factors = scale.reshape({"matrix": (1, 1), "row": (-1, 1), "column": (1, -1)}[per])
        assert scale.shape == ({"matrix": 1, "row": want.shape[0], "column": want.shape[1]}[per],)
        largest = {"matrix": np.max(np.abs(want)), "row": np.max(np.abs(want), 1), "column": np.max(np.abs(want), 0)}
        top = {"e4m3": 448, "s8": 127}[name]
        assert np.allclose(scale, largest[per] / top, rtol=1e-6)
        back = got[tensor].astype(np.float64) * factors
        # Half a step: 2^-4 relative for e4m3 down to its smallest number, or one for s8.
        bound = np.maximum(np.abs(want) * 2.0**-4, factors * 2.0**-9) if name == "e4m3" else factors * 0.5
        assert np.all(np.abs(back - want) <= bound * 1.001)
    assert np.array_equal(got["layer.0.bias"], tensors["layer.0.bias"])
    code, _, error = ctl("convert", path, "--tensor", "layer.0.weight", "--type", name, "--quantize", per,
                         "-o", tmp_path / "w.npy", "--scale-output", tmp_path / "s.npy")  # fmt: skip
    assert code == 0, error
    assert np.load(tmp_path / "w.npy").tobytes() == got["layer.0.weight"].tobytes()
    assert np.array_equal(np.load(tmp_path / "s.npy"), got["layer.0.weight_scale"])


def test_packed_to_two_of_four(ctl, tmp_path):
    a = np.array([[1, 0, 0, 2, 0, 3, 4, 0], [0, 0, 0, 5, 6, 0, 0, 0]], np.float16)
    np.save(tmp_path / "a.npy", a)
    out = tmp_path / "a24.safetensors"
    code, _, error = ctl("convert", tmp_path / "a.npy", "--pack24", "-o", out)
    assert code == 0, error
    got, metadata = read_tensors(out)
    assert metadata == {"a.sparsity": "2:4", "a.type": "f16", "a.shape": "2,8"}
    raw = got["a"].tobytes()
    assert got["a"].dtype == np.uint8 and len(raw) == 2 * 4 * 2 + 2
    values = np.frombuffer(raw[:16], np.float16).reshape(2, 4)
    places = [[raw[16 + row] >> (2 * i) & 3 for i in range(4)] for row in range(2)]
    dense = np.zeros_like(a)
    for row in range(2):
        for i in range(4):
            dense[row, i // 2 * 4 + places[row][i]] = values[row, i]
    assert np.array_equal(dense, a)
    a[1, 0:3] = 9
    np.save(tmp_path / "a.npy", a)
    code, _, error = ctl("convert", tmp_path / "a.npy", "--pack24", "-o", out)
    assert code == 2 and "row 1, group 0: got 4 nonzero elements" in error and "--prune" in error
    code, output, error = ctl("--json", "convert", tmp_path / "a.npy", "--pack24", "--prune", "-o", tmp_path / "p.npy")
    assert code == 0 and json.loads(output)["dropped"] == 2, error
    assert np.load(tmp_path / "p.npy").nbytes == 18


# The bytes before the file's header, or the tensors in its header; the data; the error.
HOSTILE = {
    "length": (b"\xff" * 8, b"", "header length: got 18446744073709551615 bytes"),
    "beyond": (b"\x40" + bytes(7) + b"{}", b"", "got 64 bytes, want at most 2"),
    "json": (struct.pack("<Q", 4) + b"null", b"", "got null, want {"),
    "overlap": ({"a": ("U8", [4], 0, 4), "b": ("U8", [4], 2, 6)}, bytes(6), "got 2, want 4"),
    "hole": ({"a": ("U8", [4], 0, 4), "b": ("U8", [4], 5, 9)}, bytes(9), "got 5, want 4"),
    "short": ({"a": ("F32", [4], 0, 16)}, bytes(15), "got 15 bytes, want 16"),
    "tail": ({"a": ("F32", [4], 0, 16)}, bytes(17), "got 17 bytes, want 16"),
    "size": ({"a": ("F32", [2**31, 2**31], 0, 16)}, bytes(16), "got a size of 2^63 bits or more"),
    "lie": ({"a": ("F32", [2**30, 2**20], 0, 16)}, bytes(16), "want 4503599627370496 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(ctl, tmp_path, name):
    header, data, message = HOSTILE[name]
    if isinstance(header, dict):
        entries = {
            key: {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
            for key, (kind, shape, begin, end) in header.items()
        }
        text = json.dumps(entries).encode()
        raw = struct.pack("<Q", len(text)) + text + data
    else:
        raw = header + data
    path = tmp_path / f"{name}.safetensors"
    path.write_bytes(raw)
    code, output, error = ctl("convert", path, "--type", "f32", "-o", tmp_path / "out.safetensors")
    assert code == 2 and output == ""
    assert f"{path}: " in error and message in error, error
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_what_convert_cannot_do_together(ctl, model, tmp_path):
    path, _ = model
    np.save(tmp_path / "a.npy", np.ones((4, 8), np.float32))
    np.save(tmp_path / "vector.npy", np.ones(8, np.float32))
    np.save(tmp_path / "empty.npy", np.ones((0, 8), np.float32))
    a, npy, out = tmp_path / "a.npy", tmp_path / "out.npy", tmp_path / "out.safetensors"
    for arguments, message in {
        (a, "--order", "column", "-o", out): "--order: got column for a .safetensors file, want row",
        (a, "--name", "n", "-o", npy): "--name: got a name for a .npy file",
        (a, "--tensor", "n", "-o", npy): "--tensor: got a name in a .npy file",
        (a, "--type", "s4", "-o", out): "--type: got s4, which a .safetensors file cannot name",
        (a, "--type", "s8", "--quantize", "row", "-o", npy): "--scale-output: got none, want a file",
        (a, "--scale-output", npy, "-o", npy): "--scale-output: got a file for no factors",
        (a, "--quantize", "row", "-o", out): "--quantize: type: got f32, want e4m3, e5m2, s8 or u8",
        (a, "--type", "f64", "--pack24", "-o", out): "a: a.sparsity: got 2:4 of type f64, want none",
        (a, "--prune", "-o", out): "--prune requires --pack24",
        (tmp_path / "vector.npy", "--pack24", "-o", npy): "got an array of 1 dimensions, want a matrix",
        (tmp_path / "empty.npy", "--pack24", "-o", npy): "--pack24: got no elements, want some",
        (path, "--shape", "8,8", "-o", out): "--tensor: got none beside --input-type, --shape or --name",
        (path, "--tensor", "nobody", "-o", npy): "--tensor: got nobody, want one of the 8 tensors",
        (path, "--tensor", "half", "--input-type", "f32", "-o", npy): "half: got a tensor of BF16",
    }.items():
        code, output, error = ctl("convert", *arguments)
        assert code == 2 and output == "" and message in error, (arguments, error)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "empty.npy", "model.safetensors", "vector.npy"]


@pytest.mark.parametrize("kind", ["npy", "safetensors"])
def test_what_an_output_names_stays_what_it_is(ctl, tmp_path, kind):
    """Writes into a pipe, and into the file that a link leads to."""
    np.save(tmp_path / "a.npy", np.ones((4, 4), np.float32))
    link, target, pipe = (tmp_path / f"{name}.{kind}" for name in ("link", "target", "pipe"))
    target.write_bytes(b"old")
    link.symlink_to(target)
    assert ctl("convert", tmp_path / "a.npy", "--type", "f16", "-o", link)[0] == 0
    assert link.is_symlink() and len(target.read_bytes()) > 32
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        assert ctl("convert", tmp_path / "a.npy", "--type", "f16", "-o", pipe)[0] == 0
        assert pipe.is_fifo()
        assert reader.read() == target.read_bytes()
    assert len(list(tmp_path.iterdir())) == 4
