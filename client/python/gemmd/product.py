# SPDX-License-Identifier: Apache-2.0
"""Builds requests from NumPy arrays, and arrays from answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from gemmd.blocks import BlockScale
from gemmd.checks import array as checked_array
from gemmd.checks import flag, no_effect, real, refused, text
from gemmd.elements import Element, named_element, numbered_element, typed
from gemmd.errors import (
    WHERE_TOO_LONG,
    DataLoss,
    InvalidArgument,
    ResourceExhausted,
    check_names,
    refusal,
)
from gemmd.memory import messages
from gemmd.operands import (
    COLUMN_MAJOR,
    ROW_MAJOR,
    array_of,
    as_matrix,
    bytes_of,
    lines_of,
    operand_of,
)
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2
from gemmd.wire import Buffer, nested, without

# Fields sent without a copy: their numbers, and the numbers of their bytes within them.
_LENT_NUMBERS = {
    name: (number, (tensors_pb2.Bias if name == "bias" else tensors_pb2.Operand).DATA_FIELD_NUMBER)
    for name in ("a", "b", "c", "bias")
    for number in (gemm_pb2.MultiplyRequest.DESCRIPTOR.fields_by_name[name].number,)
}
# The path of D's bytes in an answer.
ANSWER_DATA = gemm_pb2.MultiplyResponse.D_FIELD_NUMBER, tensors_pb2.Matrix.DATA_FIELD_NUMBER
# A shorter answer is parsed as a whole: separating D costs more than copying it.
_LONG_BYTES = 32 << 10


class ProductOptions(TypedDict, total=False):
    """Everything about a product except A and B; all are optional.

    D = activation(alpha * A B + beta * C + bias), converted to ``out_type``.
    """

    c: Any  #: An array or a tensor of D's shape, or one matrix for the whole batch.
    alpha: float  #: 1 unless given.
    beta: float  #: 1 if C is given.
    bias: npt.ArrayLike  #: n values, added to every row; or an m x 1 array, added to every column.
    activation: str  #: ``relu``, ``gelu_erf``, ``gelu_tanh`` or ``silu``.
    out: np.ndarray  #: Receives D; determines D's type and order.
    out_type: Any  #: A dtype or a name such as ``bf16``. The accumulation type unless given.
    order: str  #: ``C`` or ``F``, the order of each matrix of D. ``C`` unless given.
    writable: bool  #: False: D may be a view of the received message, which saves a copy.
    accumulation_type: Any  #: The least precise type in which products may be summed.
    #: True: the tensor core may sum 8-bit floats with the few bits that it keeps.
    fast_accumulation: bool
    a_type: Any  #: For types without a dtype: ``tf32``.
    b_type: Any
    #: For an 8-bit A: one factor, or one per row; or block factors.
    a_scale: npt.ArrayLike | BlockScale
    #: For an 8-bit B: one factor, or one per column; or block factors.
    b_scale: npt.ArrayLike | BlockScale
    bit_operation: str  #: ``and`` or ``xor``, for arrays of bool.
    kernel: str  #: A name from `Client.kernels`; the server chooses unless given.
    device: str  #: A name from `Client.devices`; the server chooses unless given.
    deterministic: bool  #: True: always the same bits; by default, floats on ``cpu`` may be joined.
    batch_invariant: bool  #: True: only kernels whose rows of D depend neither on m nor the batch.
    priority: str  #: ``normal`` or ``low``.
    verify: str  #: How the server checks D: ``none``, ``sampled[:RATE]``, ``checksum``, ``duplicate``.
    request_id: str  #: Repeated in the answer and in the server's log.


@dataclass
class Product:
    """D, and how the server computed it.

    Attributes:
        array: D; the array ``out`` if given. None if D stayed on the server.
        kernel, device: what computed D; empty if D is empty.
        timing: durations of the stages in nanoseconds (gemmd.v1.Timing).
        operations: multiplications and additions, 2*m*n*k for each matrix.
        bytes_read, bytes_written: bytes of the operands as sent, and of D.
        request_id: that of the request.
        tensor_info: the tensor with D, if D stayed on the server.
        verification: the result of the server's check of D (gemmd.v1.Verification), if any. A wrong D is never sent:
            `DataLoss`.
        joined: the number of products that ran in one launch, including this one.
    """

    array: np.ndarray | None
    kernel: str
    device: str
    timing: gemm_pb2.Timing
    operations: int
    bytes_read: int
    bytes_written: int
    request_id: str
    tensor_info: resident_pb2.TensorInfo | None = field(default=None, repr=False)
    verification: gemm_pb2.Verification | None = field(default=None, repr=False)
    joined: int = 1


@dataclass
class Request:
    """A request without its matrices' bytes, and how to read its answer."""

    message: gemm_pb2.MultiplyRequest
    lent: dict[str, tuple[Any, memoryview]]
    shape: tuple[int, ...]  # D's, as NumPy has it.
    out: np.ndarray | None
    writable: bool
    _pieces: list[Buffer] | None = field(default=None, repr=False)

    def pieces(self) -> list[Buffer]:
        """The serialized message as consecutive pieces; cached."""
        if self._pieces is None:
            self._pieces = [self.message.SerializeToString()]
            for name, (part, data) in self.lent.items():
                outer, inner = _LENT_NUMBERS[name]
                self._pieces += nested(outer, part.SerializeToString(), inner, data)
        return self._pieces

    def with_bytes(self, a: memoryview, b: memoryview) -> Request:
        """The same request for other arrays. Shares this request's messages, which must not change."""
        head, a_head, _, b_head, _ = self.pieces()
        lent = {"a": (self.lent["a"][0], a), "b": (self.lent["b"][0], b)}
        return Request(self.message, lent, self.shape, None, self.writable, [head, a_head, a, b_head, b])

    def set_request_id(self, request_id: str) -> None:
        """Changes the id that the answer repeats."""
        self.message.request_id, self._pieces = request_id, None

    def forget_pieces(self) -> None:
        """The message has changed."""
        self._pieces = None

    @property
    def nbytes(self) -> int:
        """The size of the serialized message."""
        return sum(map(len, self.pieces()))

    @property
    def moved_bytes(self) -> int:
        """The bytes sent and received, if D has 4-byte elements."""
        return self.nbytes + 4 * math.prod(self.shape)

    def check_size(self, max_bytes: int) -> None:
        """Raises ResourceExhausted if the message is longer, as gRPC would only after copying it."""
        size = self.nbytes
        if size > max_bytes:
            raise ResourceExhausted(
                f"request: got {size} bytes, want at most {max_bytes}: {WHERE_TOO_LONG}"
            )

    def serialize(self) -> bytes:
        """The message in one piece. This is the only copy of the matrices in Python code."""
        return messages.join(self.pieces())

    def result(self, answer: Answer) -> Product:
        """The result for the caller."""
        response = answer.response
        has_tensor = response.HasField("tensor")
        return Product(
            array=None if has_tensor else self.array(answer),
            kernel=response.kernel,
            device=response.device,
            timing=response.timing,
            operations=response.operations,
            bytes_read=response.bytes_read,
            bytes_written=response.bytes_written,
            request_id=response.request_id,
            tensor_info=response.tensor if has_tensor else None,
            verification=response.verification if response.HasField("verification") else None,
            joined=max(response.joined, 1),
        )

    def array(self, answer: Answer) -> np.ndarray:
        """Only D, if the answer contains it."""
        d = answer.response.d
        shape = (d.batch, d.rows, d.columns)
        if math.prod(shape) != math.prod(self.shape):
            raise DataLoss(f"d: got {shape}, want {self.shape}")
        array = array_of(answer.data, numbered_element(d.type), d.order, shape).reshape(self.shape)
        if self.out is not None:
            np.copyto(self.out, array)
            return self.out
        is_own = array.flags.writeable and array.flags.aligned
        if not self.writable:
            array.flags.writeable = False
        return array.copy(order="K") if self.writable and not is_own else array


@dataclass
class Answer:
    """An answer without its matrix's bytes."""

    response: gemm_pb2.MultiplyResponse
    data: memoryview

    @staticmethod
    def parse(message: Buffer) -> Answer:
        """Parses an answer; the matrix stays a view of the message."""
        view = memoryview(message)
        if view.nbytes < _LONG_BYTES:
            response = gemm_pb2.MultiplyResponse.FromString(bytes(message))
            return Answer(response, memoryview(response.d.data))
        rest, d = without(view, gemm_pb2.MultiplyResponse.D_FIELD_NUMBER)
        response = gemm_pb2.MultiplyResponse.FromString(rest)
        if d is None:
            return Answer(response, memoryview(b""))
        matrix, data = without(d, tensors_pb2.Matrix.DATA_FIELD_NUMBER)
        response.d.MergeFromString(matrix)
        return Answer(response, memoryview(b"") if data is None else data)


def _choice(kind: Any, prefix: str, name: object, option: str) -> Any:
    """The value of an enumeration, named by the user without its prefix."""
    full = f"{prefix}_{name}".upper()
    if full not in kind.keys() or full.endswith("UNSPECIFIED"):
        names = [key.removeprefix(prefix + "_").lower() for key in kind.keys()]
        raise refused(option, name, "one of " + ", ".join(sorted(set(names) - {"unspecified"})))
    return kind.Value(full)


def _set_verify(verify: gemm_pb2.Verify, text: object) -> None:
    """``checksum``, or ``sampled:0.01``."""
    name, has_rate, rate = str(text).partition(":")
    verify.mode = _choice(gemm_pb2.VerifyMode, "VERIFY_MODE", name, "verify")
    if has_rate:
        try:
            verify.rate = float(rate)
        except ValueError:
            verify.rate = 0
        if name != "sampled" or not 0 < verify.rate <= 1:
            raise refusal("verify", repr(text), "sampled:RATE with a rate above 0 and at most 1")


def _order(array: np.ndarray) -> tensors_pb2.Order:
    """The order of D that best fits an array."""
    if array.ndim < 2 or abs(array.strides[-2]) >= abs(array.strides[-1]):
        return ROW_MAJOR
    return COLUMN_MAJOR


def _check_takes(out: np.ndarray, element: Element) -> None:
    """Checks that D can be written to an array, before computing it."""
    try:
        np.copyto(np.empty(0, out.dtype), np.empty(0, element.dtype))
    except TypeError:
        raise refusal("out.dtype", out.dtype, f"one to which {element.dtype} can be converted") from None


def _set_output(
    output: tensors_pb2.OutputSpec, shape: tuple[int, ...], options: ProductOptions
) -> None:
    out, out_type = options.get("out"), options.get("out_type")
    if out is not None:
        no_effect(options, ["order", "writable"], "out")
    match options.get("order", "C"):
        case "C":
            output.order = ROW_MAJOR
        case "F":
            output.order = COLUMN_MAJOR
        case order:
            raise refusal("order", repr(order), "C or F")
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise refused("out", out, "an array")
        if out.shape != shape:
            raise refusal("out.shape", out.shape, str(shape))
        if not out.flags.writeable:
            raise refusal("out", "a read-only array", "one that can be written")
        output.order = _order(out)
        out_type = out.dtype if out_type is None else out_type
    if out_type is not None:
        element = named_element(out_type, "out_type")
        output.type = element.number
        if out is not None:
            _check_takes(out, element)


# The check of each option, and its name in the message.
_PLAIN_OPTIONS: dict[str, tuple[Callable[[str, Any], Any], str]] = {
    "fast_accumulation": (flag, "fast_accumulation"),
    "deterministic": (flag, "require_deterministic"),
    "batch_invariant": (flag, "require_batch_invariant"),
    "kernel": (text, "kernel"),
    "device": (text, "device"),
    "request_id": (text, "request_id"),
}


def _set_choices(message: gemm_pb2.MultiplyRequest, options: ProductOptions) -> None:
    if "alpha" in options:
        message.alpha = real("alpha", options["alpha"])
    if "activation" in options:
        name = options["activation"]
        message.activation = _choice(gemm_pb2.Activation, "ACTIVATION", name, "activation")
    if "bit_operation" in options:
        name = options["bit_operation"]
        message.bit_operation = _choice(
            gemm_pb2.BitOperation, "BIT_OPERATION", name, "bit_operation"
        )
    if "priority" in options:
        message.priority = _choice(gemm_pb2.Priority, "PRIORITY", options["priority"], "priority")
    if options.get("verify") is not None:
        _set_verify(message.verify, options["verify"])
    if options.get("accumulation_type") is not None:
        element = named_element(options["accumulation_type"], "accumulation_type")
        message.accumulation_type = element.number
    for name, (check, field_name) in _PLAIN_OPTIONS.items():
        if name in options:
            setattr(message, field_name, check(name, options[name]))


def _lend_bias(request: Request, bias: npt.ArrayLike, m: int, n: int) -> None:
    array, element = typed(checked_array("bias", bias), None, "bias")
    if array.shape in ((n,), (1, n)):
        axis = tensors_pb2.BIAS_AXIS_COLUMNS
    elif array.shape == (m, 1):
        axis = tensors_pb2.BIAS_AXIS_ROWS
    else:
        raise refusal("bias.shape", array.shape, f"({n},) or ({m}, 1)")
    _, lines = lines_of(array.reshape(1, 1, -1))
    message = tensors_pb2.Bias(type=element.number, axis=axis)
    request.lent["bias"] = (message, bytes_of(lines, element))


def _lend(request: Request, name: str, message: tensors_pb2.Operand, data: memoryview | None):
    """Adds an operand to the request; its bytes, if any, stay outside the message."""
    if data is None:
        getattr(request.message, name).CopyFrom(message)
    else:
        request.lent[name] = (message, data)


def _leading(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The leading (batch) shape of D."""
    if len(a) == len(b) == 2:
        return ()
    try:
        return np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise refusal("b.shape", b, f"a batch that goes with {a}") from None


def build_request(a: Any, b: Any, options: ProductOptions) -> Request:
    """The request for a product, in the shapes of `numpy.matmul`.

    Leading dimensions form a batch and are broadcast; a matrix used for a whole batch is sent once. Raises
    InvalidArgument if shapes contradict each other; the server checks the rest.
    """
    check_names(options.keys(), ProductOptions.__annotations__.keys())
    a, a_is_vector = as_matrix(a, "a", vector_is_column=False)
    b, b_is_vector = as_matrix(b, "b", vector_is_column=True)
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k:
        raise refusal("b.shape", tuple(b.shape), f"{k} rows, as many as A has columns")
    leading = _leading(tuple(a.shape), tuple(b.shape))
    shape = (*leading, *(() if a_is_vector else (m,)), *(() if b_is_vector else (n,)))

    message = gemm_pb2.MultiplyRequest(m=m, n=n, k=k)
    if leading:
        message.batch = math.prod(leading)
    request = Request(message, {}, shape, options.get("out"), flag("writable", options.get("writable", True)))
    for name, operand in (("a", a), ("b", b)):
        type_name, scale = options.get(f"{name}_type"), options.get(f"{name}_scale")
        _lend(request, name, *operand_of(operand, leading, type_name, scale, name))
    beta = None if options.get("beta") is None else real("beta", options["beta"])
    if options.get("c") is not None:
        c, _ = as_matrix(options["c"], "c", vector_is_column=b_is_vector and not a_is_vector)
        if c.shape[-2:] != (m, n):
            raise refusal("c.shape", tuple(c.shape), f"{m} x {n}")
        _lend(request, "c", *operand_of(c, leading, None, None, "c"))
        message.beta = 1.0 if beta is None else beta
    elif beta:
        raise InvalidArgument("c: got none, want one where beta is not 0")
    if options.get("bias") is not None:
        _lend_bias(request, options["bias"], m, n)
    _set_choices(message, options)
    _set_output(message.d, shape, options)
    return request


# Cached requests without their arrays, for reuse with the same shapes, types and options.
_known: dict[tuple[Any, ...], Request] = {}
_MAX_KNOWN = 256


def _key_of(a: Any, b: Any, options: ProductOptions) -> tuple[Any, ...] | None:
    """The cache key: equal for requests that differ only in the elements of A and B. None if other differences are
    possible: arrays with gaps, options that are objects, or numbers, which compare equal across types."""
    for array in (a, b):
        if type(array) is not np.ndarray or not array.flags.c_contiguous:
            return None
    for value in options.values():
        if type(value) is not str and type(value) is not bool:
            return None
    return (a.shape, a.dtype, b.shape, b.dtype, *options.items())


def _remember(key: tuple[Any, ...], request: Request, a: np.ndarray, b: np.ndarray) -> None:
    """Caches a request if its operands are sent as the unchanged bytes of their arrays."""
    if request.message.request_id:  # Request ids differ.
        return
    for name, array in (("a", a), ("b", b)):
        part, data = request.lent[name]
        if numbered_element(part.type).bits < 8 or array.dtype.byteorder == ">" or len(data) != array.nbytes:
            return
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    nothing = memoryview(b"")
    _known[key] = request.with_bytes(nothing, nothing)


def request_for(a: Any, b: Any, options: ProductOptions) -> Request:
    """As `build_request`, but several times as fast if an equal product was requested before. The request's messages
    must not be changed."""
    key = _key_of(a, b, options)
    if key is None:
        return build_request(a, b, options)
    known = _known.get(key)
    if known is None:
        request = build_request(a, b, options)
        _remember(key, request, a, b)
        return request
    return known.with_bytes(a.reshape(-1).view(np.uint8).data, b.reshape(-1).view(np.uint8).data)
