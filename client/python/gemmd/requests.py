# SPDX-License-Identifier: Apache-2.0
"""Requests of both clients, and options of their tensor calls."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from gemmd.checks import flag, no_effect, real, refused, text
from gemmd.errors import check_names
from gemmd.part import OwnedTensor, TensorView
from gemmd.product import ProductOptions, Request, build_request
from gemmd.v1 import registry_pb2, resident_pb2, tensors_pb2

_NS = 1_000_000_000
_LONGEST_LEASE_S = 9_000_000_000  # In nanoseconds, fits 64 bits.


class KeepOptions(TypedDict, total=False):
    """How a new tensor is kept; all are optional."""

    name: str  #: Replaces the session's tensor of that name.
    pinned: bool  #: Kept until deleted, regardless of lease and session.
    lease: float | None  #: Seconds from last use to deletion; None: the server's default.


class PutOptions(KeepOptions, total=False):
    """Options of an upload; all are optional."""

    sparse: bool  #: Prunes and packs the array to 2:4, for use as A.
    scale: Any  #: Factors of an 8-bit type: one, or one per row or column; or a `BlockScale` of rows along k.
    element_type: Any  #: For types without a dtype: ``tf32``.
    device: str  #: Copies the tensor there at once, not with the first product.
    sha256: bool  #: The server checks the bytes; none are sent if the session has them.
    restorable: bool  #: Puts it again once the server has lost it; keeps the array, which must not change.
    connections: int  #: 1 to 16; 0, the default: one for up to 8 MiB and four for more.


class ChainOptions(ProductOptions, KeepOptions, total=False):
    """Options of a product whose D stays on the server."""

    into: TensorView | None  #: D overwrites it; it must have D's type and shape.


def _lease_ns(lease: Any) -> int:
    """A lease in nanoseconds. A nonzero lease never rounds to 0, which means the server's default."""
    want = f"seconds from 0 (the server's own) to {_LONGEST_LEASE_S}"
    seconds = real("lease", lease, want, lambda s: 0 <= s <= _LONGEST_LEASE_S)
    return max(1, round(seconds * _NS)) if seconds else 0


def keep_message(options: KeepOptions) -> tensors_pb2.NewTensor:
    """How a new tensor is kept, as a message."""
    name, pinned, lease = options.get("name"), options.get("pinned"), options.get("lease")
    return tensors_pb2.NewTensor(
        name="" if name is None else text("name", name),
        pinned=False if pinned is None else flag("pinned", pinned),
        lease_ns=0 if lease is None else _lease_ns(lease),
    )


def chain_request(a: Any, b: Any, options: ChainOptions) -> Request:
    """The request for a product whose D stays on the server."""
    check_names(options.keys(), ChainOptions.__annotations__.keys())
    no_effect(options, ["out", "writable"], "a D that stays on the server")
    own = KeepOptions.__annotations__.keys() | {"into"}
    product = {name: value for name, value in options.items() if name not in own}
    request = build_request(a, b, cast(ProductOptions, product))
    into = options.get("into")
    if into is None:
        request.message.d.new_tensor.CopyFrom(keep_message(options))
    else:
        if not isinstance(into, TensorView):
            raise refused("into", into, "a tensor or a part of one")
        no_effect(options, [*KeepOptions.__annotations__, "order"], "into")
        request.message.d.tensor.CopyFrom(into.as_destination())
    return request


def explain_request(a: Any, b: Any, options: ProductOptions) -> registry_pb2.ExplainRequest:
    """The request to explain a product, without its elements."""
    request = build_request(a, b, options)
    for name, (part, _) in request.lent.items():
        getattr(request.message, name).CopyFrom(part)
    return registry_pb2.ExplainRequest(request=request.message)


def compress_request(
    tensor: OwnedTensor, mask: OwnedTensor | None, options: KeepOptions
) -> resident_pb2.CompressRequest:
    """The request for a 2:4 tensor."""
    check_names(options.keys(), KeepOptions.__annotations__.keys())
    for field, given in (("tensor", tensor), ("mask", mask)):
        if not isinstance(given, OwnedTensor) and (field == "tensor" or given is not None):
            raise refused(field, given, "all of a tensor on the server")
    request = resident_pb2.CompressRequest(tensor=tensor.ref, keep=keep_message(options))
    if mask is not None:
        request.mask.CopyFrom(mask.ref)
    return request


def keep_alive_request(
    ref: tensors_pb2.TensorRef, lease: float | None, pinned: bool | None
) -> resident_pb2.KeepAliveRequest:
    """The renewal of a lease."""
    request = resident_pb2.KeepAliveRequest(tensor=ref)
    if lease is not None:
        request.lease_ns = _lease_ns(lease)
    if pinned is not None:
        request.pinned = flag("pinned", pinned)
    return request


def tensor_ref(which: str | bytes) -> tensors_pb2.TensorRef:
    """A tensor by its name or its handle."""
    if isinstance(which, bytes):
        return tensors_pb2.TensorRef(handle=which)
    return tensors_pb2.TensorRef(name=text("tensor", which))
