# SPDX-License-Identifier: Apache-2.0
"""A product in terms of NumPy: arrays in, a request out; an answer in, an array out."""

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

# The fields that are lent: their numbers, and those of their bytes within them.
_LENT_NUMBERS = {
    name: (number, (tensors_pb2.Bias if name == "bias" else tensors_pb2.Operand).DATA_FIELD_NUMBER)
    for name in ("a", "b", "c", "bias")
    for number in (gemm_pb2.MultiplyRequest.DESCRIPTOR.fields_by_name[name].number,)
}
# Where D's bytes are in an answer.
ANSWER_DATA = gemm_pb2.MultiplyResponse.D_FIELD_NUMBER, tensors_pb2.Matrix.DATA_FIELD_NUMBER
# A shorter answer is parsed as a whole: taking it apart costs more than copying it.
_LONG_BYTES = 32 << 10


class ProductOptions(TypedDict, total=False):
    """Everything about a product beside A and B; each may be left out.

    D = activation(alpha * A B + beta * C + bias), converted to ``out_type``.
    """

    c: Any  #: An array or a tensor of D's shape, or one matrix for the whole batch.
    alpha: float  #: 1 unless given.
    beta: float  #: 1 where C is given.
    bias: npt.ArrayLike  #: n values, added to every row; or an m x 1 array, added to every column.
    activation: str  #: ``relu``, ``gelu_erf``, ``gelu_tanh`` or ``silu``.
    out: np.ndarray  #: D is written to it; its type is D's, and its order is asked for.
    out_type: Any  #: A dtype or a name such as ``bf16``. The accumulation type unless given.
    order: str  #: ``C`` or ``F``, the order of each matrix of D. ``C`` unless given.
    writable: bool  #: False: D may be a view of the received message, which saves a copy.
    accumulation_type: Any  #: The least precise type in which products may be added up.
    #: True: sums of 8-bit floats may be left to the tensor core, however few bits it keeps.
    fast_accumulation: bool
    a_type: Any  #: For arrays whose dtype says too little: ``tf32``.
    b_type: Any
    #: One factor, or one for each row of A, which is of an 8-bit type; or those of blocks.
    a_scale: npt.ArrayLike | BlockScale
    #: One factor, or one for each column of B, which is of an 8-bit type; or those of blocks.
    b_scale: npt.ArrayLike | BlockScale
    bit_operation: str  #: ``and`` or ``xor``, for arrays of bool.
    kernel: str  #: A name that `Client.kernels` gives; the server chooses unless given.
    device: str  #: A name that `Client.devices` gives; the server chooses unless given.
    deterministic: bool  #: True: always the same bits; by default floats on ``cpu`` may be joined with others.
    batch_invariant: bool  #: True: only kernels whose rows of D depend neither on m nor the batch.
    priority: str  #: ``normal`` or ``low``.
    verify: str  #: How the server checks D: ``none``, ``sampled[:RATE]``, ``checksum``, ``duplicate``.
    request_id: str  #: Comes back with the answer and is in the server's log.


@dataclass
class Product:
    """D, and what the server says about its making.

    Attributes:
        array: D; the array ``out`` where that was given. None where D stayed on the server.
        kernel, device: what computed it; empty where D is empty.
        timing: where the time went, in nanoseconds (gemmd.v1.Timing).
        operations: multiplications and additions, 2*m*n*k for each matrix.
        bytes_read, bytes_written: those of the operands as sent, and of D.
        request_id: that of the request.
        tensor_info: what D became, where it stayed on the server.
        verification: what the server's check of D came to (gemmd.v1.Verification), where there was
            one. A D that is wrong is never answered: `DataLoss`.
        joined: so many products ran as one launch, this one among them.
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
    """A request whose matrices are apart from it, and how its answer is to be read."""

    message: gemm_pb2.MultiplyRequest
    lent: dict[str, tuple[Any, memoryview]]
    shape: tuple[int, ...]  # D's, as NumPy has it.
    out: np.ndarray | None
    writable: bool
    _pieces: list[Buffer] | None = field(default=None, repr=False)

    def pieces(self) -> list[Buffer]:
        """The serialised message, in pieces that follow each other; made once."""
        if self._pieces is None:
            self._pieces = [self.message.SerializeToString()]
            for name, (part, data) in self.lent.items():
                outer, inner = _LENT_NUMBERS[name]
                self._pieces += nested(outer, part.SerializeToString(), inner, data)
        return self._pieces

    def with_bytes(self, a: memoryview, b: memoryview) -> Request:
        """The request for the same product of other arrays. It shares this one's messages, which stay as they are."""
        head, a_head, _, b_head, _ = self.pieces()
        lent = {"a": (self.lent["a"][0], a), "b": (self.lent["b"][0], b)}
        return Request(self.message, lent, self.shape, None, self.writable, [head, a_head, a, b_head, b])

    def set_request_id(self, request_id: str) -> None:
        """Changes what comes back with the answer."""
        self.message.request_id, self._pieces = request_id, None

    @property
    def nbytes(self) -> int:
        """The bytes of the serialised message."""
        return sum(map(len, self.pieces()))

    @property
    def moved_bytes(self) -> int:
        """The bytes that travel, both ways, if D has elements of 4 bytes."""
        return self.nbytes + 4 * math.prod(self.shape)

    def check_size(self, max_bytes: int) -> None:
        """Raises ResourceExhausted, as gRPC would once all of it has been copied, where the message is longer."""
        size = self.nbytes
        if size > max_bytes:
            raise ResourceExhausted(
                f"request: got {size} bytes, want at most {max_bytes}: {WHERE_TOO_LONG}"
            )

    def serialize(self) -> bytes:
        """The message in one piece. This is the one copy of the matrices that Python code makes."""
        return messages.join(self.pieces())

    def result(self, answer: Answer) -> Product:
        """What the caller gets of an answer."""
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
        """D alone, where the answer brings it."""
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
    """An answer whose matrix is apart from it."""

    response: gemm_pb2.MultiplyResponse
    data: memoryview

    @staticmethod
    def parse(message: Buffer) -> Answer:
        """Takes an answer apart; the matrix stays where it is in the message."""
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
    """The value of an enumeration that a user names without its prefix."""
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
    """The order of D that fits an array best."""
    if array.ndim < 2 or abs(array.strides[-2]) >= abs(array.strides[-1]):
        return ROW_MAJOR
    return COLUMN_MAJOR


def _check_takes(out: np.ndarray, element: Element) -> None:
    """Whether D can be written to an array, before it is computed."""
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


# How each of these is checked, and its name in the message.
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
    """Puts an operand into the request, or beside it where it has bytes."""
    if data is None:
        getattr(request.message, name).CopyFrom(message)
    else:
        request.lent[name] = (message, data)


def _leading(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the batch of D."""
    if len(a) == len(b) == 2:
        return ()
    try:
        return np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise refusal("b.shape", b, f"a batch that goes with {a}") from None


def build_request(a: Any, b: Any, options: ProductOptions) -> Request:
    """The request for a product, in the shapes of `numpy.matmul`.

    Leading dimensions are a batch and are broadcast; where one matrix serves a whole batch, it is
    sent once. Raises InvalidArgument where shapes contradict each other; what only the server can know
    is left to it.
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


# Requests that were made before, without their arrays, for further ones of the same shapes, types and options.
_known: dict[tuple[Any, ...], Request] = {}
_MAX_KNOWN = 256


def _key_of(a: Any, b: Any, options: ProductOptions) -> tuple[Any, ...] | None:
    """What two requests have in common that differ in the elements of A and B alone; None where there may be more to
    it: arrays with gaps, and options that are objects, or numbers, which compare equal across types."""
    for array in (a, b):
        if type(array) is not np.ndarray or not array.flags.c_contiguous:
            return None
    for value in options.values():
        if type(value) is not str and type(value) is not bool:
            return None
    return (a.shape, a.dtype, b.shape, b.dtype, *options.items())


def _remember(key: tuple[Any, ...], request: Request, a: np.ndarray, b: np.ndarray) -> None:
    """Keeps a request for others where its operands are sent as the very bytes of their arrays."""
    if request.message.request_id:  # Each has another one.
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
    """As `build_request`, several times as fast where an equal product was asked for before. The request's messages
    must stay as they are."""
    key = _key_of(a, b, options)
    if key is None:
        return build_request(a, b, options)
    known = _known.get(key)
    if known is None:
        request = build_request(a, b, options)
        _remember(key, request, a, b)
        return request
    return known.with_bytes(a.reshape(-1).view(np.uint8).data, b.reshape(-1).view(np.uint8).data)
