# SPDX-License-Identifier: Apache-2.0
"""`pack24` and `quantize` make the bytes of the C++ client's Pack24 and Quantize, of which these
are recordings (SHA-256 of the bytes; of Quantize with the factors appended)."""

import hashlib

import gemmd
import numpy as np
import pytest
from gemmd.elements import ELEMENTS

# Type, dropped elements, bytes.
PACKED = [
    ("f32", 418, "87b81c84e501650732d730049ef5c36d0101b484106ea05413fd21292616a853"),
    ("tf32", 216, "ba7f4bad1a04761855ef58c808659a6be1df21b8ccdc58b241e96a416465463a"),
    ("f16", 312, "0203ccf7043ffca748860d515fe1c6a46207b912677f2b8f3e398045a9874192"),
    ("bf16", 312, "0203ccf7043ffca748860d515fe1c6a46207b912677f2b8f3e398045a9874192"),
    ("e4m3", 301, "b32ca901ce1efe81ea7c1843b9a01c9630d8b624d8e436bf35b91ebc06efbca0"),
    ("e5m2", 301, "b32ca901ce1efe81ea7c1843b9a01c9630d8b624d8e436bf35b91ebc06efbca0"),
    ("e3m2", 277, "3cab081dff38b8986422b1115fbd5383402437f6851aa417752ba6ce545fe1ae"),
    ("e2m3", 277, "3cab081dff38b8986422b1115fbd5383402437f6851aa417752ba6ce545fe1ae"),
    ("e2m1", 331, "ab911cc85fcf0252783475bab532ec93a5b58259aeca44b4e6070c6113e1f0cc"),
    ("s8", 308, "64f6a8b10556f2beaf03ef14f62aae29152ddebdcce17e80cdbcf8a00d3bbc07"),
    ("u8", 308, "a8b684bddb2b2345b079622e6736d893d9302aa9dc2ab7db9977184c1813eef9"),
    ("s4", 341, "eb98b21648bf4f1d71b5d830272641acdb50a8041698c7df2c7e7277c2e150e7"),
    ("u4", 345, "2cc9f60ba00f351385309ffaa3fd1080c88ad5944136c7d627eb6c05b224fb54"),
]
# Type, what has a factor, bytes.
QUANTIZED = [
    ("e4m3", "matrix", "98105c3dfb5d33366b6b41cac6af7a476868c4c898d0b7c47ed86b1a840978bb"),
    ("e4m3", "row", "c4c59624eb7afddc27e8060d4da5ce2bf0ada236899ef1fe22e9a772def4d9bb"),
    ("e4m3", "column", "fc490ddf5d6793d937624c7760c6c46f7f3dbfa3e0c857e246739744c4c1f0c6"),
    ("e5m2", "matrix", "6628f7ad24de1d858e92fb2f1d1c27f55e28f46009ce3e06b5d02262569769e9"),
    ("e5m2", "row", "b0bb1d2033384513465f5791c70aa7af3d1cb9d094f7e16e77599914a6f0002a"),
    ("e5m2", "column", "137cab6645c3bf643872ed456cd2d5370a9484d4cce2beb75823049e6ae45a7e"),
    ("s8", "matrix", "f4cea74cf07ff10e1672e3a06e24c4002e0e4118506ec0561f9eb36aac7759d0"),
    ("s8", "row", "5a008c2471704f6dc0e6938ca01f0b6b9d539a139a48581ebc6666409bda9f2e"),
    ("s8", "column", "1e67fd024c03580d792163b7e689cd569c5524d60588c54a12c4aaffd29fe432"),
    ("u8", "matrix", "72447163a0e2bcf9617a23d9cfb7ad2580f0c097dbbf2234d66b6cba9838cf30"),
    ("u8", "row", "d2cd34d9b89872026528d112ca7702b23d4d0653c52f8ba8f0cd16718957dfa1"),
    ("u8", "column", "a06900435e2177b1512c9fcaf301ebc0f4c596df7516a80a63ba179773b0d042"),
]


def random_bits(state):
    """The generator with which the recordings were made."""
    while True:
        state = (state * 1664525 + 1013904223) % 2**32
        yield state >> 8


def patterns(element, rows, columns):
    """Elements of every kind: zeros, ties, NaN, infinities, subnormal numbers."""
    bits = element.bits
    codes = []
    for r, _ in zip(random_bits(7), range(rows * columns), strict=False):
        code = 0 if r % 3 == 0 else (r >> 4) & ((1 << min(bits, 16)) - 1)
        if bits == 32:
            code = 5 if r % 5 == 0 else code << 16
        codes.append(code)
    dtype = f"u{element.dtype.itemsize}"
    return np.array(codes, np.uint64).astype(dtype).view(element.dtype).reshape(rows, columns)


def numbers_of_many_sizes(rows, columns, *, has_sign):
    values = []
    for r, _ in zip(random_bits(11), range(rows * columns), strict=False):
        value = (r % 4096) / 64 * 2.0 ** -(r >> 12 & 15)
        if r % 7 == 0:
            value = 0.0
        values.append(-value if has_sign and (r % 7 == 0 or r >> 20 & 1) else value)
    return np.array(values, np.float32).reshape(rows, columns)


@pytest.mark.parametrize("name, dropped, digest", PACKED)
def test_pack24(name, dropped, digest):
    dense = patterns(ELEMENTS[name], 37, 45)
    packed = gemmd.pack24(dense, type=name)
    assert (packed.dropped, packed.shape) == (dropped, (37, 45))
    assert hashlib.sha256(packed.data).hexdigest() == digest
    # A batch is one matrix after the other, and the order in memory does not matter.
    stack = np.stack([dense, dense]).swapaxes(1, 2).copy().swapaxes(1, 2)
    both = gemmd.pack24(stack, type=name)
    assert np.array_equal(both.data, np.concatenate([packed.data, packed.data]))


@pytest.mark.parametrize("name, per, digest", QUANTIZED)
def test_quantize(name, per, digest):
    quantized = gemmd.quantize(numbers_of_many_sizes(61, 83, has_sign=name != "u8"), name, per=per)
    data = quantized.array.tobytes() + quantized.scale.tobytes()
    assert hashlib.sha256(data).hexdigest() == digest


def test_quantize_in_words():
    values = np.array([[1, -2, 4], [100, 50, 25]], np.float32)
    assert gemmd.quantize(values, "s8").array.tolist() == [[1, -3, 5], [127, 64, 32]]
    rows = gemmd.quantize(values, "e4m3", per="row")
    assert rows.array.astype(float).tolist() == [[112, -224, 448], [448, 224, 112]]
    assert gemmd.quantize(np.zeros((1, 2)), "u8").scale.tolist() == [1]


def refused(call, *arguments, **keywords):
    with pytest.raises(gemmd.InvalidArgument) as raised:
        call(*arguments, **keywords)
    return raised.value.message


def test_what_cannot_be_quantized():
    values = np.array([[1, -2], [3, np.nan]], np.float32)
    assert refused(gemmd.quantize, values, "s8") == "values: got nan at [1, 1], want a finite value"
    message = refused(gemmd.quantize, values[:1], "u8")
    assert message == "values: got -2.0 at [0, 1], want a finite value of at least 0"
    assert "type: got bf16" in refused(gemmd.quantize, values, "bf16")
    assert "values.shape" in refused(gemmd.quantize, values[0], "s8")
    assert "per: got 'line'" in refused(gemmd.quantize, values[:1], "s8", per="line")


def test_what_cannot_be_packed():
    full = np.ones((2, 8), np.float16)
    full[0, 2:4] = full[0, 4:6] = 0
    assert refused(gemmd.pack24, full, prune="refuse") == (
        "dense.data: row 1, group 0: got 4 nonzero elements, want at most 2"
    )
    assert gemmd.pack24(full[:1], prune="refuse").dropped == 0
    assert "type: got f64" in refused(gemmd.pack24, full.astype(np.float64))
    assert "dense.shape" in refused(gemmd.pack24, full[0])
    for prune in ("", "Refuse", None, True):
        message = refused(gemmd.pack24, full[:1], prune=prune)
        assert message == f"prune: got {prune!r}, want smallest or refuse"


@pytest.mark.parametrize("name", ["f32", "f16", "s8", "s4"])
@pytest.mark.parametrize("shape", [(0, 8), (0, 0), (0, 4, 8), (2, 0, 8), (4, 0), (0, 0, 0)])
def test_pack24_of_nothing(name, shape):
    packed = gemmd.pack24(np.zeros(shape, ELEMENTS[name].dtype), prune="refuse")
    assert (packed.shape, packed.dropped, packed.data.shape, packed.data.dtype) == (shape, 0, (0,), np.uint8)
