# SPDX-License-Identifier: Apache-2.0
"""The synchronous client."""

from __future__ import annotations

import functools
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
from gemmd.restore import Restorables, RestoringClient, Steps
from gemmd.session import Session
from gemmd.stream import Stream
from gemmd.transfer import Upload, lanes_for
from gemmd.v1 import registry_pb2, resident_pb2, statistics_pb2, tensors_pb2


class Client(RestoringClient):
    """Connections to one server, or to each of several equivalent servers.

    ::

        with gemmd.Client("127.0.0.1:8470") as client:
            d = client.matmul(a, b)

    The constructor never blocks and never fails because of the server: the first call connects. gRPC retries a call
    that fails with UNAVAILABLE; no other failure is retried, unless `ClientOptions.wait_when_full` is set. Any thread
    may use a client at any time. A forked child must create its own client; its parent's raises
    `gemmd.FailedPrecondition`.

    Args:
        address: ``host:port``, ``tls:host:port`` or ``unix:/path``; ``dns:///host:port`` and ``ipv4:a:1,b:2`` name
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
        self._dropped = deque()
        self._restorables = Restorables(threading.Lock)

    def close(self) -> None:
        """Closes the connections and ends calls in progress. The server deletes the session's tensors, except pinned
        ones, after its ``--session-linger``. Does nothing in a forked child, where all of that belongs to the
        parent."""
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
        """A times B, with the shapes of `numpy.matmul`; see `ProductOptions` for further options.

        Arrays are sent without a copy if each matrix consists of rows or columns without gaps; others are copied
        first. Raises a `gemmd.Error`.
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
        """As `matmul`, but also returns the kernel, the device and the time of each stage."""
        request, answer = self._answer(a, b, timeout, metadata, options)
        return request.result(answer)

    def chain(
        self, a: Any, b: Any, *, timeout: float | None = None, **options: Unpack[ChainOptions]
    ) -> RemoteTensor:
        """As `matmul`, but D stays on the server: as a new tensor, kept as in `put`, or overwriting a tensor or a part
        of one, ``into``. Resident operands are not sent."""
        self._open_session(timeout)
        request = chain_request(a, b, options)
        request.check_size(self._settings.max_message_bytes)
        info = self._call(methods.MULTIPLY, request, timeout).response.tensor
        is_owned = options.get("into") is None
        if is_owned:
            self._restorables.forget_name(info.name)
        return RemoteTensor(self, info, is_stack=len(request.shape) > 2, is_owned=is_owned)

    def put(
        self, array: Any, *, timeout: float | None = None, **options: Unpack[PutOptions]
    ) -> RemoteTensor:
        """Uploads a matrix or a batch, which stays on the server: an array, or a result of `pack24` or `quantize`.
        ``timeout`` limits the whole upload; None: no limit while bytes move."""
        self._open_session(timeout)
        plan = Upload.of(array, options)
        info = self._run(self._steps_of_put(plan, timeout))
        self._restorables.put(info, plan)
        return RemoteTensor(self, info, is_stack=plan.is_stack, is_owned=True)

    def tensor(self, which: str | bytes, *, timeout: float | None = None) -> RemoteTensor:
        """The session's tensor of a name or a handle, in its current state. It is not deleted with the last
        reference."""
        self._open_session(timeout)
        return RemoteTensor(self, self._call(methods.DESCRIBE, tensor_ref(which), timeout))

    def tensors(self, pattern: str = "", *, timeout: float | None = None) -> list[RemoteTensor]:
        """The session's tensors whose names match a pattern of ``*`` and ``?``; by default all tensors, including
        unnamed ones."""
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
        """A new 2:4 tensor, made from a dense one on the server. Keeps the units of largest magnitude, or those with a
        1 in ``mask``, a tensor of bits."""
        self._open_session(timeout)
        info = self._call(methods.COMPRESS, compress_request(tensor, mask, options), timeout)
        self._restorables.forget_name(info.name)
        return RemoteTensor(self, info, is_stack=tensor.ndim > 2, is_owned=True)

    def stream(self, *, timeout: float | None = None) -> Stream:
        """A stream of products; ``timeout`` limits the whole stream, None: no limit. The stream may use tensors if the
        client had a session when the stream began."""
        limit = self._settings.max_message_bytes
        send_alone = functools.partial(self._call, methods.MULTIPLY)
        return Stream(self._lane(0), timeout, self._metadata(), limit, self._restorables, send_alone)

    def session(self, *, timeout: float | None = None) -> resident_pb2.OpenSessionResponse:
        """The client's session, opened if necessary: its token, with which another process joins it (``Client(address,
        session=token)``), and its limits. Protect the token like a password."""
        return self._open_session(timeout)

    def explain(
        self, a: Any, b: Any, *, timeout: float | None = None, **options: Unpack[ProductOptions]
    ) -> registry_pb2.ExplainResponse:
        """Which kernel would run a product, which others could, and why the rest could not. Elements are not sent."""
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
        """The server's counters since its start, and the current queue."""
        return self._call(methods.STATISTICS, statistics_pb2.GetStatisticsRequest(), timeout)

    def _open_session(self, timeout: float | None) -> resident_pb2.OpenSessionResponse:
        """Also deletes tensors without references, to free their memory for the next one."""
        self._owner.check("client")
        opened = self._session.open(self._deadline(timeout))
        while self._dropped:
            try:
                self._call(methods.DELETE, tensor_ref(self._dropped.popleft()), None)
            except (Error, IndexError):
                break
        return opened

    def _lane(self, number: int) -> grpc.Channel:
        """One connection of a transfer. The first also carries all other calls."""
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

        def download(ref: tensors_pb2.TensorRef, token: str) -> np.ndarray:
            return moving.download(self._lane, self._direct, ref, span, lanes, self._metadata(token), limit)

        return part.array(self._run(self._steps_with_tensors(ref, Deadline(limit), download)))

    def _upload(self, plan: Upload, timeout: float | None) -> resident_pb2.TensorInfo:
        return moving.upload(self._lane, plan, self._metadata(), self._settings.timeout, timeout)

    def _run(self, steps: Steps) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    answer = step()
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    def _take(self, lock: threading.Lock, limit_s: float) -> bool:
        return lock.acquire(timeout=limit_s)

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
        """A product's request, and the server's answer."""
        request = request_for(a, b, options)
        request.check_size(self._settings.max_message_bytes)
        return request, self._call(methods.MULTIPLY, request, timeout, metadata)

    def _multiply_direct(self, request: Request, deadline: Deadline, metadata: Metadata) -> Answer | None:
        """The answer to a long product over a direct connection; None if grpcio must make the call."""
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
        return self._run(self._steps_of_call(method, request, timeout, metadata))

    def _attempt(self, method: Method, request: Any, deadline: Deadline, sent: Metadata) -> Any:
        """One call, sent again only as its settings say."""
        call = self._calls.get(method.path)
        if call is None:
            call = self._lanes[0].unary_unary(*method)
            self._calls[method.path] = call
        while True:
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
