# SPDX-License-Identifier: Apache-2.0
"""Daemons that are stopped and restarted at the same address, and a name for all of their
addresses."""

import re
import signal
import socket
import socketserver
import struct
import threading
import urllib.error
import urllib.request

from daemon import Daemon, wait_until

LIMIT_S = 60


def free_port(host="127.0.0.1"):
    with socket.create_server((host, 0)) as server:
        return server.getsockname()[1]


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


class Replica:
    """A daemon that restarts at the same address."""

    def __init__(self, binary, folder, lame_duck, host="127.0.0.1", port=None):
        self._binary = binary
        self._folder = folder
        self._lame_duck = f"--lame-duck={lame_duck}"
        self.host = host
        self.port, self._metrics = port or free_port(), free_port()
        self._starts = 0
        self.start()

    def start(self):
        self._starts += 1
        self._daemon = Daemon(
            self._binary,
            self._folder / str(self._starts),
            "--devices=cpu",
            "--cpu-threads=1",
            f"--metrics-listen=127.0.0.1:{self._metrics}",
            self._lame_duck,
            listen=f"{self.host}:{self.port}",
        ).wait_until_ready()

    def admitted(self):
        """Products admitted since the start."""
        found = re.search(r"^gemmd_admissions_total (\d+)", get(self._metrics, "/metrics")[1], re.M)
        return int(found[1])

    def restart(self):
        """Returns once it has work again."""
        self._daemon.signal(signal.SIGTERM)
        assert self._daemon.wait() == 0
        self.start()
        wait_until(lambda: self.admitted() > 10, LIMIT_S, "traffic after a restart")

    def end(self):
        self._daemon.kill()


class Names:
    """A DNS server that resolves every name to the same IPv4 addresses."""

    A, IN, TTL_S = 1, 1, 5

    def __init__(self, hosts):
        names = self

        class Answer(socketserver.BaseRequestHandler):
            def handle(self):
                query, server = self.request
                server.sendto(names.answer(query), self.client_address)

        self._records = [
            struct.pack("!HHHIH", 0xC00C, self.A, self.IN, self.TTL_S, 4) + socket.inet_aton(host)
            for host in hosts
        ]
        self._server = socketserver.UDPServer(("127.0.0.1", 0), Answer)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def answer(self, query):
        """RFC 1035: the header with its counts, the question, and a record for each address."""
        number, flags = struct.unpack("!HH", query[:4])
        end = query.index(0, 12) + 5
        (kind,) = struct.unpack("!H", query[end - 4 : end - 2])
        records = self._records if kind == self.A else []
        head = struct.pack("!HHHHHH", number, 0x8400 | flags & 0x0100, 1, len(records), 0, 0)
        return head + query[12:end] + b"".join(records)

    def end(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
