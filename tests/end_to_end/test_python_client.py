# SPDX-License-Identifier: Apache-2.0
"""Products requested with code that the stock generator makes from the .proto, compared byte for
byte with NumPy if every sum is exact, and otherwise within a bound derived for each element."""

import itertools
import math

import numpy as np
import pytest
from elements import COLUMN_MAJOR, ELEMENTS, ROW_MAJOR, convert, load
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, tensors_pb2
from product import (
    DEADLINE_S,
    Layout,
    Product,
    check_bytes,
    check_within,
    small_integers,
    transposed_orders,
)

SAME = [(name, name) for name in ELEMENTS if name != "s32"]
MIXED = [("s8", "u8"), ("u8", "s8"), ("s4", "u4"), ("u4", "s4"), ("e4m3", "e5m2"), ("e2m1", "e3m2")]
SHAPES = [(1, 1, 1), (5, 7, 9), (33, 17, 70)]
OUTPUTS = [name for name in ELEMENTS if name != "b1"]
AXES = (tensors_pb2.BIAS_AXIS_ROWS, tensors_pb2.BIAS_AXIS_COLUMNS)


@pytest.fixture
def stub(channel):
    return gemm_pb2_grpc.GemmStub(channel)


def multiply(stub, product):
    return stub.Multiply(product.request(), timeout=DEADLINE_S)


def integers(rng, a_type, b_type, m, n, k, batch_a=1, batch_b=1):
    a = small_integers(rng, ELEMENTS[a_type], batch_a, m, k)
    b = small_integers(rng, ELEMENTS[b_type], batch_b, k, n)
    return Product(a=a, b=b, a_type=a_type, b_type=b_type)


@pytest.mark.parametrize("a_type,b_type", SAME + MIXED)
def test_every_type(stub, rng, a_type, b_type):
    """Every way to store A, B and D, with and without padding."""
    forms = itertools.product(transposed_orders(), transposed_orders(), (ROW_MAJOR, COLUMN_MAJOR))
    for turn, (a_form, b_form, d_order) in enumerate(forms):
        m, n, k = SHAPES[turn % len(SHAPES)]
        product = integers(rng, a_type, b_type, m, n, k)
        product.is_xor = a_type == "b1" and turn % 2 == 1
        padding = turn // 3 % 3
        product.layouts = {
            "a": Layout(a_form.order, a_form.transpose, padding),
            "b": Layout(b_form.order, b_form.transpose, 2 * padding),
            "d": Layout(d_order, padding=padding),
        }
        answer = multiply(stub, product)
        check_bytes(answer.d, product)
        assert answer.operations == 2 * m * n * k
        assert answer.bytes_written == len(answer.d.data)


@pytest.mark.parametrize("a_type,b_type", SAME + MIXED)
@pytest.mark.parametrize("broadcast", ["", "a", "b"])
def test_batches(stub, rng, a_type, b_type, broadcast):
    for gap in (0, 24):
        batch_a, batch_b = (1 if broadcast == name else 3 for name in "ab")
        product = integers(rng, a_type, b_type, 6, 5, 11, batch_a, batch_b)
        product.layouts = {name: Layout(gap=gap, padding=gap // 12) for name in "abd"}
        answer = multiply(stub, product)
        assert answer.d.batch == 3
        check_bytes(answer.d, product)


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_types(stub, rng, name):
    """Every type of D, C and bias; narrow types round to even and saturate."""
    for a_type, axis, c_form in itertools.product(("f32", "s8"), AXES, transposed_orders()):
        product = integers(rng, a_type, a_type, 9, 13, 2 if a_type == "s8" else 21)
        element = ELEMENTS[name]
        product.d_type = name
        product.alpha, product.beta = 2.0, 3.0
        product.c = small_integers(rng, element, 1, 9, 13)
        product.bias = small_integers(rng, element, 9 if axis == AXES[0] else 13)
        product.bias_axis = axis
        product.layouts = {"c": c_form, "d": Layout(padding=1)}
        check_bytes(multiply(stub, product).d, product)


def test_c_of_another_type(stub, rng):
    product = integers(rng, "bf16", "bf16", 8, 6, 10)
    product.d_type, product.c_type, product.beta = "f16", "s8", 1.0
    product.c = small_integers(rng, ELEMENTS["s4"], 1, 8, 6)
    check_bytes(multiply(stub, product).d, product)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "s8", "u8"])
def test_scales(stub, rng, name):
    powers = [2.0**exponent for exponent in range(-2, 3)]
    for count_a, count_b in itertools.product((0, 1, 12), (0, 1, 10)):
        product = integers(rng, name, name, 12, 10, 16)
        product.d_type = "f32"
        product.a_scale = [rng.choice(powers) for _ in range(count_a)]
        product.b_scale = [rng.choice(powers) for _ in range(count_b)]
        check_bytes(multiply(stub, product).d, product)


def test_relu(stub, rng):
    product = integers(rng, "f32", "f32", 16, 16, 8)
    product.activation = gemm_pb2.ACTIVATION_RELU
    product.bias = small_integers(rng, ELEMENTS["f32"], 16)
    product.bias_axis = AXES[1]
    assert (product.exact() == 0).any() and (product.exact() > 0).any()
    check_bytes(multiply(stub, product).d, product)


def test_empty_and_depth_zero(stub, rng):
    for m, n, k in ((0, 4, 4), (4, 0, 4), (0, 0, 0)):
        answer = multiply(stub, integers(rng, "f32", "f32", m, n, k))
        assert (answer.d.rows, answer.d.columns, answer.d.data) == (m, n, b"")
    product = integers(rng, "f32", "f32", 3, 4, 0)
    product.c, product.beta = small_integers(rng, ELEMENTS["f32"], 1, 3, 4), 2.0
    check_bytes(multiply(stub, product).d, product)


def test_a_product_larger_than_grpcs_default_message(stub, rng):
    a = np.array(rng.choices(range(-9, 10), k=1100 * 64), np.int64).reshape(1, 1100, 64)
    b = np.array(rng.choices(range(-9, 10), k=64 * 1200), np.int64).reshape(1, 64, 1200)
    product = Product(a=a, b=b)
    assert len(product.expected_bytes()) > 4 << 20
    check_bytes(multiply(stub, product).d, product)


def test_nan_and_infinity_are_data(stub):
    a = np.array([[[np.nan, 1.0], [np.inf, 1.0], [1.0, 1.0]]])
    answer = multiply(stub, Product(a=a, b=np.ones((1, 2, 1))))
    got = load(answer.d)[0, :, 0]
    assert np.isnan(got[0]) and got[1] == np.inf and got[2] == 2.0


def test_the_comparisons_can_fail(stub, rng):
    product = integers(rng, "f32", "f32", 4, 4, 4)
    answer = multiply(stub, product)
    check_bytes(answer.d, product)
    for position, value in ((0, b"\x7f"), (63, b"\x7f"), (17, b"\x01")):
        data = answer.d.data
        spoilt = tensors_pb2.Matrix()
        spoilt.CopyFrom(answer.d)
        spoilt.data = data[:position] + value + data[position + 1 :]
        with pytest.raises(AssertionError):
            check_bytes(spoilt, product)
    one = np.ones((1, 1, 1))
    check_within(one, one, 0 * one)
    for got, want, bound in ((np.nan, 1, 1), (1, np.nan, 1), (1, 1, np.nan), (1, 2, 0.5)):
        with pytest.raises(AssertionError):
            check_within(got * one, want * one, bound * one)


# Random data. Every product and every term passes through at most k + 4 roundings of the arithmetic
# (k sums or fused multiply-adds in any order, alpha, beta, scale, C, bias), each with a relative
# error of at most `unit`. So D is off by at most g*M/(1 - g), where g is (k + 4)*unit and M the sum
# of the magnitudes of all terms; then comes one rounding to the type of D. The reference is in 80
# bits, with 2^-64 in place of `unit`.


def random_product(rng, a_type, b_type, d_type):
    random = np.random.default_rng(rng.getrandbits(64))
    m, n, k = 37, 29, 203
    a = convert(random.standard_normal((2, m, k)), ELEMENTS[a_type]).astype(np.float64)
    b = convert(random.standard_normal((2, k, n)), ELEMENTS[b_type]).astype(np.float64)
    product = Product(a=a, b=b, a_type=a_type, b_type=b_type, d_type=d_type)
    product.alpha, product.beta = 0.75, -1.5
    element = product.result_element
    product.c = convert(random.standard_normal((2, m, n)), element).astype(np.float64)
    product.bias = convert(random.standard_normal(n), element).astype(np.float64)
    product.bias_axis = tensors_pb2.BIAS_AXIS_COLUMNS
    return product


def reference(product, arithmetic):
    """The exact D before the activation, and its maximum error."""
    a, b = (x.astype(np.longdouble) for x in (product.a, product.b))
    alpha = 1.0 if product.alpha is None else product.alpha
    want = alpha * (a @ b)
    magnitude = np.abs(alpha) * (np.abs(a) @ np.abs(b))
    if product.c is not None:
        want = want + product.beta * product.c.astype(np.longdouble)
        magnitude = magnitude + np.abs(product.beta * product.c)
    if product.bias is not None:
        want = want + product.bias.astype(np.longdouble)
        magnitude = magnitude + np.abs(product.bias)
    growth = (a.shape[2] + 4) * (arithmetic.unit + 2.0**-64)
    return want, growth * magnitude / (1 - growth)


def rounded(want, bound, element):
    """The bound after one more rounding, to the type."""
    return bound + np.maximum(element.unit * (np.abs(want) + bound), element.least / 2)


FLOATS = [name for name, element in ELEMENTS.items() if not element.is_integer]


@pytest.mark.parametrize("name", FLOATS)
def test_random_data(stub, rng, name):
    outputs = ["f64"] if name == "f64" else ["f32", "f16", "bf16"]
    arithmetic = ELEMENTS["f64" if name == "f64" else "f32"]
    for d_type in outputs:
        product = random_product(rng, name, name, d_type)
        want, bound = reference(product, arithmetic)
        assert (bound < 0.01).all(), "so loose that a term lost from the sum might pass"
        got = load(multiply(stub, product).d).astype(np.longdouble)
        check_within(got, want, rounded(want, bound, product.result_element))


# An activation multiplies an error by at most its steepest slope and adds its own: a few
# operations, each with a relative error of at most `unit`, on terms no larger than |x|.
ACTIVATIONS = {
    gemm_pb2.ACTIVATION_GELU_ERF: (1.13, lambda x, erf: x / 2 * (1 + erf)),
    gemm_pb2.ACTIVATION_GELU_TANH: (
        1.13,
        lambda x, _: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    gemm_pb2.ACTIVATION_SILU: (1.1, lambda x, _: x / (1 + np.exp(-x))),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(stub, rng, activation):
    product = random_product(rng, "f32", "f32", "f32")
    product.activation = activation
    x, bound = reference(product, ELEMENTS["f32"])
    slope, function = ACTIVATIONS[activation]
    erf = np.vectorize(math.erf)(x.astype(np.float64) / math.sqrt(2))
    want = function(x, erf)
    bound = slope * bound + 8 * ELEMENTS["f32"].unit * np.abs(x)
    got = load(multiply(stub, product).d).astype(np.longdouble)
    check_within(got, want, rounded(want, bound, ELEMENTS["f32"]))
