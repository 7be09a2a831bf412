# SPDX-License-Identifier: Apache-2.0
"""The synchronous client."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import numpy as np

from gemmd import channel as calls
from gemmd.channel import ClientOptions, Deadline, Metadata, Method, Settings, pause_before_retry
from gemmd.errors import from_rpc_error
from gemmd.product import Product, ProductOptions, build_request
from gemmd.v1 import registry_pb2, statistics_pb2


class Client:
    """A connection to one server, or to each of several that do the same.

    ::

        with gemmd.Client("127.0.0.1:8470") as client:
            d = client.matmul(a, b)

    Making one never blocks and never fails because of the server: connecting begins with the first
    call. A call that the server refused or lost with UNAVAILABLE is sent again by gRPC; no other failure
    is, unless `ClientOptions.wait_when_full` says so. Any thread may use a client at any time.

    Args:
        address: ``host:port`` or ``unix:/path``; ``dns:///host:port`` and ``ipv4:a:1,b:2`` stand for
            several servers.
        settings: see `ClientOptions`.
    """

    def __init__(self, address: str, **settings: Unpack[ClientOptions]) -> None:
        self._settings = Settings(address, **settings)
        self._channel = self._connect()
        self._calls: dict[str, Any] = {}

    def close(self) -> None:
        """Ends the connection and the calls under way."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def matmul(
        self,
        a: Any,
        b: Any,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        **options: Unpack[ProductOptions],
    ) -> np.ndarray:
        """A times B, with the shapes of `numpy.matmul`; see `ProductOptions` for all that it can do
        besides.

        Arrays are sent from where they lie if each matrix lies in rows or in columns without gaps;
        others are copied first. Raises a `gemmd.Error`.
        """
        array = self.multiply(a, b, timeout=timeout, metadata=metadata, **options).array
        assert array is not None
        return array

    def multiply(
        self,
        a: Any,
        b: Any,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        **options: Unpack[ProductOptions],
    ) -> Product:
        """As `matmul`; tells the kernel, the device and the time of each stage besides."""
        request = build_request(a, b, options)
        return request.result(self._call(calls.MULTIPLY, request, timeout, metadata))

    def explain(
        self, a: Any, b: Any, *, timeout: float | None = None, **options: Unpack[ProductOptions]
    ) -> registry_pb2.ExplainResponse:
        """Which kernel would run a product, which others could, and why each other is refused. The
        elements are not sent."""
        request = build_request(a, b, options)
        for name, (part, _) in request.lent.items():
            getattr(request.message, name).CopyFrom(part)
        message = registry_pb2.ExplainRequest(request=request.message)
        return self._call(calls.EXPLAIN, message, timeout)

    def devices(self, *, timeout: float | None = None) -> list[registry_pb2.Device]:
        """The server's devices, the default one first."""
        request = registry_pb2.ListDevicesRequest()
        return list(self._call(calls.LIST_DEVICES, request, timeout).devices)

    def kernels(
        self, pattern: str = "", *, timeout: float | None = None
    ) -> list[registry_pb2.Kernel]:
        """The kernels whose names match a shell pattern."""
        request = registry_pb2.ListKernelsRequest(name_pattern=pattern)
        return list(self._call(calls.LIST_KERNELS, request, timeout).kernels)

    def server_info(self, *, timeout: float | None = None) -> registry_pb2.GetServerInfoResponse:
        """Version, limits and features of the server."""
        return self._call(calls.SERVER_INFO, registry_pb2.GetServerInfoRequest(), timeout)

    def statistics(self, *, timeout: float | None = None) -> statistics_pb2.GetStatisticsResponse:
        """What the server has counted since its start, and what is queued now."""
        return self._call(calls.STATISTICS, statistics_pb2.GetStatisticsRequest(), timeout)

    def _connect(self) -> grpc.Channel:
        settings = self._settings
        if settings.credentials is None:
            return grpc.insecure_channel(settings.address, options=settings.options())
        return grpc.secure_channel(
            settings.address, settings.credentials, options=settings.options()
        )

    def _call(
        self, method: Method, request: Any, timeout: float | None, metadata: Metadata = ()
    ) -> Any:
        deadline = Deadline(self._settings.timeout if timeout is None else timeout)
        call = self._calls.get(method.path)
        if call is None:
            call = self._channel.unary_unary(*method)
            self._calls[method.path] = call
        while True:
            try:
                return call(
                    request,
                    timeout=deadline.left(),
                    metadata=[*self._settings.metadata, *metadata],
                )
            except grpc.RpcError as refused:
                error = from_rpc_error(refused)
            pause = pause_before_retry(error, deadline, self._settings)
            if pause is None:
                raise error
            time.sleep(pause)
