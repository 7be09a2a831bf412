# SPDX-License-Identifier: Apache-2.0
"""Tensors on the server, for the client for asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gemmd import methods
from gemmd.errors import NotFound
from gemmd.part import OwnedTensor, Part, TensorView
from gemmd.requests import keep_alive_request
from gemmd.v1 import resident_pb2

if TYPE_CHECKING:
    from gemmd.aio.client import Client


class RemoteView(TensorView):
    """As `gemmd.remote.RemoteView`; ``await (x @ w)`` gives a product."""

    _client: Client

    async def get(self, *, connections: int = 0, timeout: float | None = None) -> np.ndarray:
        """A copy of the elements, as an array."""
        return await self._client._download(self._part, connections, timeout)

    def __matmul__(self, other: Any) -> Coroutine[Any, Any, Any]:
        if isinstance(other, RemoteView):
            return self._client.chain(self, other)
        return self._client.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Coroutine[Any, Any, np.ndarray]:
        return self._client.matmul(other, self)

    def _view(self, part: Part) -> RemoteView:
        return RemoteView(self._client, part, self)


class RemoteTensor(OwnedTensor, RemoteView):
    """As `gemmd.RemoteTensor`."""

    async def delete(self) -> None:
        """Deletes it from the server."""
        self._client._owner.check("tensor")
        self._detach()
        await self._client._call(methods.DELETE, self.ref, None)

    async def refresh(self) -> resident_pb2.TensorInfo:
        """Asks the server for the tensor's current state."""
        return await self._client._call(methods.DESCRIBE, self.ref, None)

    async def keep_alive(self, *, lease: float | None = None, pinned: bool | None = None) -> None:
        """As `gemmd.RemoteTensor.keep_alive`."""
        request = keep_alive_request(self.ref, lease, pinned)
        await self._client._call(methods.KEEP_ALIVE, request, None)
        if pinned:
            self._detach()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._client._owner.is_here:
            return
        with contextlib.suppress(NotFound):
            await self.delete()
