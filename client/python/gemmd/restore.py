# SPDX-License-Identifier: Apache-2.0
"""Tensors that a client puts again once the server has lost them (``put(..., restorable=True)``), for both clients.

Callers keep the handle that a tensor had when it was put. Requests are sent with its current one, so a restored tensor
is known by every handle that it has had.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from gemmd import methods
from gemmd.channel import Deadline, Metadata, Settings
from gemmd.checks import metadata as checked_metadata
from gemmd.errors import DataLoss, DeadlineExceeded, Error, FailedPrecondition, NotFound, Unauthenticated, error_of
from gemmd.methods import Method
from gemmd.product import Request
from gemmd.session import SESSION_KEY, may_return
from gemmd.transfer import Upload
from gemmd.v1 import gemm_pb2, registry_pb2, resident_pb2, tensors_pb2

# A server may be restarted again while tensors are restored.
MAX_RESTORATIONS = 4
MIN_TIMEOUT_S = 0.001  # A transfer needs a timeout above 0.

_ADVICE = (
    "the server has lost an earlier session of this client, with its tensors: put them again, or put them with "
    "restorable=True, and the client does so by itself"
)


@dataclass(eq=False)
class Restorable:
    """A tensor that can be put again."""

    upload: Upload
    handles: list[bytes]  # The current one is the last.
    lock: Any  # Held during a restoration.
    is_gone: bool = False  # Deleted, replaced or overwritten: not to be restored.

    @property
    def title(self) -> str:
        return f"restorable tensor {self.upload.begin.keep.name}".rstrip()


@dataclass(frozen=True)
class Use:
    """A restorable tensor that a request names, as it was when the request was sent."""

    tensor: Restorable
    times_restored: int

    @property
    def is_outdated(self) -> bool:
        """Whether the tensor has been restored since."""
        return len(self.tensor.handles) - 1 != self.times_restored


# Yields functions; is sent what each returns, or thrown what it raises. One client calls them, the other awaits them.
Steps: TypeAlias = Generator[Callable[[], Any], Any, Any]


def is_session_refusal(error: Error) -> bool:
    """Whether the server does not know the session of a call's token. The call has not begun."""
    return isinstance(error, Unauthenticated) and error.field == SESSION_KEY


def may_help(error: Error) -> bool:
    """Whether a restoration may help a call that ended with this error."""
    return isinstance(error, NotFound) or is_session_refusal(error)


def lost(outcome: Any) -> bool:
    """The same for the outcome of a product of a stream, which may be an answer."""
    return isinstance(outcome, Error) and may_help(outcome)


def with_advice(error: Error) -> Error:
    """The error of a call whose tensors may have gone with an earlier session."""
    if not is_session_refusal(error) and "tensor" not in error.message:
        return error
    return error_of(error.code, f"{error.message}; {_ADVICE}")


def failed(error: Error, refusal: Error) -> Error:
    """The error of a call whose tensor could not be restored."""
    return error_of(error.code, f"{error.message}; this was to restore a tensor after {refusal}")


class Restorables:
    """The restorable tensors of one client. Threads: any."""

    def __init__(self, make_lock: Callable[[], Any]) -> None:
        self._make_lock = make_lock
        self._lock = threading.Lock()
        self._by_handle: dict[bytes, Restorable] = {}
        self._by_name: dict[str, Restorable] = {}

    def put(self, info: resident_pb2.TensorInfo, upload: Upload) -> None:
        """Notes a complete upload. Forgets a tensor of the same name, which it has replaced."""
        self.forget_name(info.name)
        if not upload.is_restorable:
            return
        tensor = Restorable(upload, [info.handle], self._make_lock())
        with self._lock:
            self._by_handle[info.handle] = tensor
            if info.name:
                self._by_name[info.name] = tensor

    def forget(self, ref: tensors_pb2.TensorRef) -> tensors_pb2.TensorRef:
        """Forgets a tensor, if it is restorable, and returns the reference to it that the server knows."""
        with self._lock:
            tensor = self._find(ref)
            if tensor is None:
                return ref
            tensor.is_gone = True
            for handle in tensor.handles:
                self._by_handle.pop(handle, None)
            name = tensor.upload.begin.keep.name
            if self._by_name.get(name) is tensor:
                del self._by_name[name]
            return tensors_pb2.TensorRef(handle=tensor.handles[-1])

    def forget_name(self, name: str) -> None:
        """A new tensor has this name: the one that it has replaced must not be restored."""
        if name:
            self.forget(tensors_pb2.TensorRef(name=name))

    def current(self, handle: bytes) -> bytes:
        """The current handle of a tensor."""
        with self._lock:
            tensor = self._by_handle.get(handle)
            return handle if tensor is None else tensor.handles[-1]

    def set_keep(self, info: resident_pb2.TensorInfo) -> None:
        """The tensor is kept in another way from now on."""
        with self._lock:
            if (tensor := self._by_handle.get(info.handle)) is not None:
                keep = tensor.upload.begin.keep
                keep.pinned, keep.lease_ns = info.pinned, info.lease_ns

    def translate(self, request: Any) -> list[Use]:
        """Writes current handles into a request, and returns the restorable tensors that it names. A tensor that D
        overwrites is not restorable any more."""
        if not self._by_handle:
            return []
        uses: list[Use] = []
        with self._lock:
            if isinstance(request, Request):
                self._translate_product(request, uses)
            else:
                for ref in _refs_of(request):
                    self._translate(ref, uses)
        return uses

    def note(self, tensor: Restorable, handle: bytes) -> bool:
        """Notes a restoration; False if the tensor was deleted meanwhile."""
        with self._lock:
            is_known = self._by_handle.get(tensor.handles[-1]) is tensor
            tensor.handles.append(handle)
            if is_known:
                self._by_handle[handle] = tensor
            return is_known

    def _translate_product(self, request: Request, uses: list[Use]) -> None:
        message, has_changed = request.message, False
        if message.d.HasField("tensor") and (tensor := self._find(message.d.tensor.tensor)) is not None:
            tensor.is_gone = True
            has_changed = self._translate(message.d.tensor.tensor, [])
        for ref in _refs_of(message):
            has_changed = self._translate(ref, uses) or has_changed
        if has_changed:
            request.forget_pieces()

    def _translate(self, ref: tensors_pb2.TensorRef, uses: list[Use]) -> bool:
        """Returns whether the reference has changed."""
        tensor = self._find(ref)
        if tensor is None:
            return False
        if not tensor.is_gone:
            uses.append(Use(tensor, len(tensor.handles) - 1))
        if not ref.HasField("handle") or ref.handle == tensor.handles[-1]:
            return False
        ref.handle = tensor.handles[-1]
        return True

    def _find(self, ref: tensors_pb2.TensorRef) -> Restorable | None:
        return self._by_handle.get(ref.handle) if ref.HasField("handle") else self._by_name.get(ref.name)


def _refs_of(request: Any) -> list[tensors_pb2.TensorRef]:
    """The references to tensors in a request; of a product, those of its operands."""
    match request:
        case tensors_pb2.TensorRef():
            return [request]
        case resident_pb2.KeepAliveRequest():
            return [request.tensor]
        case resident_pb2.CompressRequest():
            return [request.tensor, *([request.mask] if request.HasField("mask") else [])]
        case registry_pb2.ExplainRequest():
            return _refs_of(request.request)
        case gemm_pb2.MultiplyRequest():
            operands = [getattr(request, name) for name in ("a", "b", "c") if request.HasField(name)]
            return [operand.tensor.tensor for operand in operands if operand.HasField("tensor")]
    return []


class RestoringClient:
    """The part shared by both clients: repeats calls after restoring lost tensors."""

    _settings: Settings
    _session: Any
    _restorables: Restorables
    _dropped: deque[bytes]  # Handles of tensors without references.
    _upload: Callable[[Upload, float | None], Any]
    _attempt: Callable[[Method, Any, Deadline, Metadata], Any]
    _take: Callable[[Any, float], Any]  # Takes a lock within a time, and returns whether it has.

    def _metadata(self, token: str | None = None) -> list[tuple[str, str]]:
        if token is None:
            token = self._session.token
        return [*self._settings.call_metadata, *([(SESSION_KEY, token)] if token else [])]

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._settings.timeout if timeout is None else timeout)

    def _steps_of_call(self, method: Method, request: Any, timeout: float | None, metadata: Metadata) -> Steps:
        deadline = self._deadline(timeout)
        metadata = checked_metadata("metadata", metadata)
        if method is methods.DELETE:
            request = self._restorables.forget(request)

        def attempt(request: Any, token: str) -> Any:
            return self._attempt(method, request, deadline, [*self._metadata(token), *metadata])

        answer = yield from self._steps_with_tensors(request, deadline, attempt)
        if method is methods.KEEP_ALIVE:
            self._restorables.set_keep(answer)
        return answer

    def _steps_of_put(self, plan: Upload, timeout: float | None) -> Steps:
        """Uploads, again in another session if the server has lost this one."""
        token = self._session.token
        try:
            return (yield partial(self._upload, plan, timeout))
        except Error as refusal:
            if not is_session_refusal(refusal):
                raise
            yield partial(self._session.renew, token, self._deadline(timeout))
            return (yield partial(self._upload, plan, timeout))

    def _steps_with_tensors(self, request: Any, deadline: Deadline, call: Callable[[Any, str], Any]) -> Steps:
        """Runs `call(request, token)` with the current handles of the tensors that the request names. Runs it again if
        the server refused it because it has lost a restorable tensor, which is then put again."""
        restorations = 0
        while True:
            uses, token = self._restorables.translate(request), self._session.token
            try:
                return (yield partial(call, request, token))
            except Error as refusal:
                if not may_help(refusal) or restorations == MAX_RESTORATIONS:
                    raise
                if not uses and self._session.was_lost:
                    raise with_advice(refusal) from None
                try:
                    if not uses or not (yield from self._restore(refusal, uses, token, deadline)):
                        raise refusal
                except Error as error:
                    raise (error if error is refusal else failed(error, refusal)) from None
            restorations += 1

    def _restore(self, refusal: Error, uses: list[Use], token: str, deadline: Deadline) -> Steps:
        """Puts tensors again that the server has lost. Returns whether the refused call may succeed now."""
        may_succeed = is_session_refusal(refusal)
        if may_succeed:
            try:
                yield partial(self._session.renew, token, deadline)
            except Error as error:
                raise (error if may_return(error) else refusal) from None
        for use in uses:
            if not (yield partial(self._take, use.tensor.lock, deadline.left())):
                raise DeadlineExceeded(f"{use.tensor.title}: another call restores it still")
            try:
                if not use.is_outdated and not use.tensor.is_gone:
                    yield from self._put_again(use.tensor, deadline)
                may_succeed = may_succeed or use.is_outdated
            finally:
                use.tensor.lock.release()
        return may_succeed

    def _put_again(self, tensor: Restorable, deadline: Deadline) -> Steps:
        """Puts a tensor again if the server does not have it. Raises NotFound if another tensor has its name,
        FailedPrecondition if the array has changed."""
        if (yield from self._has(tensors_pb2.TensorRef(handle=tensor.handles[-1]), deadline)):
            return
        name = tensor.upload.begin.keep.name
        # A newer tensor must not be replaced by an older one.
        if name and (yield from self._has(tensors_pb2.TensorRef(name=name), deadline)):
            raise NotFound(f"{tensor.title}: got another tensor of that name, want none: it was replaced")
        try:
            info = yield partial(self._upload, tensor.upload, max(deadline.left(), MIN_TIMEOUT_S))
        except DataLoss:
            if has_its_hash(tensor.upload):
                raise
            raise FailedPrecondition(
                f"{tensor.title}: got other elements in its array than put did, want them unchanged as long as it is "
                "restorable; it needs a new put"
            ) from None
        if not self._restorables.note(tensor, info.handle):
            self._dropped.append(info.handle)

    def _has(self, ref: tensors_pb2.TensorRef, deadline: Deadline) -> Steps:
        """Whether the server has a tensor."""
        try:
            yield partial(self._attempt, methods.DESCRIBE, ref, deadline, self._metadata())
        except NotFound:
            return False
        return True


def has_its_hash(upload: Upload) -> bool:
    """Whether the bytes are still those that were put."""
    return hashlib.sha256(upload.data).digest() == upload.begin.sha256
