# SPDX-License-Identifier: Apache-2.0
"""Clients that are killed with SIGKILL at a chosen point of a call.

    python doomed_client.py ADDRESS REQUEST_FILE ROUNDS

REQUEST_FILE holds the bytes of a MultiplyRequest. In each round one process for each stage starts,
goes as far as its stage, says so and waits to be killed; all of a round die together. Prints how
many were killed. A process of its own, because it forks.
"""

import os
import pathlib
import select
import signal
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "end_to_end"))
from http2_peer import (  # noqa: E402
    MULTIPLY_STREAM,
    Http2Peer,
    joint_bytes,
    message,
    open_socket,
)

STAGE_LIMIT_S = 60
LIFE_LIMIT_S = 300


def connected(address, _):
    return open_socket(address)


def greeted(address, _):
    peer = Http2Peer(address)
    peer.receive(STAGE_LIMIT_S)
    return peer


def called(address, _):
    peer = Http2Peer(address)
    peer.start()
    return peer


def half_uploaded(address, request):
    peer = Http2Peer(address)
    peer.send(peer.start(), request[: len(request) // 2])
    return peer


def uploaded(address, request):
    """A client whose product waits or runs."""
    peer = Http2Peer(address)
    peer.send(peer.start(), request, end=True)
    return peer


def half_downloaded(address, request):
    """Has read the beginning of an answer larger than its windows, and stops reading."""
    peer = Http2Peer(address)
    stream = peer.start()
    peer.send(stream, request, end=True)
    while not peer.answers[stream].data and peer.receive(STAGE_LIMIT_S):
        pass
    return peer


def streaming(address, request):
    """Has sent many requests on one stream and read the beginning of the first answer."""
    peer = Http2Peer(address)
    stream = peer.start(MULTIPLY_STREAM)
    product = request[5:]  # Without the header of its message.
    peer.send(stream, message(joint_bytes(product)) * 4)
    while not peer.answers[stream].data and peer.receive(STAGE_LIMIT_S):
        pass
    return peer


STAGES = [connected, greeted, called, half_uploaded, uploaded, half_downloaded, streaming]


def start_doomed(stage, address, request):
    """Forks a client. Returns its pid and a pipe on which it reports that it has reached its
    stage."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid > 0:
        os.close(writer)
        return pid, reader
    code = 1
    try:
        signal.alarm(LIFE_LIMIT_S)  # It never stays longer.
        peer = stage(address, request)
        os.write(writer, b"there")
        signal.pause()
        code = 0 if peer else 1
    finally:
        os._exit(code)


def main():
    address, request_file, rounds = sys.argv[1:]
    with open(request_file, "rb") as file:
        request = message(file.read())
    killed = 0
    for _ in range(int(rounds)):
        doomed = [start_doomed(stage, address, request) for stage in STAGES]
        for pid, reader in doomed:
            readable, _, _ = select.select([reader], [], [], STAGE_LIMIT_S)
            is_there = bool(readable) and os.read(reader, 16) == b"there"
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            os.close(reader)
            killed += is_there and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    print(killed)


if __name__ == "__main__":
    main()
