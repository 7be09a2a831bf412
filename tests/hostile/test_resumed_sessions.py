# SPDX-License-Identifier: Apache-2.0
"""Certificates while the wall clock jumps. A TLS session that a client resumes is valid no longer than the certificate
with which it began, a new connection is judged by the time of its own, and revocations stay in force."""

import contextlib
import datetime
import socket
import ssl

import certificates
import pytest

HALF_AN_HOUR = datetime.timedelta(minutes=30)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
TWO_DAYS_H = 48  # The certificates are valid from a day ago to a day from now.
ANSWER_BYTES = 9  # At least the head of the server's first frame.
PATIENCE_S = 60


class Visitor:
    """A client that keeps its TLS session."""

    def __init__(self, world, pair, port):
        self._port = port
        self._context = ssl.create_default_context(cafile=world.authority.cert_path)
        self._context.load_cert_chain(pair.cert_path, pair.key_path)
        self._context.set_alpn_protocols(["h2"])
        self._session = None

    def visit(self):
        """Whether the server speaks HTTP/2 to it, and whether the session was resumed."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S) as plain:
            made = self._context.wrap_socket(plain, server_hostname="127.0.0.1", session=self._session)
            with made, contextlib.suppress(ssl.SSLError, ConnectionError):
                made.sendall(PREFACE)
                is_served = len(made.recv(ANSWER_BYTES)) == ANSWER_BYTES
                self._session = made.session if is_served else self._session
                return is_served, made.session_reused
            return False, made.session_reused


def start_with(daemons, wall_clock, *flags):
    """A daemon that asks for certificates, and its port."""
    daemon = daemons.start(
        "--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms", "--handshake-timeout=10m", *flags,
        listen="mtls:127.0.0.1:0", environment=wall_clock.environment,
    )  # fmt: skip
    return int(daemon.addresses[0].rsplit(":", 1)[1])


@pytest.mark.parametrize("is_listed", [False, True], ids=["without revocations", "with revocations"])
def test_a_session_ends_with_the_certificate(daemons, wall_clock, battery, tmp_path, is_listed):
    world = certificates.World(tmp_path)
    flags = world.flags_for_clients if is_listed else world.flags_for_clients[:1]
    port = start_with(daemons, wall_clock, *world.flags, *flags)
    short = Visitor(world, world.authority.sign("short", end=HALF_AN_HOUR), port)
    long = Visitor(world, world.client, port)
    for visitor in (short, long):
        assert visitor.visit() == (True, False)
        assert visitor.visit() == (True, True)
    wall_clock.set(1)
    # OpenSSL's tickets are valid for two hours.
    assert long.visit() == (True, True)
    is_served, is_resumed = short.visit()
    assert is_resumed
    battery.holds("a session goes on after its certificate: served", most=0, seen=int(is_served))


def test_new_connections_after_jumps(daemons, wall_clock, battery, tmp_path):
    """The clock jumps to a time before the certificates, to one after a certificate has ended and the next list of
    revocations was due, and back. Each new connection is judged by the time that it is then."""
    world = certificates.World(tmp_path)
    world.authority.revoke(world.revocations, world.revoked, next_update=HALF_AN_HOUR)
    port = start_with(daemons, wall_clock, *world.flags, *world.flags_for_clients)
    short = world.authority.sign("short", end=HALF_AN_HOUR)
    wrong = []
    jumps = (0, -TWO_DAYS_H, 0, 2, -TWO_DAYS_H, 2, 0)
    for hours in jumps:
        wall_clock.set(hours)
        for name, pair, is_valid in (
            ("long", world.client, hours >= 0),
            ("short", short, hours == 0),
            ("revoked", world.revoked, False),
        ):
            is_served, is_resumed = Visitor(world, pair, port).visit()
            if is_served != is_valid or is_resumed:
                wrong.append((name, hours))
    battery.holds(f"new connections after {len(jumps)} jumps of the clock: judged wrongly", most=0, seen=len(wrong))
