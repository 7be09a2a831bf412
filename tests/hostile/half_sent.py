# SPDX-License-Identifier: Apache-2.0
"""Peers that send nearly all of a message and then stop."""

from http2_peer import Http2Peer, message

MIB = 1 << 20
CONNECTIONS = 8
STREAMS = 20  # On each connection.
MESSAGE_BYTES = 4 * MIB
SENT_BYTES = MESSAGE_BYTES * 15 // 16


def hold_half_sent_messages(daemon, stack, streams=STREAMS, limit_s=0.2):
    """Sends nearly all of several messages of 4 MiB on each connection, and keeps them so for as
    long as the stack lasts. Moves on to the next one if the daemon takes nothing within the limit.
    Returns the calls (peer and stream), and how many bytes the daemon took."""
    part = message(bytes(SENT_BYTES), declared=MESSAGE_BYTES)
    peers = [stack.enter_context(Http2Peer(daemon.tcp)) for _ in range(CONNECTIONS)]
    calls = []
    taken = 0
    for _ in range(streams):
        for peer in peers:
            stream = peer.start()
            taken += peer.send(stream, part, limit_s=limit_s)
            calls.append((peer, stream))
    return calls, taken
