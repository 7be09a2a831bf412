# SPDX-License-Identifier: Apache-2.0
"""A peer that speaks HTTP/2 frame by frame, so that it can stop anywhere. Only over loopback and
unix sockets, with TLS if a context is given. Every wait has a limit."""

import select
import socket
import struct
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from daemon import PATIENCE_S

MULTIPLY = "/gemmd.v1.Gemm/Multiply"
MULTIPLY_STREAM = "/gemmd.v1.Gemm/MultiplyStream"
FRAME_BYTES = 16384
GOAWAY = 7  # The type of the frame.


def message(payload, declared=None, flags=0):
    """A gRPC message: flags, length (`declared` if given), payload."""
    return struct.pack(">BI", flags, len(payload) if declared is None else declared) + payload


def varint(value):
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def joint_bytes(*products):
    """A MultiplyStreamRequest of products that may be damaged."""
    return b"".join(b"\x0a" + varint(len(product)) + product for product in products)


def open_socket(address, limit_s=PATIENCE_S, own_host=""):
    """`address` is in the form of gemmd's ready file. For TCP, connects from the host `own_host` if
    that is given."""
    if address.startswith("unix:"):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target = address.removeprefix("unix:")
    else:
        host, port = address.rsplit(":", 1)
        assert host == "127.0.0.1"
        peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if own_host:
            peer.bind((own_host, 0))
        target = (host, int(port))
    peer.settimeout(limit_s)
    peer.connect(target)
    return peer


class Answer:
    """The response on one stream."""

    def __init__(self):
        self.headers = {}
        self.data = bytearray()
        self.ended = False
        self.reset = None  # The error code.

    @property
    def status(self):
        """The gRPC status; None if there is none (yet)."""
        text = self.headers.get("grpc-status")
        return None if text is None else int(text)


class Peer:
    """A connection and the answers that it got. Subclasses receive them."""

    def __init__(self, address, tls=None, own_host=""):
        self.socket = open_socket(address, own_host=own_host)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.answers = {}
        self.closed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def is_over(self, stream):
        answer = self.answers[stream]
        return self.closed or answer.ended or answer.reset is not None

    def wait(self, stream, limit_s=PATIENCE_S):
        """The response on the stream once it is complete, or the connection closed; fails if that takes too long."""
        deadline = time.monotonic() + limit_s
        while not self.is_over(stream):
            assert time.monotonic() < deadline, f"no answer within {limit_s} s"
            self.receive(0.1)
        return self.answers[stream]


class Http2Peer(Peer):
    def __init__(self, address, tls=None, own_host=""):
        super().__init__(address, tls, own_host)
        config = h2.config.H2Configuration(
            client_side=True, header_encoding="utf-8", validate_outbound_headers=False
        )
        self.connection = h2.connection.H2Connection(config)
        self.connection.initiate_connection()
        self.goaway_codes = []
        self._unread = b""
        self.flush()

    def flush(self):
        data = self.connection.data_to_send()
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def start(self, path=MULTIPLY, headers=()):
        """Opens a stream for a call. Returns its number."""
        stream = self.connection.get_next_available_stream_id()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *headers,
        ]
        self.connection.send_headers(stream, fields)
        self.answers[stream] = Answer()
        self.flush()
        return stream

    def send(self, stream, data, end=False, limit_s=60):
        """Sends as much as the server's windows let through; how much that was.

        Stops where the stream or the connection is over, or where nothing moves for `limit_s`.
        """
        sent = 0
        idle_since = time.monotonic()
        while sent < len(data) and not self.is_over(stream):
            window = self.connection.local_flow_control_window(stream)
            count = min(window, FRAME_BYTES, len(data) - sent)
            if count > 0:
                is_last = end and sent + count == len(data)
                self.connection.send_data(stream, data[sent : sent + count], end_stream=is_last)
                self.flush()
                sent += count
                idle_since = time.monotonic()
                self.receive(0)
            elif time.monotonic() - idle_since > limit_s:
                break
            else:
                self.receive(0.05)
        return sent

    def end(self, stream):
        if not self.is_over(stream):
            self.connection.end_stream(stream)
            self.flush()

    def reset(self, stream):
        if not self.is_over(stream):
            self.connection.reset_stream(stream)
            self.flush()

    def receive(self, limit_s):
        """Receives once, within the limit. Returns whether anything came."""
        readable, _, _ = select.select([self.socket], [], [], limit_s)
        if self.closed or not readable:
            return False
        try:
            data = self.socket.recv(1 << 16)
            events = self.connection.receive_data(self._without_goaway(data))
        except (OSError, h2.exceptions.ProtocolError):
            data, events = b"", []
        if not data:
            self.closed = True
        for event in events:
            self._note(event)
        self.flush()
        return True

    def _without_goaway(self, data):
        """The whole frames so far, except GOAWAY, which h2 treats as the end of all streams."""
        self._unread += data
        frames = b""
        while len(self._unread) >= 9:
            length = 9 + int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < length:
                break
            if self._unread[3] == GOAWAY:
                self.goaway_codes.append(int.from_bytes(self._unread[13:17], "big"))
            else:
                frames += self._unread[:length]
            self._unread = self._unread[length:]
        return frames

    def _note(self, event):
        answer = self.answers.get(getattr(event, "stream_id", 0), Answer())
        if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
            answer.headers.update(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            answer.data += event.data
            if event.flow_controlled_length:
                self.connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
        elif isinstance(event, h2.events.StreamEnded):
            answer.ended = True
        elif isinstance(event, h2.events.StreamReset):
            answer.reset = event.error_code


def open_with_closed_windows(address, own_host=""):
    """A peer to which no byte of an answer may be sent."""
    peer = Http2Peer(address, own_host=own_host)
    peer.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    peer.flush()
    return peer
