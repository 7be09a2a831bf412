# SPDX-License-Identifier: Apache-2.0
"""Signed tokens with invalid signatures, all different: examining them all would take processor
time from known callers."""

import contextlib
import itertools
import json
import os
import pathlib
import time

import grpc
import pytest
from bystander import KEPT_THREADS
from callers import Trust
from gemmd.v1 import registry_pb2, registry_pb2_grpc
from http2_peer import Http2Peer, message
from metrics_page import scrape
from signed_tokens import Signer

LIST_DEVICES = "/gemmd.v1.Registry/ListDevices"
DEADLINE_S = 60
RESOURCE_EXHAUSTED = 8
UNAUTHENTICATED = 16
CONNECTIONS = 4
STREAMS = 90  # At a time on each connection.
ROUNDS = 5
AT_ONCE = 8  # Trust::kBadTokensOfConnection, and one a second.


class Issuer:
    """Of tokens that differ only in their ids."""

    def __init__(self, folder):
        self._signer = Signer("k1")
        self._ids = itertools.count()
        self.trust = Trust(folder)
        self.trust.write({"alice": {"may": ["registry"]}}, tokens=[])
        self.trust.keys_file.write_text(json.dumps({"keys": [self._signer.public()]}))

    def good(self):
        return self._signer.token(iss="https://issuer.test", jti=next(self._ids))

    def bad(self):
        head, body, signature = self.good().split(".")
        return f"{head}.{body}.{signature[:-8]}{'A' * 8}"


def bearer(token):
    return [("authorization", f"Bearer {token}")]


def examined(daemon):
    page = scrape(daemon)
    return {
        outcome: page.value("gemmd_signed_tokens_total", outcome=outcome) for outcome in ("good", "bad", "unexamined")
    }


def call_each(peers, tokens):
    """Calls on each connection, one for each of its tokens. Returns their statuses."""
    calls = [(peer, peer.start(LIST_DEVICES, bearer(token))) for peer in peers for token in tokens()]
    for peer, stream in calls:
        peer.send(stream, message(b""), end=True)
    return [peer.wait(stream, DEADLINE_S).status for peer, stream in calls]


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_signatures_of_nobody(daemons, battery, tmp_path, kind):
    issuer = Issuer(tmp_path)
    daemon = daemons.start("--devices=cpu", *issuer.trust.flags)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Http2Peer(getattr(daemon, kind))) for _ in range(CONNECTIONS)]
        known = issuer.good()
        # Connections that show a new token at the same time may each have it examined.
        served = call_each(peers[:1], lambda: [known])
        began = time.monotonic()
        statuses = []
        for _ in range(ROUNDS):
            statuses += call_each(peers, lambda: [issuer.bad() for _ in range(STREAMS)])
            served += call_each(peers, lambda: [known])
        took_s = time.monotonic() - began
        assert set(statuses) <= {UNAUTHENTICATED, RESOURCE_EXHAUSTED}
        seen = examined(daemon)
        assert sum(seen.values()) == len(statuses) + 1, seen
        assert statuses.count(UNAUTHENTICATED) == seen["bad"]
        name = f"{len(statuses)} signatures of nobody on {CONNECTIONS} connections ({kind})"
        # Each thread of gRPC may examine one token that another has not counted yet.
        most = CONNECTIONS * (AT_ONCE + took_s) + KEPT_THREADS
        battery.holds(f"{name}: examined", most=most, seen=seen["bad"])
        # On the connections of the attack itself.
        battery.holds(f"{name}: good calls served", least=len(served), seen=served.count(0))
        # A new client's token, from the same host.
        with grpc.insecure_channel(daemon.tcp, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = registry_pb2_grpc.RegistryStub(channel)
            stub.ListDevices(registry_pb2.ListDevicesRequest(), metadata=bearer(issuer.good()), timeout=DEADLINE_S)


def processor_s(daemon):
    """Processor time of the daemon so far."""
    words = pathlib.Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.timed
def test_a_signature_of_nobody_takes_what_any_refused_call_takes(daemons, battery, tmp_path):
    issuer = Issuer(tmp_path)
    daemon = daemons.start("--devices=cpu", *issuer.trust.flags)
    took_s = {}
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Http2Peer(daemon.tcp)) for _ in range(CONNECTIONS)]
        # Of the same length.
        for kind, token in (("unknown", lambda: issuer.bad().replace(".", "_")), ("signed", issuer.bad)):
            before_s = processor_s(daemon)
            for _ in range(10 * ROUNDS):
                assert 0 not in call_each(peers, lambda make=token: [make() for _ in range(STREAMS)])
            took_s[kind] = processor_s(daemon) - before_s
    name = f"{10 * ROUNDS * CONNECTIONS * STREAMS} signatures of nobody: processor time, in that of unknown tokens"
    battery.timed(name, most=1.75, seen=took_s["signed"] / took_s["unknown"])
