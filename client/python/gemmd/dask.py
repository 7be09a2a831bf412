# SPDX-License-Identifier: Apache-2.0
"""Products of Dask arrays by blocks, over several daemons.

::

    import dask.array as da
    import gemmd.dask

    d = gemmd.dask.matmul(a, b, ["10.0.0.1:8470", "10.0.0.2:8470"]).compute()

Dask schedules and moves the blocks; each worker sends its products to the daemon with the fewest of its products in
progress. Needs ``dask[array]``.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Unpack, cast

import dask.array as da
import numpy as np

from gemmd.address import check_address
from gemmd.channel import ClientOptions
from gemmd.checks import refused, text
from gemmd.client import Client
from gemmd.elements import element_of, named_element
from gemmd.errors import Unavailable, check_names, refusal
from gemmd.product import ProductOptions

# Options of a whole product that also apply to each of its blocks.
_OPTIONS = frozenset(
    {
        "a_type",
        "accumulation_type",
        "activation",
        "alpha",
        "b_type",
        "batch_invariant",
        "bit_operation",
        "deterministic",
        "device",
        "fast_accumulation",
        "kernel",
        "out_type",
        "priority",
        "verify",
    }
)


_INTEGERS = frozenset({"s8", "u8", "s4", "u4", "b1"})


class _Daemons:
    """The clients of one worker process."""

    def __init__(self, addresses: Sequence[str], options: ClientOptions) -> None:
        self._clients = [Client(address, **options) for address in addresses]
        # Ordered from a daemon that depends on the process, so that workers begin with different daemons.
        self._under_way = {
            (number + os.getpid()) % len(addresses): 0 for number in range(len(addresses))
        }
        self._lock = threading.Lock()

    def run(self, product: Callable[[Client], np.ndarray]) -> np.ndarray:
        """Computes on the least busy daemon, or on another if that cannot be reached."""
        tried: set[int] = set()
        while True:
            with self._lock:
                left = [number for number in self._under_way if number not in tried]
                chosen = min(left, key=self._under_way.__getitem__)
                # Moves the chosen daemon to the end, so that equally busy daemons take turns.
                self._under_way[chosen] = self._under_way.pop(chosen) + 1
            try:
                return product(self._clients[chosen])
            except Unavailable:
                tried.add(chosen)
                if len(tried) == len(self._clients):
                    raise
            finally:
                with self._lock:
                    self._under_way[chosen] -= 1


def _hashable(value: Any) -> Any:
    """Converts lists, such as metadata, to tuples."""
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


@functools.lru_cache(maxsize=16)
def _daemons(_process: int, addresses: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> _Daemons:
    return _Daemons(addresses, cast(ClientOptions, dict(options)))


def _result_dtype(a: np.dtype, b: np.dtype, options: ProductOptions) -> np.dtype:
    """The dtype of D, as the server chooses it."""
    for name in ("out_type", "accumulation_type"):
        if options.get(name) is not None:
            return named_element(options[name], name).dtype
    names = {element_of(np.dtype(a), "a").name, element_of(np.dtype(b), "b").name}
    if "f64" in names:
        return np.dtype(np.float64)
    return np.dtype(np.int32 if names <= _INTEGERS else np.float32)


def _wraps(a: np.ndarray, b: np.ndarray, options: ProductOptions) -> bool:
    """Whether sums are integers, which wrap modulo 2^32; only the conversion to D saturates."""
    accumulation = options.get("accumulation_type")
    names = {element_of(a.dtype, "a").name, element_of(b.dtype, "b").name}
    return names <= _INTEGERS and accumulation in (None, "s32")


def _block(
    a_blocks: list[np.ndarray],
    b_blocks: list[np.ndarray],
    *,
    daemons: tuple[tuple[str, ...], tuple[tuple[str, Any], ...]],
    options: ProductOptions,
) -> np.ndarray:
    """One block of D: adds its products along k in order, so that the same blocks always give the same bits."""
    pairs = list(zip(a_blocks, b_blocks, strict=True))
    is_sum = len(pairs) > 1
    compute = _wrapping_sum if is_sum and _wraps(a_blocks[0], b_blocks[0], options) else _sum
    return _daemons(os.getpid(), *daemons).run(lambda client: compute(client, pairs, cast(dict[str, Any], options)))


_Pairs = list[tuple[np.ndarray, np.ndarray]]


def _split(options: dict[str, Any], *of_the_sum: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options for each product, and options for the sum only."""
    last = {name: options[name] for name in of_the_sum if options.get(name) is not None}
    return {name: value for name, value in options.items() if name not in last}, last


def _product(client: Client, a: np.ndarray, b: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """One product. If k is 0, there are no sums, for which the server refuses a checksum."""
    if a.shape[1] == 0 and str(options.get("verify")).lower() == "checksum":
        options = {name: value for name, value in options.items() if name != "verify"}
    return client.matmul(a, b, **cast(ProductOptions, options))


def _sum(client: Client, pairs: _Pairs, options: dict[str, Any]) -> np.ndarray:
    """Adds each product to the sum of the previous ones."""
    each, last = _split(options, "activation", "out_type")
    total = None
    for number, (a, b) in enumerate(pairs):
        ending = last if number == len(pairs) - 1 else {}
        total = _product(client, a, b, {"c": total, **each, **ending})
    assert total is not None
    return total


def _wrapping_sum(client: Client, pairs: _Pairs, options: dict[str, Any]) -> np.ndarray:
    """Integer sums that wrap, as in a single product: passing the sum as C would saturate it."""
    each, last = _split(options, "activation", "alpha", "out_type")
    total = functools.reduce(np.add, (_product(client, a, b, each) for a, b in pairs))
    if not last:
        return total
    a, b = pairs[0]
    nothing = a[:, :0], b[:0]  # With k = 0, D is just the converted sum.
    ending = {"c": total, "beta": last.pop("alpha", 1), **each, **last}
    return _product(client, *nothing, ending)


def matmul(
    a: Any,
    b: Any,
    addresses: Sequence[str],
    *,
    client_options: ClientOptions | None = None,
    **options: Unpack[ProductOptions],
) -> da.Array:
    """A times B, two Dask arrays of 2 dimensions, lazily.

    Args:
        a, b: anything that `dask.array.asarray` takes.
        addresses: addresses of the daemons, reachable from each worker.
        client_options: options of the workers' clients.
        options: options of `gemmd.Client.matmul` that apply to every block; ``activation`` and ``out_type`` apply to
            the sum.
    """
    if isinstance(addresses, (str, bytes)):
        raise refused("addresses", addresses, "a list of them")
    if not addresses:
        raise refusal("addresses", "none", "one or more")
    for address in addresses:
        check_address(text("address", address))
    check_names((client_options or {}).keys(), ClientOptions.__annotations__.keys())
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise refusal("options", ", ".join(sorted(unknown)), ", ".join(sorted(_OPTIONS)))
    a, b = da.asarray(a), da.asarray(b)
    if a.ndim != 2 or b.ndim != 2:
        raise refusal("a and b", f"{a.ndim} and {b.ndim} dimensions", "2 each")
    daemons = (tuple(addresses), tuple((name, _hashable(value)) for name, value in sorted((client_options or {}).items())))
    dtype = _result_dtype(a.dtype, b.dtype, options)
    return da.blockwise(
        _block,
        "ij",
        a,
        "ik",
        b,
        "kj",
        concatenate=False,
        dtype=dtype,
        meta=np.empty((0, 0), dtype),
        daemons=daemons,
        options=dict(options),
    )
