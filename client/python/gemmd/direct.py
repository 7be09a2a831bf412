# SPDX-License-Identifier: Apache-2.0
"""Long calls over plain sockets, bypassing grpcio. grpcio copies a message once when sending and twice when receiving,
each time into fresh memory, which costs more than the socket does. Here requests are sent from the memory of their
matrices, and answers are received in their final place. Implements as much of HTTP/2 as one call at a time without TLS
needs. Anything unexpected raises `Unusable`, and grpcio makes the call: so there are no retries here, and no decoding
of compressed headers, which only a proxy would send.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError

from gemmd.address import is_unix, may_name_several
from gemmd.channel import Deadline, Metadata, Settings
from gemmd.errors import WHERE_TOO_LONG, Cancelled, DeadlineExceeded, Error, Internal, ResourceExhausted, error_of
from gemmd.memory import results
from gemmd.product import ANSWER_DATA, Answer, Request
from gemmd.wire import Buffer, start_of

Connected, Parsed = TypeVar("Connected"), TypeVar("Parsed")

LONG_BYTES = 1 << 20  # Shorter calls are as fast with grpcio.
_MAX_CONNECTIONS = 16
_CONNECT_S = 5.0
_ANSWER_S = 10.0  # A server that takes longer to answer a ping counts as lost.
_LOOK_EVERY_S = 0.2
_MAX_IDLE_S = 10.0
_ALIGNMENT = 64
_HEAD_BYTES = 512  # First bytes of an answer, within which D begins.
_MAX_STREAM = 2**30  # After that, a new connection starts at 1.

# Frame types and flags.
_DATA, _HEADERS, _, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(10)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_MAX_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65535
_SEND_BYTES = 4 << 20  # Sent before checking for frames from the server.
_BUFFER_BYTES = 16 << 10  # Frame headers are read through a buffer, long payloads directly.
_MAX_CONTROL_BYTES = 64 << 10  # Max size of a frame without data.
# No header table, no pushes, and windows and frames of maximal size: a call reads at its own pace.
_PREFACE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + struct.pack(">I5x", 24 << 8 | _SETTINGS)
    + struct.pack(">HIHIHIHI", 1, 0, 2, 0, 4, _MAX_WINDOW, 5, 2**24 - 1)
    + struct.pack(">IBII", 4 << 8 | _WINDOW_UPDATE, 0, 0, _MAX_WINDOW - _FIRST_WINDOW)
)
_TOO_LATE = "Deadline Exceeded"  # As in grpcio.
_STATUSES = dict(zip(range(8, 15), ("200", "204", "206", "304", "400", "404", "500"), strict=True))
_LAST_STATIC = 61  # Last index of HPACK's static table.


class Unusable(Exception):
    """grpcio must make this call and all others: the peer uses features that only grpcio supports."""


class Lost(Unusable):
    """grpcio must make this call, because its connection was lost or could not be made."""


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _string(text: bytes) -> bytes:
    """An uncompressed HPACK string."""
    left, encoded = len(text), bytearray()
    if left < 127:
        return bytes([left]) + text
    encoded.append(127)
    left -= 127
    while left >= 128:
        encoded.append(left & 127 | 128)
        left >>= 7
    encoded.append(left)
    return bytes(encoded) + text


def _header(name: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        value = base64.b64encode(value).decode()
    return b"\0" + _string(name.encode()) + _string(value.encode())


class _Block:
    """A received block of headers."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._at = 0

    def fields(self) -> dict[str, str | None]:
        """Names and values; None for a compressed value."""
        fields: dict[str, str | None] = {}
        try:
            while self._at < len(self._block):
                self._field(fields)
        except IndexError:
            raise Unusable("a header that is cut off") from None
        return fields

    def _field(self, fields: dict[str, str | None]) -> None:
        first = self._block[self._at]
        if first & 0x80:
            index = self._number(0x7F)
            fields[":status" if index in _STATUSES else ""] = _STATUSES.get(index)
        elif first & 0xE0 == 0x20:  # A table size update; the size is 0.
            self._number(0x1F)
            return
        else:
            index = self._number(0x3F if first & 0x40 else 0x0F)
            name = self._text() if index == 0 else ":status" if index in _STATUSES else ""
            if name is None:
                raise Unusable("a name that is compressed")
            fields[name] = self._text()
        if index > _LAST_STATIC:
            raise Unusable("a header of a table")

    def _number(self, mask: int) -> int:
        number, shift = self._block[self._at] & mask, 0
        self._at += 1
        while number >= mask:
            byte = self._block[self._at]
            self._at += 1
            number += (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return number

    def _text(self) -> str | None:
        is_compressed = self._block[self._at] & 0x80
        size = self._number(0x7F)
        text = self._block[self._at : self._at + size]
        self._at += size
        if len(text) < size:
            raise IndexError
        return None if is_compressed else text.decode("latin-1")


class Connection:
    """One connection, used by one thread at a time."""

    def __init__(self, settings: Settings, deadline: Deadline) -> None:
        self._settings = settings
        self._deadline = deadline
        target = settings.target
        if is_unix(target):
            scheme, _, path = target.partition(":")
            self._authority = "localhost"
            self._socket = socket.socket(socket.AF_UNIX)
            path = path.removeprefix("//") if scheme == "unix" else "\0" + path
            self._connecting(lambda: self._socket.connect(path))
        else:
            self._authority = target
            host, _, port = target.rpartition(":")
            where = (host.removeprefix("[").removesuffix("]"), int(port))
            timeout = self._timeout(_CONNECT_S)
            self._socket = self._connecting(lambda: socket.create_connection(where, timeout))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._notice_loss(int(settings.keepalive_s))
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0  # The unread part of the buffer.
        self._stream = -1
        self._data_left = 0  # Of the current frame.
        self._received = 0  # Received bytes without a window update yet.
        self._window, self._first_window, self._stream_window = _FIRST_WINDOW, _FIRST_WINDOW, 0
        self._max_frame_bytes = 1 << 14
        self._fields: dict[str, str | None] = {}
        self._is_sent = self._is_ended = True
        self._is_leaving = False
        self.idle_since = 0.0
        self._send([_PREFACE])

    def start(self, path: str, metadata: Metadata, pieces: Sequence[Buffer], deadline: Deadline) -> None:
        """Sends a request of one message."""
        self._deadline = deadline
        self._stream += 2
        self._data_left, self._fields = 0, {}
        self._is_sent = self._is_ended = False
        self._stream_window = self._first_window
        milliseconds = max(1, int(1e3 * deadline.left()))
        left = f"{milliseconds}m" if milliseconds < 10**8 else f"{milliseconds // 1000}S"
        block = b"\x83\x86\x04" + _string(path.encode()) + b"\x01" + _string(self._authority.encode())
        fields = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", left)]
        block += b"".join(_header(*field) for field in [*fields, ("user-agent", "gemmd-python"), *metadata])
        self._send([_frame(_HEADERS, _END_HEADERS, self._stream, block)])
        self._send_message(pieces)

    def message_bytes(self) -> int | None:
        """The length of the next message of the answer; None after the last. Raises what the call ended with."""
        while not self._data_left and not self._is_ended:
            self._next_frame()
        if not self._data_left:
            self._check_status()
            return None
        prefix = bytearray(5)
        self.read(memoryview(prefix))
        is_compressed, size = struct.unpack(">BI", prefix)
        if is_compressed:
            raise Unusable("a message that is compressed")
        if size > self._settings.max_message_bytes:
            want = self._settings.max_message_bytes
            raise ResourceExhausted(f"Received message larger than max ({size} vs. {want}): {WHERE_TOO_LONG}")
        return size

    def read(self, into: memoryview) -> None:
        """The next bytes of the current message."""
        while len(into):
            while not self._data_left:
                if self._is_ended:
                    self._check_status()
                    raise Lost("the call ended within a message")
                self._next_frame()
            part = into[: self._data_left]
            self._take(part)
            into = into[len(part) :]
            self._data_left -= len(part)
            self._received += len(part)
            if self._received > _MAX_WINDOW // 4:
                update = struct.pack(">I", self._received)
                streams = (0,) if self._is_ended else (0, self._stream)
                self._received = 0
                self._send([_frame(_WINDOW_UPDATE, 0, stream, update) for stream in streams])

    def is_idle(self) -> bool:
        """Whether the connection can take another call."""
        is_over = self._is_sent and self._is_ended and not self._data_left
        return is_over and not self._is_leaving and self._stream < _MAX_STREAM

    def is_fresh(self, deadline: Deadline) -> bool:
        """Whether the server still listens, as far as known. Answers its frames received meanwhile."""
        self._deadline = deadline
        try:
            while self._begin < self._end or self._has_come():
                self._next_frame()
        except (Unusable, Error):
            return False
        return not self._is_leaving

    def shut(self) -> None:
        """Ends the connection while a call may be using it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes an idle connection."""
        self._socket.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # If connecting failed.
            self._socket.close()

    @staticmethod
    def _connecting(connect: Callable[[], Connected]) -> Connected:
        try:
            return connect()
        except OSError as error:
            raise Lost(f"connect: {error}") from None

    def _notice_loss(self, seconds: int) -> None:
        """Makes the system detect a dead peer."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        values = {"TCP_KEEPIDLE": seconds, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 1000 * seconds}
        for name, value in values.items():
            if hasattr(socket, name):
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _check_status(self) -> None:
        """Raises the error in the trailers. Leaves the call to grpcio where that retries."""
        if self._fields.get(":status") != "200":
            raise Unusable(f"status {self._fields.get(':status')}")
        status, message = self._fields.get("grpc-status"), self._fields.get("grpc-message", "")
        if status is None or message is None or not status.isdecimal():
            raise Unusable(f"grpc-status {status}")
        if int(status) == 0:
            return
        code = next((c for c in grpc.StatusCode if c.value[0] == int(status)), grpc.StatusCode.UNKNOWN)
        is_retried = code is grpc.StatusCode.CANCELLED and self._settings.wait_for_ready
        if is_retried or code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED):
            raise Lost(message)
        pushback = self._fields.get("grpc-retry-pushback-ms") or ""
        raise error_of(code, urllib.parse.unquote(message), int(pushback) / 1000 if pushback.isdigit() else None)

    def _send_message(self, pieces: Sequence[Buffer]) -> None:
        views = [memoryview(piece) for piece in pieces]
        left = sum(map(len, views))
        views.insert(0, memoryview(struct.pack(">BI", 0, left)))
        left += 5
        while left and not self._is_ended:
            room = min(self._window, self._stream_window, left, _SEND_BYTES)
            if room <= 0:
                self._next_frame()
                continue
            self._window -= room
            self._stream_window -= room
            left -= room
            batch: list[Buffer] = []
            while room:
                size = min(room, self._max_frame_bytes)
                room -= size
                flags = 0 if room or left else _END_STREAM
                batch.append(struct.pack(">IBI", size << 8 | _DATA, flags, self._stream))
                while size:
                    part = views[0][:size]
                    batch.append(part)
                    size -= len(part)
                    views[0] = views[0][len(part) :]
                    if not len(views[0]):
                        del views[0]
            self._send(batch)
            while left and not self._is_ended and (self._begin < self._end or self._has_come()):
                self._next_frame()
                if self._data_left:
                    raise Unusable("an answer before the end of its request")
        self._is_sent = not left

    def _send(self, parts: list[Buffer]) -> None:
        parts = [part for part in parts if len(part)]
        while parts:
            try:
                self._socket.settimeout(self._timeout(self._settings.keepalive_s + _ANSWER_S))
                sent = self._socket.sendmsg(parts[:512])
            except OSError as error:
                raise self._lost(error) from None
            while sent:
                if sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                else:
                    parts[0] = memoryview(parts[0])[sent:]
                    sent = 0

    def _next_frame(self) -> None:
        """Reads a frame; the payload of a data frame stays in the socket."""
        head = bytearray(9)
        self._take(memoryview(head))
        size, kind, flags, stream = int.from_bytes(head[:3]), head[3], head[4], int.from_bytes(head[5:]) & _MAX_WINDOW
        is_ours = stream == self._stream
        if kind == _DATA and is_ours and not flags & _PADDED:
            self._data_left = size
            self._is_ended = bool(flags & _END_STREAM)
            return
        if kind in (_DATA, _PUSH_PROMISE, _CONTINUATION) or size > _MAX_CONTROL_BYTES:
            raise Unusable(f"a frame of kind {kind}, flags {flags} and {size} bytes")
        payload = bytearray(size)
        self._take(memoryview(payload))
        try:
            self._control(kind, flags, stream, bytes(payload))
        except struct.error:
            raise Unusable(f"a frame of kind {kind} that is cut off") from None

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        is_ours = stream == self._stream
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:
                    self._stream_window += value - self._first_window
                    self._first_window = value
                elif name == 5 and value >= 1 << 14:
                    self._max_frame_bytes = value
            self._send([_frame(_SETTINGS, _ACK, 0, b"")])
        elif kind == _PING and not flags & _ACK:
            self._send([_frame(_PING, _ACK, 0, payload)])
        elif kind == _WINDOW_UPDATE:
            (size,) = struct.unpack(">I", payload)
            if stream == 0:
                self._window += size
            elif is_ours:
                self._stream_window += size
        elif kind == _GOAWAY:
            self._is_leaving = True
            (last,) = struct.unpack_from(">I", payload)
            if last < self._stream and not self._is_ended:
                raise Lost("the server goes away")
        elif kind == _RST_STREAM and is_ours and not self._is_ended:
            raise Lost(f"the server reset the call: {payload.hex()}")
        elif kind == _HEADERS and is_ours:
            if not flags & _END_HEADERS or flags & (_PADDED | _PRIORITY):
                raise Unusable(f"headers with flags {flags}")
            self._fields |= _Block(payload).fields()
            self._is_ended = bool(flags & _END_STREAM)

    def _take(self, into: memoryview) -> None:
        """Receives the next bytes."""
        while len(into):
            if self._begin < self._end:
                part = self._buffer[self._begin : min(self._end, self._begin + len(into))]
                into[: len(part)] = part
                self._begin += len(part)
                into = into[len(part) :]
            elif len(into) >= _BUFFER_BYTES:
                into = into[self._await(into) :]
            else:
                self._begin, self._end = 0, self._await(self._buffer)

    def _has_come(self) -> bool:
        """Whether data can be read now; the buffer then holds it."""
        try:
            self._begin, self._end = 0, self._receive(self._buffer, 0)
        except BlockingIOError:
            return False
        return True

    def _await(self, into: memoryview) -> int:
        """Waits for bytes. Pings a silent server."""
        try:
            return self._receive(into, self._timeout(self._settings.keepalive_s))
        except TimeoutError:
            if self._deadline.left() == 0:
                raise DeadlineExceeded(_TOO_LATE) from None
        self._send([_frame(_PING, 0, 0, bytes(8))])
        try:
            return self._receive(into, self._timeout(_ANSWER_S))
        except TimeoutError as error:
            raise self._lost(error) from None

    def _timeout(self, most: float) -> float:
        """The seconds to wait for an event."""
        return min(most, max(self._deadline.left(), 1e-3))

    def _receive(self, into: memoryview, timeout: float) -> int:
        try:
            self._socket.settimeout(timeout)
            count = self._socket.recv_into(into)
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise self._lost(error) from None
        if count == 0:
            raise Lost("the server closed the connection")
        return count

    def _lost(self, error: OSError) -> Exception:
        if isinstance(error, TimeoutError) and self._deadline.left() == 0:
            return DeadlineExceeded(_TOO_LATE)
        return Lost(str(error))


def multiply(connection: Connection, path: str, request: Request, metadata: Metadata, deadline: Deadline) -> Answer:
    """Makes a product. D is writable and stays where it was received."""
    connection.start(path, metadata, request.pieces(), deadline)
    size = connection.message_bytes()
    if size is None:
        raise Unusable("an answer without a message")
    head = memoryview(bytearray(min(size, _HEAD_BYTES)))
    connection.read(head)
    start = parsed(lambda first: start_of(first, ANSWER_DATA), head) or 0
    # NumPy aligns elements to their size.
    memory = results.take(size + _ALIGNMENT)
    skipped = -(memory.ctypes.data + start) % _ALIGNMENT
    message = memory.data[skipped : skipped + size]
    message[: len(head)] = head
    connection.read(message[len(head) :])
    if connection.message_bytes() is not None:
        raise Unusable("an answer of several messages")
    return parsed(Answer.parse, message)


def parsed(parse: Callable[[memoryview], Parsed], message: memoryview) -> Parsed:
    """Parses a message. Like grpcio, reports a malformed one as INTERNAL."""
    try:
        return parse(message)
    except (DecodeError, ValueError, IndexError) as error:
        raise Internal(f"the answer cannot be parsed: {error}") from None


class Pool:
    """The connections of a client. Any thread may use the pool. A draining server pings each connection and waits for
    the answer, so a thread serves unused connections until they have been idle for a while.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._lent = 0  # Connections in use or being created.
        self._is_watched = False
        self._is_closed = False
        # Custom gRPC options, several servers and encryption are left to grpcio.
        self._is_off = bool(
            may_name_several(settings.target)
            or settings.credentials is not None
            or settings.use_proxy
            or settings.channel_options
            or settings.max_attempts == 1
            or not hasattr(socket, "AF_UNIX")
        )

    @contextlib.contextmanager
    def connection(self, deadline: Deadline) -> Iterator[Connection]:
        """A connection for one call. Raises Unusable if grpcio must make the call; any other failure is a
        `gemmd.Error`."""
        connection = self._lend(deadline)
        is_good = True
        try:
            yield connection
        except Unusable as error:
            is_good = False
            if self._is_closed:
                raise Cancelled("the client is closed") from None
            if not isinstance(error, Lost):
                self._is_off = True
            raise
        finally:
            with self._lock:
                self._used.discard(connection)
                self._lent -= 1
                is_kept = is_good and connection.is_idle() and not self._is_closed
                if is_kept:
                    self._keep(connection)
            if not is_kept:
                connection.close()

    def close(self) -> None:
        """Closes the connections and ends calls in progress."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            used = list(self._used)
        for connection in idle:
            connection.close()
        for connection in used:
            connection.shut()

    def _keep(self, connection: Connection) -> None:
        """Call under the lock."""
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY_S)
            with self._lock:
                for connection in self._idle.copy():
                    is_young = time.monotonic() - connection.idle_since < _MAX_IDLE_S
                    if not (is_young and connection.is_fresh(Deadline(_LOOK_EVERY_S))):
                        self._idle.remove(connection)
                        connection.close()
                if not self._idle:
                    self._is_watched = False
                    return

    def _lend(self, deadline: Deadline) -> Connection:
        with self._lock:
            if self._is_off or self._is_closed or self._lent >= _MAX_CONNECTIONS:
                raise Lost("no connection is to be had")
            self._lent += 1
        try:
            connection = self._idle_one(deadline) or Connection(self._settings, deadline)
        except BaseException:
            with self._lock:
                self._lent -= 1
            raise
        with self._lock:
            self._used.add(connection)
            if self._is_closed:
                connection.shut()
        return connection

    def _idle_one(self, deadline: Deadline) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_fresh(deadline):
                return connection
            connection.close()
