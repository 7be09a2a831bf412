# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from typing import Any, Self, Unpack

import grpc
import numpy as np

from gemmd import methods
from gemmd.aio import moving
from gemmd.aio.remote import RemoteTensor
from gemmd.aio.session import Session
from gemmd.aio.stream import Stream
from gemmd.channel import (
    ClientOptions,
    Deadline,
    Metadata,
    Settings,
    checked_timeout,
    pause_before_retry,
)
from gemmd.checks import text
from gemmd.errors import Error, check_names, from_rpc_error
from gemmd.memory import messages, results, teach_malloc
from gemmd.methods import Method
from gemmd.ownership import ASYNC, Owner, check_process
from gemmd.part import Part
from gemmd.product import Answer, Product, ProductOptions, Request, request_for
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
from gemmd.transfer import Upload, lanes_for
from gemmd.v1 import registry_pb2, resident_pb2, statistics_pb2, tensors_pb2


class Client(RestoringClient):
    """As `gemmd.Client`; every call is awaited, on the event loop of the first call. The loop also packs and copies
    arrays: if that takes too long, make large uploads from a thread, with `gemmd.Client`.
    """

    def __init__(self, address: str, **settings: Unpack[ClientOptions]) -> None:
        check_names(settings.keys(), ClientOptions.__annotations__.keys())
        self._settings = Settings(address, **settings)
        self._owner = Owner(self)
        self._lanes: list[grpc.aio.Channel] = []
        self._session = Session(
            self._lane, self._settings.session, self._settings.authorization
        )
        self._dropped = deque()
        self._restorables = Restorables(asyncio.Lock)

    async def close(self) -> None:
        """As `gemmd.Client.close`."""
        if not self._owner.is_here:
            return
        await self._session.close()
        for channel in self._lanes:
            await channel.close()
        messages.forget()
        results.forget()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def matmul(
        self,
        a: Any,
        b: Any,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        **options: Unpack[ProductOptions],
    ) -> np.ndarray:
        """As `gemmd.Client.matmul`."""
        request, answer = await self._answer(a, b, timeout, metadata, options)
        return request.array(answer)

    async def multiply(
        self,
        a: Any,
        b: Any,
        *,
        timeout: float | None = None,
        metadata: Metadata = (),
        **options: Unpack[ProductOptions],
    ) -> Product:
        """As `gemmd.Client.multiply`."""
        request, answer = await self._answer(a, b, timeout, metadata, options)
        return request.result(answer)

    async def chain(
        self, a: Any, b: Any, *, timeout: float | None = None, **options: Unpack[ChainOptions]
    ) -> RemoteTensor:
        """As `gemmd.Client.chain`."""
        await self._open_session(timeout)
        request = chain_request(a, b, options)
        request.check_size(self._settings.max_message_bytes)
        answer = await self._call(methods.MULTIPLY, request, timeout)
        is_owned = options.get("into") is None
        if is_owned:
            self._restorables.forget_name(answer.response.tensor.name)
        is_stack = len(request.shape) > 2
        return RemoteTensor(self, answer.response.tensor, is_stack=is_stack, is_owned=is_owned)

    async def put(
        self, array: Any, *, timeout: float | None = None, **options: Unpack[PutOptions]
    ) -> RemoteTensor:
        """As `gemmd.Client.put`."""
        await self._open_session(timeout)
        plan = Upload.of(array, options)
        info = await self._run(self._steps_of_put(plan, timeout))
        self._restorables.put(info, plan)
        return RemoteTensor(self, info, is_stack=plan.is_stack, is_owned=True)

    async def tensor(self, which: str | bytes, *, timeout: float | None = None) -> RemoteTensor:
        """As `gemmd.Client.tensor`."""
        await self._open_session(timeout)
        info = await self._call(methods.DESCRIBE, tensor_ref(which), timeout)
        return RemoteTensor(self, info)

    async def tensors(
        self, pattern: str = "", *, timeout: float | None = None
    ) -> list[RemoteTensor]:
        """As `gemmd.Client.tensors`."""
        await self._open_session(timeout)
        request = resident_pb2.ListTensorsRequest(pattern=text("pattern", pattern))
        listed = await self._call(methods.LIST, request, timeout)
        return [RemoteTensor(self, info) for info in listed.tensors]

    async def compress(
        self,
        tensor: RemoteTensor,
        *,
        mask: RemoteTensor | None = None,
        timeout: float | None = None,
        **options: Unpack[KeepOptions],
    ) -> RemoteTensor:
        """As `gemmd.Client.compress`."""
        await self._open_session(timeout)
        request = compress_request(tensor, mask, options)
        info = await self._call(methods.COMPRESS, request, timeout)
        self._restorables.forget_name(info.name)
        return RemoteTensor(self, info, is_stack=tensor.ndim > 2, is_owned=True)

    def stream(self, *, timeout: float | None = None) -> Stream:
        """As `gemmd.Client.stream`."""
        limit = self._settings.max_message_bytes
        send_alone = functools.partial(self._call, methods.MULTIPLY)
        return Stream(self._lane(0), timeout, self._metadata(), limit, self._restorables, send_alone)

    async def session(self, *, timeout: float | None = None) -> resident_pb2.OpenSessionResponse:
        """As `gemmd.Client.session`."""
        return await self._open_session(timeout)

    async def explain(
        self, a: Any, b: Any, *, timeout: float | None = None, **options: Unpack[ProductOptions]
    ) -> registry_pb2.ExplainResponse:
        """As `gemmd.Client.explain`."""
        return await self._call(methods.EXPLAIN, explain_request(a, b, options), timeout)

    async def devices(self, *, timeout: float | None = None) -> list[registry_pb2.Device]:
        """As `gemmd.Client.devices`."""
        request = registry_pb2.ListDevicesRequest()
        return list((await self._call(methods.LIST_DEVICES, request, timeout)).devices)

    async def kernels(
        self, pattern: str = "", *, timeout: float | None = None
    ) -> list[registry_pb2.Kernel]:
        """As `gemmd.Client.kernels`."""
        request = registry_pb2.ListKernelsRequest(name_pattern=text("pattern", pattern))
        return list((await self._call(methods.LIST_KERNELS, request, timeout)).kernels)

    async def server_info(
        self, *, timeout: float | None = None
    ) -> registry_pb2.GetServerInfoResponse:
        """As `gemmd.Client.server_info`."""
        return await self._call(methods.SERVER_INFO, registry_pb2.GetServerInfoRequest(), timeout)

    async def statistics(
        self, *, timeout: float | None = None
    ) -> statistics_pb2.GetStatisticsResponse:
        """As `gemmd.Client.statistics`."""
        return await self._call(methods.STATISTICS, statistics_pb2.GetStatisticsRequest(), timeout)

    async def _open_session(self, timeout: float | None) -> resident_pb2.OpenSessionResponse:
        self._owner.check("client")
        limit = self._settings.timeout if timeout is None else checked_timeout(timeout)
        opened = await self._session.open(limit)
        while self._dropped:
            try:
                await self._call(methods.DELETE, tensor_ref(self._dropped.popleft()), None)
            except Error:
                break
        return opened

    def _lane(self, number: int) -> grpc.aio.Channel:
        """As in `gemmd.Client`; connections belong to the loop that creates them."""
        self._owner.check("client")
        settings = self._settings
        while len(self._lanes) <= number:
            check_process(ASYNC)
            teach_malloc()
            if settings.credentials is None:
                lane = grpc.aio.insecure_channel(settings.target, options=settings.options())
            else:
                lane = grpc.aio.secure_channel(
                    settings.target, settings.credentials, options=settings.options()
                )
            self._lanes.append(lane)
        return self._lanes[number]

    async def _download(self, part: Part, connections: int, timeout: float | None) -> np.ndarray:
        self._owner.check("client")
        span = part.byte_range()
        lanes = lanes_for(span.count, connections)
        limit = self._settings.timeout if timeout is None else checked_timeout(timeout)
        ref = tensor_ref(part.info.handle)

        async def download(ref: tensors_pb2.TensorRef, token: str) -> np.ndarray:
            return await moving.download(self._lane, ref, span, lanes, self._metadata(token), limit)

        return part.array(await self._run(self._steps_with_tensors(ref, Deadline(limit), download)))

    async def _upload(self, plan: Upload, timeout: float | None) -> resident_pb2.TensorInfo:
        patience = self._settings.timeout
        return await moving.upload(self._lane, plan, self._metadata(), patience, timeout)

    async def _run(self, steps: Steps) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    answer = await step()
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    async def _take(self, lock: asyncio.Lock, limit_s: float) -> bool:
        try:
            return await asyncio.wait_for(lock.acquire(), limit_s)
        except TimeoutError:
            return False

    async def _answer(
        self, a: Any, b: Any, timeout: float | None, metadata: Metadata, options: ProductOptions
    ) -> tuple[Request, Answer]:
        """A product's request, and the server's answer."""
        request = request_for(a, b, options)
        request.check_size(self._settings.max_message_bytes)
        return request, await self._call(methods.MULTIPLY, request, timeout, metadata)

    async def _call(
        self, method: Method, request: Any, timeout: float | None, metadata: Metadata = ()
    ) -> Any:
        return await self._run(self._steps_of_call(method, request, timeout, metadata))

    async def _attempt(self, method: Method, request: Any, deadline: Deadline, sent: Metadata) -> Any:
        """As in `gemmd.Client`."""
        call = self._lane(0).unary_unary(*method)
        while True:
            try:
                return await call(request, timeout=deadline.left(), metadata=tuple(sent))
            except grpc.RpcError as refused:
                error = from_rpc_error(refused)
            pause = pause_before_retry(error, deadline, self._settings)
            if pause is None:
                raise error
            await asyncio.sleep(pause)
