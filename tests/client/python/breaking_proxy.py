# SPDX-License-Identifier: Apache-2.0
"""A proxy to a server on which connections break."""

import contextlib
import socket
import threading


class BreakingProxy:
    """Passes bytes on between its own port and another one. The first `breaks` connections are
    closed once so many bytes have passed in either direction; with `stall`, all bytes wait until
    the end."""

    def __init__(self, port, after_bytes, breaks):
        self._target = port
        self._after_bytes = after_bytes
        self._breaks = breaks
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self.broken = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def stall(self):
        self._flows.clear()

    def __exit__(self, *_):
        self._flows.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source, sink):
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
                passed += len(data)
                if passed > self._after_bytes and self._may_break():
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _may_break(self):
        with self._lock:
            if self.broken == self._breaks:
                return False
            self.broken += 1
            return True
