# SPDX-License-Identifier: Apache-2.0
"""Products of Dask arrays by blocks, over several daemons.

::

    import dask.array as da
    import gemmd.dask

    d = gemmd.dask.matmul(a, b, ["10.0.0.1:8470", "10.0.0.2:8470"]).compute()

Dask decides which worker computes which block of D and moves the blocks; each worker gives its products
to the daemon that has the fewest of them. Needs ``dask[array]``.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Unpack, cast

import dask.array as da
import numpy as np

from gemmd.channel import ClientOptions
from gemmd.client import Client
from gemmd.elements import element_of, named_element
from gemmd.errors import Unavailable, refusal
from gemmd.product import ProductOptions

# Options of a whole product that hold for every block of it as well.
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
        "kernel",
        "out_type",
        "priority",
        "verify",
    }
)


class _Daemons:
    """The clients of one worker process."""

    def __init__(self, addresses: Sequence[str], options: ClientOptions) -> None:
        self._clients = [Client(address, **options) for address in addresses]
        # Workers begin with different daemons.
        self._under_way = {
            (number + os.getpid()) % len(addresses): 0 for number in range(len(addresses))
        }
        self._lock = threading.Lock()

    def run(self, product: Callable[[Client], np.ndarray]) -> np.ndarray:
        """Computes on the least busy daemon, or on another where that cannot be reached."""
        tried: set[int] = set()
        while True:
            with self._lock:
                left = [number for number in self._under_way if number not in tried]
                chosen = min(left, key=self._under_way.__getitem__)
                # The one that was chosen goes to the end, so that equals take turns.
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


@functools.lru_cache(maxsize=16)
def _daemons(addresses: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> _Daemons:
    return _Daemons(addresses, cast(ClientOptions, dict(options)))


def _result_dtype(a: np.dtype, options: ProductOptions) -> np.dtype:
    """The dtype of D, as the server chooses it."""
    for name in ("out_type", "accumulation_type"):
        if options.get(name) is not None:
            return named_element(options[name], name).dtype
    element = element_of(np.dtype(a), "a")
    if element.name == "f64":
        return np.dtype(np.float64)
    is_integer = element.name in ("s8", "u8", "s4", "u4", "b1")
    return np.dtype(np.int32 if is_integer else np.float32)


def _block(
    a_blocks: list[np.ndarray],
    b_blocks: list[np.ndarray],
    *,
    daemons: tuple[tuple[str, ...], tuple[tuple[str, Any], ...]],
    options: ProductOptions,
) -> np.ndarray:
    """One block of D: its products along k one after the other, each added to the sum of those before,
    so that the same blocks always give the same bits."""
    everything = cast(dict[str, Any], options)
    last = {name: everything[name] for name in ("activation", "out_type") if name in everything}
    each = {name: value for name, value in everything.items() if name not in last}

    def product(client: Client) -> np.ndarray:
        total = None
        for number, (a, b) in enumerate(zip(a_blocks, b_blocks, strict=True)):
            ending = last if number == len(a_blocks) - 1 else {}
            chosen = cast(ProductOptions, {"c": total, **each, **ending})
            total = client.matmul(a, b, **chosen)
        assert total is not None
        return total

    return _daemons(*daemons).run(product)


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
        addresses: the daemons, as each worker reaches them.
        client_options: for the clients that workers make.
        options: those of `gemmd.Client.matmul` that hold for every block; ``activation`` and
            ``out_type`` are for the sum.
    """
    if not addresses:
        raise refusal("addresses", "none", "one or more")
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise refusal("options", ", ".join(sorted(unknown)), ", ".join(sorted(_OPTIONS)))
    a, b = da.asarray(a), da.asarray(b)
    if a.ndim != 2 or b.ndim != 2:
        raise refusal("a and b", f"{a.ndim} and {b.ndim} dimensions", "2 each")
    daemons = (tuple(addresses), tuple(sorted((client_options or {}).items())))
    dtype = _result_dtype(a.dtype, options)
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
