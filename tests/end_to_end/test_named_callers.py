# SPDX-License-Identifier: Apache-2.0
"""Callers known by the names in their certificates, and by tokens whose keys and clocks change: who
is admitted, and that nobody with a right is ever refused."""

import base64
import contextlib
import json
import signal
import threading
import time

import certificates
import grpc
import pytest
from callers import PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAUTHENTICATED, call, multiply
from daemon import wait_until
from signed_tokens import Signer
from tensors import DEADLINE_S, refusal

SKEW_S = 60  # WebTokenRules::clock_skew_s.
AT_ONCE = 8  # Bad tokens on a connection, and one a second: Trust::kBadTokensOfConnection.
TEAM = "spiffe://corp/team"
MULTIPLY = "/gemmd.v1.Gemm/Multiply"
STATISTICS = "/gemmd.v1.Registry/GetStatistics"
RULES = {
    f"{TEAM}/one": {"may": ["multiply"]},
    f"{TEAM}/*": {"may": ["statistics"]},
    "node.test": {"may": ["multiply"]},
    "uid:0": {"may": ["multiply"]},
    "anonymous": {"may": ["multiply"]},
    "alice": {"may": ["multiply"]},
}


class Site:
    """A daemon for callers with certificates, and for callers with signed tokens."""

    def __init__(self, daemons, folder):
        self.folder = folder
        self.authority = certificates.Authority(folder)
        self.stranger = certificates.Authority(folder, "stranger")
        self.server = self.authority.sign("server")
        self.rules = folder / "rules.json"
        self.rules.write_text(json.dumps({"identities": RULES}))
        self.keys = folder / "keys.json"
        self.signer = Signer("first")
        self.publish(self.signer)
        self.daemon = daemons.start(
            "--devices=cpu",
            "--cpu-threads=1",
            "--lame-duck=1ms",
            f"--tls-cert={self.server.cert_path}",
            f"--tls-key={self.server.key_path}",
            f"--client-ca={self.authority.cert_path}",
            f"--rules={self.rules}",
            f"--jwt-keys={self.keys}",
            "--jwt-audience=gemmd",
            listen="tls:127.0.0.1:0,mtls:127.0.0.1:0",
        )
        self.reads = 0

    def publish(self, *signers, others=()):
        keys = json.dumps({"keys": [*others, *(signer.public() for signer in signers)]})
        certificates.replace(self.keys, keys.encode())

    def read_again(self):
        self.reads += 1
        self.daemon.signal(signal.SIGHUP)
        wait_until(lambda: len(self.daemon.events("rules_read")) >= self.reads, DEADLINE_S, "files read")

    @contextlib.contextmanager
    def channel(self, kind, pair=None):
        own = (pair.key_pem(), pair.cert_pem) if pair else (None, None)
        credentials = grpc.ssl_channel_credentials(self.authority.cert_pem, *own)
        address = next(a for a in self.daemon.addresses if a.startswith(f"{kind}:"))
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        with grpc.secure_channel(address.removeprefix(f"{kind}:"), credentials, options) as made:
            yield made


@pytest.fixture(scope="module")
def site(gemmd, tmp_path_factory):
    from fixtures import Daemons

    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    yield Site(daemons, tmp_path_factory.mktemp("certificates"))
    daemons.end()


def bearer(token):
    return [("authorization", f"Bearer {token}")]


def codes(site, names, stem, metadata=()):
    """What a caller with these names may do: the status codes of a product and of the
    statistics."""
    with site.channel("mtls", site.authority.sign(stem, names=names)) as made:
        with contextlib.suppress(grpc.RpcError):
            multiply(made, list(metadata))
            return "multiplies", call(made, STATISTICS, list(metadata))[0]
        return call(made, MULTIPLY, list(metadata))[0], call(made, STATISTICS, list(metadata))[0]


NAMED = {
    "the name itself": ([f"{TEAM}/one"], "multiplies", PERMISSION_DENIED),
    "a pattern": ([f"{TEAM}/two"], PERMISSION_DENIED, grpc.StatusCode.OK),
    "a host": (["node.test"], "multiplies", PERMISSION_DENIED),
    "the first that has a rule": (
        ["spiffe://other/x", f"{TEAM}/two", f"{TEAM}/one"],
        PERMISSION_DENIED,
        grpc.StatusCode.OK,
    ),
    "URIs before hosts": (["node.test", f"{TEAM}/two"], PERMISSION_DENIED, grpc.StatusCode.OK),
    "a wrong name": (["spiffe://corp/other"], PERMISSION_DENIED, PERMISSION_DENIED),
    "the beginning of a name": ([TEAM], PERMISSION_DENIED, PERMISSION_DENIED),
    "a longer name": ([f"{TEAM}s/one"], PERMISSION_DENIED, PERMISSION_DENIED),
    "a host below": (["a.node.test"], PERMISSION_DENIED, PERMISSION_DENIED),
    "no name but an address": (["192.0.2.1"], "multiplies", PERMISSION_DENIED),  # `anonymous`.
}


@pytest.mark.parametrize("who", NAMED)
def test_the_names_of_a_certificate_say_what_it_may(site, who):
    names, product, statistics = NAMED[who]
    assert codes(site, names, "caller") == (product, statistics)


def test_a_certificate_is_nobody_elses(site):
    """A certificate never identifies a user of a unix socket or `anonymous`, whatever names it has,
    nor does it replace a bad token. Callers of the other address, without a certificate, show
    nothing."""
    for name in ("uid:0", "anonymous"):
        product, statistics = codes(site, [name], "pretender")
        assert product in (PERMISSION_DENIED, UNAUTHENTICATED), name
        assert statistics in (PERMISSION_DENIED, UNAUTHENTICATED), name
    assert codes(site, [f"{TEAM}/one"], "bad", bearer("x"))[0] == UNAUTHENTICATED
    assert codes(site, [f"{TEAM}/two"], "good", bearer(site.signer.token()))[0] == "multiplies"
    with site.channel("tls") as made:
        assert multiply(made, []).d  # `anonymous` may.
        assert call(made, STATISTICS, [])[0] == PERMISSION_DENIED


def test_a_name_that_a_strange_authority_vouches_for_is_none(site):
    with site.channel("mtls", site.stranger.sign("forged", names=[f"{TEAM}/one"])) as made:
        assert refusal(multiply, made, [])[0] == grpc.StatusCode.UNAVAILABLE


def test_the_clock_of_the_issuer_may_differ_so_much_and_no_more(site):
    now = time.time()
    margin = 60  # For busy machines.
    with site.channel("tls") as made:

        def code(**claims):
            try:
                multiply(made, bearer(site.signer.token(**claims)))
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        assert code(exp=now - SKEW_S + margin) == grpc.StatusCode.OK
        assert code(exp=now - SKEW_S - 1) == UNAUTHENTICATED
        assert code(nbf=now + SKEW_S - 1) == grpc.StatusCode.OK
        assert code(nbf=now + SKEW_S + margin) == UNAUTHENTICATED


@pytest.mark.parametrize("kind", ["tls", "mtls"])
def test_bad_tokens_on_a_connection_are_examined_a_few_times(site, kind):
    impostor = Signer("first")
    pair = site.authority.sign("pretender") if kind == "mtls" else None
    good = bearer(site.signer.token())
    with site.channel(kind, pair) as made:
        assert multiply(made, good).d
        began = time.monotonic()
        codes = [refusal(multiply, made, bearer(impostor.token(jti=i)))[0] for i in range(40)]
        examined = codes.count(UNAUTHENTICATED)
        assert AT_ONCE <= examined <= AT_ONCE + time.monotonic() - began
        assert examined + codes.count(RESOURCE_EXHAUSTED) == len(codes)
        assert multiply(made, good).d  # It is cached.
    with site.channel(kind, pair) as made:
        assert multiply(made, bearer(site.signer.token(jti="new"))).d


def test_keys_of_tokens_change_under_load_and_no_good_call_is_lost(site):
    """The usual order: both keys, then tokens of the new one, then only the new key."""
    old, new = site.signer, Signer("second")
    token = [old.token()]
    over, failures, calls = threading.Event(), [], [0]

    def keep_calling():
        with site.channel("tls") as made:
            while not over.is_set():
                try:
                    multiply(made, bearer(token[0]))
                    calls[0] += 1
                except grpc.RpcError as error:
                    failures.append(error)

    thread = threading.Thread(target=keep_calling)
    thread.start()
    try:
        with site.channel("tls") as made:
            assert refusal(multiply, made, bearer(new.token()))[0] == UNAUTHENTICATED
            site.publish(old, new)
            site.read_again()
            token[0] = new.token()
            assert multiply(made, bearer(token[0])).d
            assert multiply(made, bearer(old.token())).d
            before = calls[0]
            wait_until(lambda: calls[0] > before + 1, 60, "calls with the new token alone")
            site.publish(new)
            site.read_again()
            # Also a token that was accepted and cached before.
            assert refusal(multiply, made, bearer(old.token()))[0] == UNAUTHENTICATED
            # Another key with the same id.
            impostor = Signer("second")
            assert refusal(multiply, made, bearer(impostor.token()))[0] == UNAUTHENTICATED
            before = calls[0]
            wait_until(lambda: calls[0] > before, 60, "calls after the change")
    finally:
        over.set()
        thread.join()
        site.publish(old)
        site.read_again()
    assert not failures, failures[0]


def test_a_bad_key_of_a_set_stops_nobody(site):
    """Keys that an issuer adds for others: an old RSA key, and one without its numbers."""
    modulus = base64.urlsafe_b64encode(bytes([255] * 128)).decode().rstrip("=")
    short = {"kty": "RSA", "kid": "short", "n": modulus, "e": "AQAB"}
    try:
        site.publish(site.signer, others=[short, {"kty": "RSA", "kid": "none", "e": "AQAB"}])
        site.read_again()
        wait_until(lambda: len(site.daemon.events("jwt_key_left_out")) >= 2, DEADLINE_S, "both keys told")
        reasons = [event["reason"] for event in site.daemon.events("jwt_key_left_out")]
        assert [reason.split(":")[0] for reason in reasons] == ["keys[0].n", "keys[1].n"], reasons
        assert "got 1024 bits" in reasons[0]
        with site.channel("tls") as made:
            assert multiply(made, bearer(site.signer.token())).d
    finally:
        site.publish(site.signer)
        site.read_again()
