# SPDX-License-Identifier: Apache-2.0
"""The synchronous client."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Self, Unpack

import grpc
import numpy as np

from gemmd import methods, moving
from gemmd.channel import (
    ClientOptions,
    Deadline,
    Metadata,
    Settings,
    checked_timeout,
    pause_before_retry,
)
from gemmd.checks import metadata as checked_metadata
from gemmd.checks import text
from gemmd.direct import LONG_BYTES, Pool, Unusable, multiply
from gemmd.errors import Error, check_names, from_rpc_error
from gemmd.memory import messages, results, teach_malloc
from gemmd.methods import Method
from gemmd.ownership import SYNC, Owner, check_process
from gemmd.part import Part
from gemmd.product import Answer, Product, ProductOptions, Request, request_for
from gemmd.remote import RemoteTensor
from gemmd.requests import (
    ChainOptions,
    KeepOptions,
    PutOptions,
    chain_request,
    compress_request,
    explain_request,
    tensor_ref,
)
from gemmd.session import SESSION_KEY, Session
from gemmd.stream import Stream
from gemmd.transfer import Upload, lanes_for
from gemmd.v1 import registry_pb2, resident_pb2, statistics_pb2, tensors_pb2


class Client:
    """A connection to one server, or to each of several that do the same.

    ::

        with gemmd.Client("127.0.0.1:8470") as client:
            d = client.matmul(a, b)

    Making one never blocks and never fails because of the server: connecting begins with the first
    call. A call that the server refused or lost with UNAVAILABLE is sent again by gRPC; no other failure
    is, unless `ClientOptions.wait_when_full` says so. Any thread may use a client at any time; a forked
    child makes one of its own, and is refused by its parent's with `gemmd.FailedPrecondition`.

    Args:
        address: ``host:port``, ``tls:host:port`` or ``unix:/path``; ``dns:///host:port`` and ``ipv4:a:1,b:2`` stand for
            several servers.
        settings: see `ClientOptions`.
    """

    def __init__(self, address: str, **settings: Unpack[ClientOptions]) -> None:
        check_names(settings.keys(), ClientOptions.__annotations__.keys())
        self._settings = Settings(address, **settings)
        self._owner = Owner(self)
        self._lanes = [self._connect()]
        self._lock = threading.Lock()
        self._calls: dict[str, Any] = {}
        self._direct = Pool(self._settings)
        self._session = Session(
            self._lanes[0], self._settings.session, self._settings.authorization
        )
        self._dropped: deque[bytes] = deque()  # Handles of tensors that nobody has any more.

    def close(self) -> None:
        """Ends the connections and the calls under way. The server then deletes the session's tensors,
        but for pinned ones, after a while (``--session-linger``). In a forked child it does nothing: all of that is
        the parent's."""
        if not self._owner.is_here:
            return
        self._session.close()
        self._direct.close()
        for channel in self._lanes:
            channel.close()
        messages.forget()
        results.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        request, answer = self._answer(a, b, timeout, metadata, options)
        return request.array(answer)

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
        request, answer = self._answer(a, b, timeout, metadata, options)
        return request.result(answer)

    def chain(
        self, a: Any, b: Any, *, timeout: float | None = None, **options: Unpack[ChainOptions]
    ) -> RemoteTensor:
        """As `matmul`, but D stays on the server: as a new tensor, kept as in `put`, or in place of a
        tensor or of a part of one, ``into``. Where operands are on the server too, nothing but the
        request and its answer travels."""
        self._open_session(timeout)
        request = chain_request(a, b, options)
        request.check_size(self._settings.max_message_bytes)
        info = self._call(methods.MULTIPLY, request, timeout).response.tensor
        is_owned = options.get("into") is None
        return RemoteTensor(self, info, is_stack=len(request.shape) > 2, is_owned=is_owned)

    def put(
        self, array: Any, *, timeout: float | None = None, **options: Unpack[PutOptions]
    ) -> RemoteTensor:
        """Uploads a matrix, or a batch of them, which stays on the server: an array, or what `pack24` or
        `quantize` has made. ``timeout`` is for all of it; None: as long as bytes move."""
        self._open_session(timeout)
        plan = Upload.of(array, options)
        patience = self._settings.timeout
        info = moving.upload(self._lane, plan, self._metadata(), patience, timeout)
        return RemoteTensor(self, info, is_stack=plan.is_stack, is_owned=True)

    def tensor(self, which: str | bytes, *, timeout: float | None = None) -> RemoteTensor:
        """The session's tensor of a name or a handle, as it is now; it is not deleted with the last
        reference."""
        self._open_session(timeout)
        return RemoteTensor(self, self._call(methods.DESCRIBE, tensor_ref(which), timeout))

    def tensors(self, pattern: str = "", *, timeout: float | None = None) -> list[RemoteTensor]:
        """The session's tensors whose names match a pattern of ``*`` and ``?``; without one all, also
        those without a name."""
        self._open_session(timeout)
        request = resident_pb2.ListTensorsRequest(pattern=text("pattern", pattern))
        listed = self._call(methods.LIST, request, timeout)
        return [RemoteTensor(self, info) for info in listed.tensors]

    def compress(
        self,
        tensor: RemoteTensor,
        *,
        mask: RemoteTensor | None = None,
        timeout: float | None = None,
        **options: Unpack[KeepOptions],
    ) -> RemoteTensor:
        """A new 2:4 tensor of a dense one, made on the server: the units of the largest magnitude stay,
        or those with a 1 in ``mask``, a tensor of bits."""
        self._open_session(timeout)
        info = self._call(methods.COMPRESS, compress_request(tensor, mask, options), timeout)
        return RemoteTensor(self, info, is_stack=tensor.ndim > 2, is_owned=True)

    def stream(self, *, timeout: float | None = None) -> Stream:
        """A stream of products; ``timeout`` is that of the whole stream, None: it has none. It may use
        tensors if the client had its session when the stream began."""
        return Stream(self._lane(0), timeout, self._metadata(), self._settings.max_message_bytes)

    def session(self, *, timeout: float | None = None) -> resident_pb2.OpenSessionResponse:
        """The client's session, which is opened if it is not: its token, with which another process
        joins it (``Client(address, session=token)``), and its limits. The token is as a password."""
        return self._open_session(timeout)

    def explain(
        self, a: Any, b: Any, *, timeout: float | None = None, **options: Unpack[ProductOptions]
    ) -> registry_pb2.ExplainResponse:
        """Which kernel would run a product, which others could, and why each other is refused. The
        elements are not sent."""
        return self._call(methods.EXPLAIN, explain_request(a, b, options), timeout)

    def devices(self, *, timeout: float | None = None) -> list[registry_pb2.Device]:
        """The server's devices, the default one first."""
        request = registry_pb2.ListDevicesRequest()
        return list(self._call(methods.LIST_DEVICES, request, timeout).devices)

    def kernels(
        self, pattern: str = "", *, timeout: float | None = None
    ) -> list[registry_pb2.Kernel]:
        """The kernels whose names match a shell pattern."""
        request = registry_pb2.ListKernelsRequest(name_pattern=text("pattern", pattern))
        return list(self._call(methods.LIST_KERNELS, request, timeout).kernels)

    def server_info(self, *, timeout: float | None = None) -> registry_pb2.GetServerInfoResponse:
        """Version, limits and features of the server."""
        return self._call(methods.SERVER_INFO, registry_pb2.GetServerInfoRequest(), timeout)

    def statistics(self, *, timeout: float | None = None) -> statistics_pb2.GetStatisticsResponse:
        """What the server has counted since its start, and what is queued now."""
        return self._call(methods.STATISTICS, statistics_pb2.GetStatisticsRequest(), timeout)

    def _open_session(self, timeout: float | None) -> resident_pb2.OpenSessionResponse:
        """Also deletes what nobody has any more, so that what comes next has its room."""
        self._owner.check("client")
        deadline = Deadline(self._settings.timeout if timeout is None else timeout)
        opened = self._session.open(deadline)
        while self._dropped:
            try:
                self._call(methods.DELETE, tensor_ref(self._dropped.popleft()), None)
            except (Error, IndexError):
                break
        return opened

    def _metadata(self) -> list[tuple[str, str]]:
        token = self._session.token
        return [*self._settings.call_metadata, *([(SESSION_KEY, token)] if token else [])]

    def _lane(self, number: int) -> grpc.Channel:
        """One of the connections of a transfer, the first of which serves all other calls too."""
        self._owner.check("client")
        with self._lock:
            while len(self._lanes) <= number:
                self._lanes.append(self._connect())
            return self._lanes[number]

    def _download(self, part: Part, connections: int, timeout: float | None) -> np.ndarray:
        span = part.byte_range()
        ref = tensors_pb2.TensorRef(handle=part.info.handle)
        lanes = lanes_for(span.count, connections)
        limit = self._settings.timeout if timeout is None else checked_timeout(timeout)
        return part.array(moving.download(self._lane, self._direct, ref, span, lanes, self._metadata(), limit))

    def _connect(self) -> grpc.Channel:
        check_process(SYNC)
        teach_malloc()
        settings = self._settings
        if settings.credentials is None:
            return grpc.insecure_channel(settings.target, options=settings.options())
        return grpc.secure_channel(
            settings.target, settings.credentials, options=settings.options()
        )

    def _answer(
        self, a: Any, b: Any, timeout: float | None, metadata: Metadata, options: ProductOptions
    ) -> tuple[Request, Answer]:
        """A product's request, and what the server answers."""
        request = request_for(a, b, options)
        request.check_size(self._settings.max_message_bytes)
        return request, self._call(methods.MULTIPLY, request, timeout, metadata)

    def _multiply_direct(self, request: Request, deadline: Deadline, metadata: Metadata) -> Answer | None:
        """The answer to a long product, by a connection of its own; None where grpcio is to make the call."""
        if request.moved_bytes < LONG_BYTES:
            return None
        try:
            with self._direct.connection(deadline) as connection:
                return multiply(connection, methods.MULTIPLY.path, request, metadata, deadline)
        except Unusable:
            return None

    def _call(
        self, method: Method, request: Any, timeout: float | None, metadata: Metadata = ()
    ) -> Any:
        self._owner.check("client")
        deadline = Deadline(self._settings.timeout if timeout is None else timeout)
        metadata = checked_metadata("metadata", metadata)
        call = self._calls.get(method.path)
        if call is None:
            call = self._lanes[0].unary_unary(*method)
            self._calls[method.path] = call
        while True:
            sent = [*self._metadata(), *metadata]
            try:
                if method is methods.MULTIPLY:
                    answer = self._multiply_direct(request, deadline, sent)
                    if answer is not None:
                        return answer
                return call(request, timeout=deadline.left(), metadata=sent)
            except grpc.RpcError as refused:
                error = from_rpc_error(refused)
            except Error as refused:
                error = refused
            pause = pause_before_retry(error, deadline, self._settings)
            if pause is None:
                raise error
            time.sleep(pause)
