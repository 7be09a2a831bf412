# SPDX-License-Identifier: Apache-2.0
"""In place of an HTTP proxy: counts connections and closes them."""

import contextlib
import socket
import threading

# All variables that gRPC reads.
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")


class Proxy:
    def __init__(self):
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.environment = dict.fromkeys(VARIABLES, "http://127.0.0.1:%d" % self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listening.accept()
                self.connections += 1
                peer.close()
