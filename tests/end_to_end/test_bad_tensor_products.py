# SPDX-License-Identifier: Apache-2.0
"""Products whose tensors are unsuitable: each is refused with a reason, and leaves nothing."""

import grpc
import pytest
from daemon import wait_until
from elements import COLUMN_MAJOR
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2
from tensor_operands import integers, operand, part, product, put_array
from tensors import DEADLINE_S, FLAGS, by_handle, by_name, refusal

GEMMD_FLAGS = FLAGS

FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
OUT_OF_RANGE = grpc.StatusCode.OUT_OF_RANGE
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def bad_products(session, rng):
    """The fault, the request, and its refusal."""
    a = by_handle(put_array(session, integers(rng, 2, 4, 6)))
    b = by_handle(put_array(session, integers(rng, 1, 6, 5)))
    square = by_handle(put_array(session, integers(rng, 1, 8, 8), hashed=False))
    halves = by_handle(session.put(bytes(8), spec=resident_pb2.TensorSpec(
        type=tensors_pb2.ELEMENT_TYPE_S4, rows=4, columns=4), hashed=False))
    one = {"matrices": 1}

    def good(**fields):
        return product(4, 5, 6, operand(a, **one), operand(b), **fields)

    request = good()
    request.a.tensor.tensor.handle = bytes(16)
    yield "unknown", request, NOT_FOUND, "tensor: got an unknown name or handle"
    request = good()
    request.a.tensor.tensor.handle = b"x"
    yield "short handle", request, INVALID_ARGUMENT, "a.tensor.handle: got 1 bytes"
    request = good()
    request.a.tensor.ClearField("tensor")
    yield "no reference", request, INVALID_ARGUMENT, "a.tensor: got none"
    for member, value in (("order", 1), ("leading_dimension", 6), ("batch_stride", 0), ("sparsity", 1)):
        request = good()
        setattr(request.b, member, value)
        yield member, request, INVALID_ARGUMENT, f"b.{member}: got a value, want none"
    request = good()
    request.a.scale.values.append(1)
    yield "scale", request, INVALID_ARGUMENT, "a.scale.values: got a value"
    request = good()
    request.a.type = tensors_pb2.ELEMENT_TYPE_F16
    yield "type", request, INVALID_ARGUMENT, "a.type: got f16, want that of the tensor, f32"
    for fields in ({"first_row": 5}, {"first_row": -1}, {"rows": 5}, {"rows": -1}, {"first_column": 7},
                   {"first_matrix": 2, "matrices": 1}, {"matrices": 3}, {"first_row": 1, "rows": (1 << 63) - 1}):
        request = good()
        request.a.CopyFrom(operand(a, **{**one, **fields}))
        yield f"range {fields}", request, OUT_OF_RANGE, "a.tensor: got "
    request = good()
    request.m = 3
    yield "shape", request, INVALID_ARGUMENT, "a.tensor: got 4 rows and 6 columns, want 3 and 6"
    request = good()
    request.a.transpose = True
    yield "transposed", request, INVALID_ARGUMENT, "a.tensor: got 4 rows and 6 columns, want 6 and 4"
    request = good(batch=3)
    request.a.CopyFrom(operand(a))
    yield "batch", request, INVALID_ARGUMENT, "a.tensor: got 2 matrices, want 1 or batch = 3"
    request = product(4, 4, 3, operand(halves, first_column=1), operand(halves, rows=3))
    yield "half a byte", request, INVALID_ARGUMENT, "a.tensor: got lines that start at element 1"

    def overwriting(into, **fields):
        request = product(4, 4, 4, operand(square, rows=4, columns=4),
                          operand(square, first_row=4, columns=4))
        request.d.tensor.CopyFrom(part(into, **fields))
        return request

    yield "over A", overwriting(square, first_row=3, rows=4, first_column=3, columns=4), \
        INVALID_ARGUMENT, "d.tensor: got bytes of a.tensor"
    yield "over B", overwriting(square, first_row=4, first_column=0, columns=4), \
        INVALID_ARGUMENT, "d.tensor: got bytes of b.tensor"
    request = overwriting(square, rows=4, first_column=4)
    request.beta = 1
    request.c.CopyFrom(operand(square, first_row=1, rows=4, first_column=4))
    yield "over a part of C", request, INVALID_ARGUMENT, "d.tensor: got bytes of c.tensor"
    request.c.CopyFrom(operand(square, True, rows=4, first_column=4))
    yield "over C transposed", request, INVALID_ARGUMENT, "d.tensor: got bytes of c.tensor"
    yield "shape of D", overwriting(square, rows=3, first_column=4), INVALID_ARGUMENT, \
        "d.tensor: got 3 rows and 4 columns, want 4 and 4"
    request = overwriting(square, rows=4, first_column=4)
    request.batch = 2
    request.a.CopyFrom(operand(square, rows=4, columns=4))
    yield "batch of D", request, INVALID_ARGUMENT, "d.tensor: got 1 matrices, want batch = 2"
    request = overwriting(square, rows=4, first_column=4)
    request.d.type = tensors_pb2.ELEMENT_TYPE_F16
    yield "type of D", request, INVALID_ARGUMENT, "d.type: got f16"
    request = overwriting(square, rows=4, first_column=4)
    request.d.order = COLUMN_MAJOR
    yield "order of D", request, INVALID_ARGUMENT, "d.order: got column, want that of the tensor, row"
    request = overwriting(square, rows=4, first_column=4)
    request.d.order = 9
    yield "unknown order of D", request, INVALID_ARGUMENT, "d.order: got unknown value 9"
    request = overwriting(square, rows=4, first_column=4)
    request.d.leading_dimension = 4
    yield "leading dimension of D", request, INVALID_ARGUMENT, "d.leading_dimension: got 4"
    twins = integers(rng, 1, 4, 5)
    twin = by_handle(put_array(session, twins))
    put_array(session, twins)
    request = good()
    request.d.tensor.CopyFrom(part(twin))
    yield "shared bytes", request, FAILED_PRECONDITION, "d.tensor: got a tensor whose bytes"
    request = good()
    request.d.new_tensor.name = "x" * 129
    yield "long name", request, INVALID_ARGUMENT, "name: got 129"
    request = good()
    request.d.new_tensor.lease_ns = -1
    yield "negative lease", request, INVALID_ARGUMENT, "lease_ns: got -1"
    request = product(1 << 12, 1 << 13, 1, operand(by_handle(put_array(session, integers(rng, 1, 1 << 12, 1)))),
                      operand(by_handle(put_array(session, integers(rng, 1, 1, 1 << 13)))))
    request.d.new_tensor.name = "large"
    yield "quota", request, RESOURCE_EXHAUSTED, "quota: got 134217728 bytes"
    request = good(batch=2)
    request.a.CopyFrom(operand(a))
    request.d.batch_stride = 32
    request.d.new_tensor.SetInParent()
    yield "gap", request, INVALID_ARGUMENT, "d.batch_stride: got a gap"


def test_bad_products_are_refused(session, rng):
    for what, request, code, text in bad_products(session, rng):
        used = session.list().session_bytes
        got = refusal(session.multiply, request)
        assert got[0] == code and text in got[1], (what, got)
        wait_until(
            lambda used=used: session.list().session_bytes <= used, DEADLINE_S, f"{what}: room is free"
        )
    assert not [tensor for tensor in session.list().tensors if tensor.name]


def test_tensors_whose_lease_ended_are_unknown(session, rng):
    """As operands and as results, by name and by handle."""
    tensor = put_array(session, integers(rng, 1, 4, 4), name="short", lease_ns=1_000_000)
    wait_until(lambda: not session.list().tensors, DEADLINE_S, "the lease ended")
    good = operand(by_handle(put_array(session, integers(rng, 1, 4, 4))))
    for ref in (by_handle(tensor), by_name("short")):
        asked = [product(4, 4, 4, operand(ref), good), product(4, 4, 4, good, good)]
        asked[1].d.tensor.CopyFrom(part(ref))
        for request in asked:
            code, text = refusal(session.multiply, request)
            assert code == NOT_FOUND and "tensor: got an unknown name or handle" in text


def test_a_failed_product_leaves_no_tensor(session, rng):
    """It was admitted, and its device found invalid indices."""
    request = gemm_pb2.MultiplyRequest(m=1, n=1, k=8)
    request.a.type = request.b.type = tensors_pb2.ELEMENT_TYPE_S8
    request.a.sparsity = tensors_pb2.SPARSITY_2_4
    request.a.data = bytes(4) + b"\0"
    request.b.data = bytes(8)
    request.d.new_tensor.name = "never"
    used = session.list().session_bytes
    code, text = refusal(session.multiply, request)
    assert code == INVALID_ARGUMENT and "indices" in text
    assert session.list().session_bytes == used
    # Such indices never become a tensor.
    spec = resident_pb2.TensorSpec(
        type=tensors_pb2.ELEMENT_TYPE_S8, rows=1, columns=8, sparsity=tensors_pb2.SPARSITY_2_4
    )
    with pytest.raises(grpc.RpcError) as raised:
        session.put(bytes(5), spec=spec)
    assert raised.value.code() == INVALID_ARGUMENT and "indices" in raised.value.details()
    assert not session.list().tensors
