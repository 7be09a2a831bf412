# SPDX-License-Identifier: Apache-2.0
"""Products to request, NumPy's results for them, and the two comparisons."""

from dataclasses import dataclass, field

import numpy as np
from elements import BY_NUMBER, COLUMN_MAJOR, ELEMENTS, ROW_MAJOR, convert, load, store
from gemmd.v1 import gemm_pb2, tensors_pb2

DEADLINE_S = 60  # The deadline of every call; none takes nearly as long on a slow machine.
FILLER = 0xA5  # The padding, which nobody may read; not a small integer in any type.


@dataclass
class Layout:
    order: int = ROW_MAJOR
    transpose: bool = False
    padding: int = 0  # Elements after each line.
    gap: int = 0  # Bytes after each matrix of a batch.


@dataclass
class Product:
    """D = activation(alpha A B + beta C + bias). A and B are batch x rows x columns as multiplied;
    a batch of 1 means one matrix for all."""

    a: np.ndarray
    b: np.ndarray
    a_type: str = "f32"
    b_type: str = "f32"
    d_type: str = ""  # Empty: the accumulation type.
    c: np.ndarray | None = None
    c_type: str = ""  # Empty: the output's type.
    bias: np.ndarray | None = None
    bias_axis: int = tensors_pb2.BIAS_AXIS_UNSPECIFIED
    alpha: float | None = None
    beta: float = 0.0
    a_scale: list = field(default_factory=list)
    b_scale: list = field(default_factory=list)
    activation: int = gemm_pb2.ACTIVATION_NONE
    is_xor: bool = False
    layouts: dict = field(default_factory=dict)  # By "a", "b", "c", "d".
    kernel: str = ""
    request_id: str = ""

    @property
    def batch(self):
        return max(self.a.shape[0], self.b.shape[0])

    @property
    def result_element(self):
        if self.d_type:
            return ELEMENTS[self.d_type]
        if self.a_type == "f64":
            return ELEMENTS["f64"]
        return ELEMENTS["s32" if ELEMENTS[self.a_type].is_integer else "f32"]

    def layout(self, name):
        return self.layouts.get(name, Layout())

    def request(self):
        request = gemm_pb2.MultiplyRequest(
            request_id=self.request_id,
            m=self.a.shape[1],
            n=self.b.shape[2],
            k=self.a.shape[2],
            a=self._operand("a", self.a, ELEMENTS[self.a_type]),
            b=self._operand("b", self.b, ELEMENTS[self.b_type]),
            beta=self.beta,
            activation=self.activation,
            bit_operation=gemm_pb2.BIT_OPERATION_XOR if self.is_xor else gemm_pb2.BIT_OPERATION_AND,
            kernel=self.kernel,
        )
        if self.batch != 1:
            request.batch = self.batch
        if self.alpha is not None:
            request.alpha = self.alpha
        request.a.scale.values.extend(self.a_scale)
        request.b.scale.values.extend(self.b_scale)
        if self.c is not None:
            element = ELEMENTS[self.c_type] if self.c_type else self.result_element
            request.c.CopyFrom(self._operand("c", self.c, element))
            request.c.type = ELEMENTS[self.c_type].number if self.c_type else 0
        if self.bias is not None:
            line = convert(self.bias, self.result_element)[None, None, :]
            request.bias.data = store(line, self.result_element)[0]
            request.bias.axis = self.bias_axis
        self._set_output(request.d)
        return request

    def _operand(self, name, values, element):
        layout = self.layout(name)
        stored = values.swapaxes(1, 2) if layout.transpose else values
        data, leading, stride = store(
            convert(stored, element), element, layout.order, layout.padding, layout.gap, FILLER
        )
        operand = tensors_pb2.Operand(
            type=element.number, order=layout.order, transpose=layout.transpose, data=data
        )
        if layout.padding:
            operand.leading_dimension = leading
        if values.shape[0] < self.batch:
            operand.batch_stride = 0
        elif stride is not None:
            operand.batch_stride = stride
        return operand

    def _set_output(self, output):
        layout = self.layout("d")
        output.type = ELEMENTS[self.d_type].number if self.d_type else 0
        output.order = layout.order
        empty = np.zeros((self.batch, self.a.shape[1], self.b.shape[2]))
        element = self.result_element
        _, leading, stride = store(
            convert(empty, element), element, layout.order, layout.padding, layout.gap
        )
        if layout.padding:
            output.leading_dimension = leading
        if stride is not None:
            output.batch_stride = stride

    def exact(self):
        """The product in 64-bit arithmetic, which is exact for small integers and powers of two."""
        if self.is_xor:
            a, b = self.a.astype(np.int64), self.b.astype(np.int64)
            total = a @ (1 - b) + (1 - a) @ b
        else:
            kind = np.int64 if ELEMENTS[self.a_type].is_integer else np.float64
            total = self.a.astype(kind) @ self.b.astype(kind)
        total = total.astype(np.float64) * (1.0 if self.alpha is None else self.alpha)
        if self.a_scale:
            total = total * np.asarray(self.a_scale, np.float64).reshape(1, -1, 1)
        if self.b_scale:
            total = total * np.asarray(self.b_scale, np.float64).reshape(1, 1, -1)
        if self.c is not None:
            total = total + self.beta * self.c.astype(np.float64)
        if self.bias is not None:
            is_rows = self.bias_axis == tensors_pb2.BIAS_AXIS_ROWS
            total = total + self.bias.astype(np.float64).reshape(
                (1, -1, 1) if is_rows else (1, 1, -1)
            )
        if self.activation == gemm_pb2.ACTIVATION_RELU:
            total = np.maximum(total, 0)
        return total

    def expected_bytes(self):
        layout, element = self.layout("d"), self.result_element
        return store(
            convert(self.exact(), element), element, layout.order, layout.padding, layout.gap
        )[0]


# With this batch a busy product takes minutes on any machine, so it only ends by an abort. A daemon
# accepts it with these flags, and without a deadline.
ENDLESS_BATCH = 20_000_000
ENDLESS_FLAGS = ["--devices=cpu", "--max-product-seconds=100000", "--max-backlog=1000h"]


def busy_product(batch=ENDLESS_BATCH, request_id=""):
    """The request of a product that takes long for its few bytes: dot products of length 100000,
    repeated `batch` times."""
    product = Product(
        a=np.ones((1, 1, 100_000), np.float32),
        b=np.ones((1, 100_000, 1), np.float32),
        a_type="e2m1",
        b_type="e2m1",
        request_id=request_id,
    )
    request = product.request()
    request.batch = batch
    request.a.batch_stride = request.b.batch_stride = 0
    return request


def small_integers(rng, element, *shape):
    """Integers that are exact in the type, and whose sums here are all exact in f32."""
    values = [rng.randint(element.low, element.high) for _ in range(int(np.prod(shape)))]
    if element.name == "e2m1":
        values = [value - (abs(value) == 5) for value in values]
    return np.array(values, np.int64).reshape(shape)


def check_bytes(matrix, product):
    """Checks that the answer has the bytes of NumPy's result; reports the differences."""
    want = product.expected_bytes()
    if matrix.data == want:
        return
    got_values = load(matrix).astype(np.float64)
    want_values = convert(product.exact(), BY_NUMBER[matrix.type]).astype(np.float64)
    assert len(matrix.data) == len(want), f"got {len(matrix.data)} bytes, want {len(want)}"
    wrong = np.argwhere(~(got_values == want_values))
    assert len(wrong) > 0, "the values are right, but other bytes differ (padding or signs of zero)"
    first = tuple(wrong[0])
    raise AssertionError(
        f"{len(wrong)} of {want_values.size} elements differ, first at {first}: "
        f"got {got_values[first]}, want {want_values[first]}"
    )


def check_within(got, want, bound):
    """Whether each element is within its own bound. NaN in any of the three fails."""
    assert got.shape == want.shape == bound.shape
    error = np.abs(got - want)
    wrong = np.argwhere(~(error <= bound))
    if len(wrong) > 0:
        first = tuple(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {want.size} elements are off, first at {first}: "
            f"got {got[first]!r}, want {want[first]!r} within {bound[first]!r}"
        )


def transposed_orders():
    """Every way to store one operand: order and transposition."""
    return [
        Layout(order=order, transpose=transpose)
        for order in (ROW_MAJOR, COLUMN_MAJOR)
        for transpose in (False, True)
    ]
