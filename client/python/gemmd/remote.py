# SPDX-License-Identifier: Apache-2.0
"""Tensors on the server, for the synchronous client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gemmd import methods
from gemmd.errors import NotFound
from gemmd.part import OwnedTensor, Part, TensorView
from gemmd.requests import keep_alive_request
from gemmd.v1 import resident_pb2

if TYPE_CHECKING:
    from gemmd.client import Client


class RemoteView(TensorView):
    """A part of a tensor on the server.

    ``x @ w`` and ``w @ x`` with an array give an array; ``w @ v`` of two tensors leaves the result on
    the server and gives a `RemoteTensor`.
    """

    _client: Client

    def get(self, *, connections: int = 0, timeout: float | None = None) -> np.ndarray:
        """A copy of the elements, as an array."""
        return self._client._download(self._part, connections, timeout)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, RemoteView):
            return self._client.chain(self, other)
        return self._client.matmul(self, other)

    def __rmatmul__(self, other: Any) -> np.ndarray:
        return self._client.matmul(other, self)

    def _view(self, part: Part) -> RemoteView:
        return RemoteView(self._client, part, self)


class RemoteTensor(OwnedTensor, RemoteView):
    """A tensor on the server; used as a context manager, it is deleted at the end. For its lifetime otherwise, see
    `OwnedTensor`."""

    def delete(self) -> None:
        """Deletes it from the server; running products keep it until they end."""
        self._client._owner.check("tensor")
        self._detach()
        self._client._call(methods.DELETE, self.ref, None)

    def refresh(self) -> resident_pb2.TensorInfo:
        """Asks the server for the tensor's current state: lease, places, products."""
        return self._client._call(methods.DESCRIBE, self.ref, None)

    def keep_alive(self, *, lease: float | None = None, pinned: bool | None = None) -> None:
        """Renews the lease, as every use does; optionally changes the lease (seconds) and pinning."""
        self._client._call(methods.KEEP_ALIVE, keep_alive_request(self.ref, lease, pinned), None)
        if pinned:
            self._detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._client._owner.is_here:
            return
        try:
            self.delete()
        except NotFound:
            pass
