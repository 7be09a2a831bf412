# SPDX-License-Identifier: Apache-2.0
"""Tensors.Compress: 2:4 tensors that the server makes from dense ones."""

import grpc
import numpy as np
import pytest
from daemon import wait_until
from elements import ELEMENTS, convert, load, store
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2
from product import DEADLINE_S
from tensors import FLAGS, MIB, Session, by_handle, by_name, refusal

GEMMD_FLAGS = FLAGS

SPARSITY_2_4 = tensors_pb2.SPARSITY_2_4
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
# The elements of a group, the number kept of them, and how many are kept or dropped together.
FORMS = {"f32": (2, 1, 1), "tf32": (2, 1, 1), "e2m1": (8, 4, 2), "s4": (8, 4, 2), "u4": (8, 4, 2)}


def compress(session, tensor, timeout=DEADLINE_S, **fields):
    request = resident_pb2.CompressRequest(tensor=tensor, **fields)
    return session.stub.Compress(request, metadata=session.metadata, timeout=timeout)


def put(session, values, element, padding=0, **keep):
    """Uploads batch x rows x columns values."""
    scale = keep.pop("scale", [])
    data, leading, _ = store(convert(values, element), element, padding=padding)
    matrices, rows, columns = values.shape
    spec = resident_pb2.TensorSpec(
        type=element.number, rows=rows, columns=columns, matrices=matrices,
        leading_dimension=leading, scale=tensors_pb2.Scale(values=scale),
    )
    return session.put(data, spec=spec, **keep)


def packed(values, kept_of, element):
    """The bytes of the sparse form, where `kept_of` returns the kept units of a group."""
    group, kept, unit = FORMS.get(element.name, (4, 2, 1))
    matrices, rows, columns = values.shape
    groups = -(-columns // group)
    padded = np.zeros((matrices, rows, groups * group), element.dtype)
    padded[..., :columns] = convert(values, element)
    units = padded.reshape(matrices, rows, groups, group // unit, unit)
    result = b""
    for matrix in units:
        places = np.array([[kept_of(one) for one in row] for row in matrix]).reshape(
            rows, groups, kept // unit
        )
        chosen = np.take_along_axis(matrix, places[..., None], axis=2)
        data, _, _ = store(chosen.reshape(1, rows, groups * kept), element)
        codes = places.reshape(rows, -1).astype(np.uint8)
        bits = (codes[..., None] >> np.arange(2, dtype=np.uint8) & 1).reshape(rows, -1)
        result += data + np.packbits(bits, axis=-1, bitorder="little").tobytes()
    return result


def largest(element):
    """The kept units of a group: the largest, and of equal ones the first; zeros fill up from the
    start."""
    _, kept, unit = FORMS.get(element.name, (4, 2, 1))

    def choose(units):
        sizes = np.abs(units.astype(np.float64)).sum(axis=-1)
        order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[: kept // unit]
        chosen = [i for i in order if sizes[i] > 0]
        free = [i for i in range(len(sizes)) if i not in chosen]
        return sorted(chosen + free[: kept // unit - len(chosen)])

    return choose


def integers(rng, element, *shape):
    low, high = max(element.low, -8), min(element.high, 8)
    values = np.array([rng.randint(low, high) for _ in range(int(np.prod(shape)))])
    return values.reshape(shape)


SPARSE = [name for name in ELEMENTS if name not in ("f64", "b1", "s32")]


@pytest.mark.parametrize("kind", SPARSE)
def test_every_type_is_pruned_and_packed(session, rng, kind):
    element = ELEMENTS[kind]
    for matrices, rows, columns, padding in ((1, 5, 32, 0), (2, 3, 29, 3), (1, 7, 1, 0)):
        values = integers(rng, element, matrices, rows, columns)
        dense = put(session, values, element, padding)
        info = compress(session, by_handle(dense), keep=tensors_pb2.NewTensor(name="made"))
        assert info.spec.sparsity == SPARSITY_2_4 and info.spec.type == element.number
        assert (info.spec.matrices, info.spec.rows, info.spec.columns) == values.shape
        _, data = session.get(by_name("made"))
        assert data == packed(values, largest(element), element), (matrices, rows, columns)


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
@pytest.mark.parametrize("kind", ["f16", "tf32", "s8", "e4m3"])
def test_products_have_the_bits_of_inline_operands(session, rng, device, kind):
    element = ELEMENTS[kind]
    m, n, k = 17, 9, 64
    a, b = integers(rng, element, 1, m, k), integers(rng, element, 1, k, n)
    scale = [2.0**-i for i in range(m)] if element.bits == 8 else []
    dense = put(session, a, element, scale=scale)
    info = compress(session, by_handle(dense))
    assert list(info.spec.scale.values) == scale
    data, _, _ = store(convert(b, element), element)
    request = gemm_pb2.MultiplyRequest(m=m, n=n, k=k, device=device)
    request.b.type = element.number
    request.b.data = data
    request.a.tensor.tensor.handle = info.handle
    resident = session.multiply(request).d
    request.a.Clear()
    request.a.type = element.number
    request.a.sparsity = SPARSITY_2_4
    request.a.data = packed(a, largest(element), element)
    request.a.scale.values.extend(scale)
    assert resident == session.multiply(request).d
    assert np.any(load(resident).astype(np.float64) != 0)


def test_a_mask_says_what_is_kept(session, rng):
    element = ELEMENTS["f16"]
    values = integers(rng, element, 2, 6, 13)
    values[values == 0] = 5
    marks = np.zeros_like(values)
    marks[..., 1::4] = 1
    marks[..., 3::4] = 1
    mask = put(session, marks, ELEMENTS["b1"], padding=11)
    info = compress(session, by_handle(put(session, values, element)), mask=by_handle(mask))
    _, data = session.get(by_handle(info))
    # The last group has one element, which is not marked.
    ends = np.where(marks == 1, values, 0)
    assert data == packed(ends, lambda units: [1, 3] if units[1, 0] else [0, 1], element)
    marks[1, 4, 8] = 1
    dense, mask = put(session, values, element), put(session, marks, ELEMENTS["b1"])
    used = session.list().session_bytes
    code, text = refusal(compress, session, by_handle(dense), mask=by_handle(mask))
    assert code == INVALID_ARGUMENT
    assert text == "mask: matrix 1, row 4, group 2: got 3 elements to be kept, want at most 2"
    assert session.list().session_bytes <= used


def test_what_cannot_be_compressed(session, channel, rng):
    dense = put(session, integers(rng, ELEMENTS["f16"], 1, 4, 8), ELEMENTS["f16"], name="dense")
    words = refusal(compress, session, by_name("nothing"))
    assert words[0] == NOT_FOUND
    with Session(channel) as other:
        assert refusal(compress, other, by_handle(dense)) == words
        assert refusal(compress, other, by_name("dense")) == words
        mine = put(other, integers(rng, ELEMENTS["f16"], 1, 4, 8), ELEMENTS["f16"])
        assert refusal(compress, other, by_handle(mine), mask=by_handle(dense)) == words
    assert refusal(compress, session, tensors_pb2.TensorRef()) == (
        INVALID_ARGUMENT, "tensor: got none, want a handle or a name")
    sparse = compress(session, by_handle(dense))
    assert refusal(compress, session, by_handle(sparse)) == (
        INVALID_ARGUMENT, "tensor: got a sparse tensor, want a dense one")
    for kind in ("f64", "b1", "s32"):
        other = put(session, integers(rng, ELEMENTS[kind], 1, 4, 8), ELEMENTS[kind])
        code, text = refusal(compress, session, by_handle(other))
        assert code == INVALID_ARGUMENT and text.startswith("tensor.sparsity: got 2:4 of type ")
    columns = session.put(bytes(64), spec=resident_pb2.TensorSpec(
        type=ELEMENTS["f16"].number, rows=4, columns=8, order=tensors_pb2.ORDER_COLUMN_MAJOR))
    assert refusal(compress, session, by_handle(columns)) == (
        INVALID_ARGUMENT, "tensor.order: got column, want row")
    assert refusal(compress, session, by_handle(dense), mask=by_handle(dense)) == (
        INVALID_ARGUMENT, "mask.type: got f16, want b1")
    large = session.put(bytes(60 * MIB), name="large", hashed=False)
    code, text = refusal(compress, session, by_handle(large))
    assert code == RESOURCE_EXHAUSTED and "--tensor-bytes of a session" in text
    assert refusal(compress, session, by_handle(dense), keep=tensors_pb2.NewTensor(name="x" * 129))[
        0] == INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as raised:
        session.stub.Compress(
            resident_pb2.CompressRequest(tensor=by_handle(dense)), timeout=DEADLINE_S)
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_name_is_taken_over(session, rng):
    put(session, integers(rng, ELEMENTS["s8"], 1, 4, 8), ELEMENTS["s8"], name="w")
    info = compress(session, by_name("w"), keep=tensors_pb2.NewTensor(name="w", pinned=True))
    listed = session.settled().tensors
    assert [tensor.handle for tensor in listed] == [info.handle]
    assert listed[0].pinned and listed[0].bytes == 4 * 4 + 4


def test_a_deadline_ends_it(session):
    """The call ends, and soon nothing of it is left."""
    large = session.put(bytes(32 * MIB), name="large", hashed=False)
    used = session.settled().session_bytes
    code, _ = refusal(compress, session, by_handle(large), timeout=0.001)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: session.list().session_bytes == used, DEADLINE_S, "its room is free")
    assert [tensor.name for tensor in session.list().tensors] == ["large"]
