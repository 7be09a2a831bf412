# SPDX-License-Identifier: Apache-2.0
"""Broken requests: good ones with fields set to hostile values, or with their bytes damaged."""

import math
from dataclasses import dataclass

import grpc
import numpy as np
from elements import COLUMN_MAJOR, ELEMENTS
from gemmd.v1 import tensors_pb2
from google.protobuf.descriptor import FieldDescriptor
from product import Layout, Product, small_integers

_INTEGERS = [0, 1, -1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, 1000, 1 << 20, 1 << 31, 1 << 32, 1 << 40]
_INTEGERS += [(1 << 31) - 1, 1 << 62, (1 << 63) - 1, -(1 << 31), -(1 << 63)]
_DOUBLES = [0.0, -0.0, 1.0, -2.0, 1e308, 5e-324, math.inf, -math.inf, math.nan]
_TEXTS = [
    "",
    "auto",
    "cpu",
    "cuda:0",
    "onednn.f32.f32.f32",
    "*",
    "[",
    "\\",
    "ä\n\0=",
    "x" * 129,
    "x" * 5000,
]
_INTEGER_TYPES = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_INT32)
_FLOATING_TYPES = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)


def good_requests(rng):
    """Small products that use every part of a request."""
    requests = []
    for a_type, b_type in (
        ("f32", "f32"),
        ("f64", "f64"),
        ("e4m3", "e5m2"),
        ("s8", "u8"),
        ("e3m2", "e3m2"),
        ("s4", "u4"),
        ("b1", "b1"),
        ("bf16", "bf16"),
    ):
        a = small_integers(rng, ELEMENTS[a_type], 2, 4, 6)
        b = small_integers(rng, ELEMENTS[b_type], 2, 6, 5)
        product = Product(a=a, b=b, a_type=a_type, b_type=b_type, request_id=a_type)
        requests.append(product.request())
        product.c = small_integers(rng, ELEMENTS["s4"], 2, 4, 5)
        product.alpha, product.beta, product.is_xor = 2.0, 1.0, a_type == "b1"
        product.bias = small_integers(rng, ELEMENTS["s4"], 4)
        product.bias_axis = tensors_pb2.BIAS_AXIS_ROWS
        if ELEMENTS[a_type].bits == 8:
            product.a_scale, product.b_scale = [1.0, 2.0, 0.5, 1.0], [2.0]
        layout = Layout(order=COLUMN_MAJOR, padding=2, gap=24)
        product.layouts = {name: layout for name in "abcd"}
        requests.append(product.request())
    return requests


def one_for_each_status():
    """A request of Multiply for each status that it may have: random damage makes some seldom."""
    wide = np.zeros((1, 1000, 0))  # Its result has 4 MB.
    ones = np.ones((1, 2, 2))
    resident = Product(a=ones, b=ones).request()
    resident.a.Clear()
    resident.a.tensor.tensor.name = "a"
    foreign = Product(a=ones, b=ones, a_type="s8", b_type="s8", kernel="openblas.f32.f32.f32")
    invalid = Product(a=ones, b=ones).request()
    invalid.m = -1
    return {
        grpc.StatusCode.OK: Product(a=ones, b=ones).request(),
        grpc.StatusCode.INVALID_ARGUMENT: invalid,
        grpc.StatusCode.NOT_FOUND: Product(a=ones, b=ones, kernel="nothing").request(),
        grpc.StatusCode.UNIMPLEMENTED: foreign.request(),
        grpc.StatusCode.RESOURCE_EXHAUSTED: Product(a=wide, b=wide.transpose(0, 2, 1)).request(),
        grpc.StatusCode.UNAUTHENTICATED: resident,
    }


def spoil_field(rng, message):
    """Sets one field, at any depth, to a hostile value, or clears it."""
    while True:
        field = rng.choice(message.DESCRIPTOR.fields)
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            break
        if rng.random() < 0.1:
            message.ClearField(field.name)
            return
        message = getattr(message, field.name)
        message.SetInParent()
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.is_repeated:
        getattr(message, field.name).extend(
            rng.choice(_DOUBLES) for _ in range(rng.choice((1, 2, 100)))
        )
    elif field.type in _INTEGER_TYPES:
        value = (
            rng.choice(_INTEGERS)
            if rng.random() < 0.7
            else getattr(message, field.name) + rng.choice((-1, 1))
        )
        setattr(message, field.name, max(-(1 << 63), min(value, (1 << 63) - 1)))
    elif field.type in _FLOATING_TYPES:
        setattr(message, field.name, rng.choice(_DOUBLES))
    elif field.type == FieldDescriptor.TYPE_ENUM:
        setattr(message, field.name, rng.choice((*range(18), -1, 1 << 30)))
    elif field.type == FieldDescriptor.TYPE_BOOL:
        setattr(message, field.name, not getattr(message, field.name))
    elif field.type == FieldDescriptor.TYPE_STRING:
        setattr(message, field.name, rng.choice(_TEXTS))
    else:
        data = getattr(message, field.name)
        setattr(
            message,
            field.name,
            rng.choice((b"", data[1:], data + b"\0", data * 2, b"\xff" * len(data))),
        )


def damage(rng, data):
    """Damages bytes as a faulty peer might."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 1, 4, 40)))
        kind = rng.randrange(5)
        if kind == 0 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[start:end]
        elif kind == 2:
            data[start:start] = data[start:end]
        elif kind == 3:
            data[start:start] = rng.randbytes(end - start + 1)
        else:
            del data[start:]
    return bytes(data)


@dataclass(frozen=True)
class BadRequest:
    data: bytes
    is_damaged: bool  # In its bytes; otherwise every Protobuf parser can read it.


def bad_product(rng, good, wrap=lambda request: request):
    """A request that is probably bad, in its fields or bytes; `wrap` puts it into another
    message."""
    request = type(good[0])()
    request.CopyFrom(rng.choice(good))
    request = wrap(request)
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 1, 2, 3))):
            spoil_field(rng, request)
        return BadRequest(request.SerializeToString(), is_damaged=False)
    return BadRequest(damage(rng, request.SerializeToString()), is_damaged=True)


def bad_small(rng, request):
    """A damaged request of a message with few fields."""
    data = request.SerializeToString() + rng.randbytes(rng.choice((0, 1, 20)))
    return BadRequest(damage(rng, data), is_damaged=True)
