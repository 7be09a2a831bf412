# SPDX-License-Identifier: Apache-2.0
"""A peer that sends whatever HTTP/2 frames a test makes, however wrong they are. http2_peer's keeps to the protocol."""

import select
import time

import hpack
from daemon import PATIENCE_S
from http2_peer import Answer, Peer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
INITIAL_WINDOW_SIZE = 4
MAX_WINDOW = (1 << 31) - 1
END_STREAM = 1  # A flag, like those below.
ACK = 1
END_HEADERS = 4
PADDED = 8
WITH_PRIORITY = 32


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def word(value):
    return value.to_bytes(4, "big")


class RawPeer(Peer):
    def __init__(self, address, tls=None):
        super().__init__(address, tls)
        self.encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._unread = b""
        self._headers = b""
        self._last = -1
        self._unanswered_pings = 0
        # The windows are open, so that no answer waits for this peer.
        window = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + word(MAX_WINDOW)
        self.send(PREFACE, frame(SETTINGS, 0, 0, window), frame(WINDOW_UPDATE, 0, 0, word(MAX_WINDOW - 65535)))

    def next_stream(self):
        self._last += 2
        self.answers[self._last] = Answer()
        return self._last

    def fields(self, paths, more=()):
        """The block of headers of a call, with each of the paths. They are bytes, and sent as they are."""
        return self.encoder.encode(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                *((b":path", path) for path in paths),
                (b":authority", b"localhost"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
                *more,
            ]
        )

    def send(self, *frames):
        """The daemon may have closed the connection."""
        try:
            self.socket.sendall(b"".join(frames))
        except OSError:
            self.closed = True

    def receive(self, limit_s):
        """Receives once, within the limit. Returns whether anything came."""
        if self.closed or not select.select([self.socket], [], [], limit_s)[0]:
            return False
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        self.closed = not data
        self._unread += data
        while len(self._unread) >= 9 and len(self._unread) >= 9 + int.from_bytes(self._unread[:3], "big"):
            length = int.from_bytes(self._unread[:3], "big")
            kind, flags = self._unread[3], self._unread[4]
            stream = int.from_bytes(self._unread[5:9], "big")
            self._take(kind, flags, self.answers.get(stream, Answer()), self._unread[9 : 9 + length])
            self._unread = self._unread[9 + length :]
        return True

    def _take(self, kind, flags, answer, payload):
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == PING:
            self._unanswered_pings -= 1
        elif kind == RST_STREAM:
            # After a whole answer, it only says that the daemon reads no more of the call.
            answer.reset = None if answer.ended else int.from_bytes(payload, "big")
        elif kind == DATA:
            answer.data += payload
        elif kind in (HEADERS, CONTINUATION):
            self._headers += payload
            if flags & END_HEADERS:
                answer.headers.update(self._decoder.decode(self._headers))
                self._headers = b""
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            answer.ended = True

    def settle(self, limit_s=PATIENCE_S):
        """Waits until the daemon has read all that was sent, or the connection is closed."""
        self._unanswered_pings += 1
        self.send(frame(PING, 0, 0, bytes(8)))
        deadline = time.monotonic() + limit_s
        while self._unanswered_pings and not self.closed:
            assert time.monotonic() < deadline, f"no answer to a ping within {limit_s} s"
            self.receive(0.1)
