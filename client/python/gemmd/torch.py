# SPDX-License-Identifier: Apache-2.0
"""PyTorch models whose products run on a daemon.

::

    with gemmd.torch.offload(client, device="sim:sm_90", kernel="mma.m16n8k16.f32.bf16.bf16.f32"):
        logits = model(tokens)

Within the context `torch.nn.functional.linear` (and so `torch.nn.Linear`), `torch.matmul`, `torch.mm`,
`torch.bmm`, `torch.addmm` and ``@`` run on the daemon; everything else stays with PyTorch, including products inside a
single PyTorch function, such as `scaled_dot_product_attention`. Weights are uploaded once and stay on the daemon.
Products have no gradients, so the context implies `torch.no_grad`. Needs ``torch``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Self, Unpack

import ml_dtypes
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from gemmd.checks import flag, no_effect
from gemmd.client import Client
from gemmd.elements import named_element
from gemmd.errors import NotFound, check_names, refusal
from gemmd.prepare import quantize
from gemmd.product import ProductOptions
from gemmd.remote import RemoteTensor
from gemmd.requests import PutOptions

# PyTorch types that NumPy has only through ml_dtypes, with the integer type of the same width.
_FOREIGN = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2)),
}
# Types whose products mean the same in PyTorch and on the daemon.
_OFFLOADED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
}
_QUANTIZED = ("e4m3", "e5m2", "s8")


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as an array, with ml_dtypes types that NumPy lacks; shares memory if possible."""
    tensor = tensor.detach().cpu()
    if tensor.dtype not in _FOREIGN:
        return tensor.numpy()
    plain, dtype = _FOREIGN[tensor.dtype]
    return tensor.view(plain).numpy().view(dtype)


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """An array as a tensor that shares its memory."""
    for foreign, (plain, dtype) in _FOREIGN.items():
        if array.dtype == dtype:
            return torch.from_numpy(
                array.view(f"{'iu'[plain is torch.uint8]}{dtype.itemsize}")
            ).view(foreign)
    return torch.from_numpy(array)


class _Weights:
    """Weights on the daemon, each kept while its tensor lives unchanged."""

    def __init__(self, upload: Callable[[torch.Tensor], RemoteTensor]) -> None:
        self._upload = upload
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, int, RemoteTensor]] = {}

    def find(self, weight: torch.Tensor) -> RemoteTensor:
        known = self._known.get(id(weight))
        if known is not None:
            same, version, address, remote = known
            is_same = same() is weight and address == weight.data_ptr()
            if is_same and version == weight._version:
                return remote
        return self._bring(weight)

    def use(self, weight: torch.Tensor, product: Callable[[RemoteTensor], torch.Tensor]) -> torch.Tensor:
        """A product with a weight. If the weight's lease has expired, uploads it once more."""
        try:
            return product(self.find(weight))
        except NotFound as error:
            if "tensor" not in (error.field or ""):
                raise
        return product(self._bring(weight))

    def _bring(self, weight: torch.Tensor) -> RemoteTensor:
        remote = self._upload(weight)
        forget = weakref.ref(weight, lambda _, key=id(weight): self._known.pop(key, None))
        self._known[id(weight)] = (forget, weight._version, weight.data_ptr(), remote)
        return remote


class Offload(TorchFunctionMode):
    """The context manager returned by `offload`.

    Attributes:
        products: the number of products computed by the daemon.
    """

    def __init__(
        self,
        client: Client,
        type: str | None,
        matmul_type: str | None,
        sparse: bool,
        options: ProductOptions,
    ) -> None:
        super().__init__()
        _check_type("type", type, (*_TYPES, *_QUANTIZED))
        _check_type("matmul_type", matmul_type, tuple(_TYPES))
        if matmul_type is not None and type not in _QUANTIZED:
            raise refusal("matmul_type", repr(matmul_type), f"none beside type {type!r}")
        if sparse and type in (*_QUANTIZED, "f64"):
            raise refusal("sparse", "True", f"False beside type {type!r}")
        self.products = 0
        self._client = client
        self._type = type
        self._is_sparse = sparse
        # Whether other products read the weights that `linear` has uploaded.
        self._shares_weights = type not in _QUANTIZED and not sparse
        self._plain_type = matmul_type if type in _QUANTIZED else type
        self._options = options
        self._weights = _Weights(self._upload)
        self._no_grad = torch.no_grad()

    def __enter__(self) -> Self:
        self._no_grad.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._no_grad.__exit__(*error)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        product = _PRODUCTS.get(func)
        tensors = [*args, *kwargs.values()]
        if product is None or not all(_is_offloaded(each) for each in tensors):
            return func(*args, **kwargs)
        try:
            return product(self, *args, **kwargs)
        except _OnlyForTorch:
            return func(*args, **kwargs)

    def linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """input @ weight.T + bias, with all rows of the input in one product."""
        if weight.ndim != 2 or input.ndim == 0 or 0 in (*input.shape, *weight.shape):
            raise _OnlyForTorch
        rows = input.reshape(-1, input.shape[-1])
        if self._prunes(input):
            # Only A may be sparse, so this is the transposed product.
            column = None if bias is None else bias.reshape(-1, 1)
            operand = self._plain(rows).T
            result = self._weights.use(
                weight, lambda remote: self._run(remote, operand, input.dtype, column).T
            )
            return result.reshape(*input.shape[:-1], weight.shape[0])
        operand = self._convert(rows) if self._type in _QUANTIZED else self._plain(rows)
        result = self._weights.use(
            weight, lambda remote: self._run(operand, remote.T, input.dtype, bias)
        )
        return result.reshape(*input.shape[:-1], weight.shape[0])

    def matmul(self, input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """input @ other, in `matmul_type` if the type of `linear` has 8 bits."""
        if input.ndim == 0 or other.ndim == 0 or input.dtype != other.dtype:
            raise _OnlyForTorch
        if 0 in (*input.shape, *other.shape):
            raise _OnlyForTorch
        is_weight = isinstance(other, torch.nn.Parameter) and other.ndim == 2
        if is_weight and self._shares_weights:
            return self._weights.use(
                other, lambda remote: self._run(self._plain(input), remote, input.dtype)
            )
        return self._run(self._plain(input), self._plain(other), input.dtype)

    def addmm(
        self,
        input: torch.Tensor,
        mat1: torch.Tensor,
        mat2: torch.Tensor,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> torch.Tensor:
        """beta * input + alpha * mat1 @ mat2, if the input is a vector added to every row."""
        if beta != 1 or alpha != 1 or input.ndim != 1 or input.shape[0] != mat2.shape[-1]:
            raise _OnlyForTorch
        if 0 in (*mat1.shape, *mat2.shape) or mat1.dtype != mat2.dtype:
            raise _OnlyForTorch
        is_weight = isinstance(mat2, torch.nn.Parameter) and self._shares_weights
        run = functools.partial(self._run, self._plain(mat1), dtype=mat1.dtype, bias=input)
        return self._weights.use(mat2, run) if is_weight else run(self._plain(mat2))

    def _run(
        self, a: Any, b: Any, dtype: torch.dtype, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        options = ProductOptions(**self._options)
        options["out_type"] = next(name for name, each in _TYPES.items() if each is dtype)
        if bias is not None:
            options["bias"] = to_array(bias)
        if self._plain_type == "tf32":
            # Resident tensors and 8-bit operands have their own types.
            if isinstance(a, np.ndarray):
                options["a_type"] = "tf32"
            if isinstance(b, np.ndarray):
                options["b_type"] = "tf32"
        result = self._client.matmul(a, b, **options)
        self.products += 1
        return to_tensor(np.ascontiguousarray(result))

    def _plain(self, tensor: torch.Tensor) -> np.ndarray:
        """The operand in the requested type, or its own."""
        return to_array(tensor.to(_TYPES.get(self._plain_type or "", tensor.dtype)))

    def _prunes(self, operand: torch.Tensor) -> bool:
        """Whether `linear` multiplies weights in 2:4 form; f64 has none."""
        return self._is_sparse and _TYPES.get(self._plain_type or "", operand.dtype) != torch.float64

    def _convert(self, matrix: torch.Tensor) -> Any:
        """An 8-bit operand with one factor per row."""
        return quantize(
            to_array(matrix.to(torch.float32)), named_element(self._type, "type").name, per="row"
        )

    def _upload(self, weight: torch.Tensor) -> RemoteTensor:
        if self._type in _QUANTIZED:
            return self._client.put(self._convert(weight))
        options = PutOptions(element_type="tf32") if self._plain_type == "tf32" else PutOptions()
        if self._prunes(weight):
            options["sparse"] = True
        return self._client.put(self._plain(weight), **options)


class _OnlyForTorch(Exception):
    """The daemon does not support this product."""


def _check_type(field: str, type: str | None, known: tuple[str, ...]) -> None:
    if type is not None and type not in known:
        raise refusal(field, repr(type), "one of " + ", ".join(known))


def _is_offloaded(argument: Any) -> bool:
    return not isinstance(argument, torch.Tensor) or argument.dtype in _OFFLOADED


_PRODUCTS: dict[Any, Callable[..., torch.Tensor]] = {
    torch.nn.functional.linear: Offload.linear,
    torch.addmm: Offload.addmm,
    torch.Tensor.addmm: Offload.addmm,
    **dict.fromkeys(
        (
            torch.matmul,
            torch.mm,
            torch.bmm,
            torch.Tensor.matmul,
            torch.Tensor.mm,
            torch.Tensor.bmm,
            torch.Tensor.__matmul__,
        ),
        Offload.matmul,
    ),
}


def offload(
    client: Client,
    *,
    type: str | None = None,
    matmul_type: str | None = None,
    sparse: bool = False,
    **options: Unpack[ProductOptions],
) -> Offload:
    """A context manager in which products run on the client's daemon.

    Args:
        client: a `gemmd.Client`; the weights are tensors of its session.
        type: the type of operands: ``f64``, ``f32``, ``f16``, ``bf16``, ``tf32``; ``e4m3``, ``e5m2``,
            ``s8`` for `linear` only, with one factor per row of inputs and weights. None: the tensors' type.
        matmul_type: with an 8-bit `type`, the type of operands of all other products: a chip without an f32 instruction
            needs ``tf32``, ``bf16`` or ``f16``. None: the tensors' type.
        sparse: whether `linear` prunes its weights to 2:4 and multiplies them in that form: of each four along the inputs
            it keeps the two of the largest magnitudes (of tf32 and f32: one of two). Not for 8-bit types and f64.
        options: options of every product: ``device``, ``kernel``, ``deterministic`` and so on.

    Results have the same type as in PyTorch.
    """
    check_names(options.keys(), ProductOptions.__annotations__.keys())
    no_effect(options, ["a_type", "b_type", "bias", "out", "out_type"], "offload, which takes PyTorch's own")
    return Offload(client, type, matmul_type, flag("sparse", sparse), options)
