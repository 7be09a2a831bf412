# SPDX-License-Identifier: Apache-2.0
"""Clients on an untrusted network in front of the real Envoy, with gemmd behind it: who gets
through, and what the edge stops."""

import contextlib
import hashlib
import hmac
import socket
import ssl
import struct
import time

import grpc
import numpy as np
import pytest
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, registry_pb2, registry_pb2_grpc, tensors_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

import certificates
from callers import RESOURCE_EXHAUSTED, UNAUTHENTICATED, call, multiply, product
from daemon import wait_until
from edge import Ecdsa, Edge, bearer, channel, edge_fixture, encoded  # noqa: F401
from replicas import LIMIT_S
from streams import answers_in, joint
from tensors import DEADLINE_S, Session, by_handle, bytes_spec

MULTIPLY = "/gemmd.v1.Gemm/Multiply"
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
F32 = tensors_pb2.ELEMENT_TYPE_F32


edge = edge_fixture()


def filters(config):
    """The HTTP filters by name, for a test that lowers a limit."""
    (chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
    http = chain["filters"][-1]["typed_config"]
    return {part["name"]: part["typed_config"] for part in http["http_filters"]}


def passed_on(edge):
    """The number of calls that Envoy has passed on to gemmd, including those of sessions."""
    clusters = ("gemmd", "gemmd_sessions")
    return sum(edge.envoy.count(f"cluster.{name}.upstream_rq_total") for name in clusters)


@pytest.mark.parametrize("kid", ["e", "r"])
def test_a_token_opens_the_edge_and_gemmd_knows_its_subject(edge, channel, kid):
    subject = {"e": "alice", "r": "bob"}[kid]
    answer = multiply(channel, bearer(edge.issuer.token(subject, kid)))
    assert np.frombuffer(answer.d.data, np.float32).tolist() == [4.0] * 16
    wait_until(
        lambda: any(line.get("identity") == subject for line in edge.audited()), LIMIT_S, "audited"
    )


def bad_credentials(issuer):
    """Invalid credentials, by their fault."""
    good = issuer.token()
    _, claims, signature = good.split(".")
    yield "none", []
    yield "another scheme", [("authorization", "Basic eDp5")]
    now = int(time.time())
    changes = {
        "another audience": {"aud": "other"},
        "no audience": {"aud": None},
        "another issuer": {"iss": "https://other.example"},
        "no issuer": {"iss": None},
        "expired": {"exp": now - 3600},
        "no expiry": {"exp": None},
        "not good yet": {"nbf": now + 3600},
        "a stranger's key": {"key": Ecdsa()},
        "another key's name": {"header": {"alg": "ES256", "kid": "r"}},
        "another algorithm": {"header": {"alg": "RS256", "kid": "e"}},
    }
    for what, change in changes.items():
        yield what, bearer(issuer.token(**change))
    unsigned = encoded({"alg": "none"}) + "." + claims
    yield "alg none", bearer(f"{unsigned}.")
    yield "alg none with a signature", bearer(f"{unsigned}.{signature}")
    text = encoded({"alg": "HS256", "kid": "r"}) + "." + claims
    modulus = issuer.keys["r"].public()["n"].encode()
    forged = hmac.new(modulus, text.encode(), hashlib.sha256).digest()
    yield "HS256 with the public key", bearer(f"{text}.{encoded(forged)}")
    yield "cut", bearer(good[:-2])


def test_bad_tokens_never_reach_gemmd(edge, channel):
    multiply(channel, bearer(edge.issuer.token()))
    asked = passed_on(edge)
    for what, metadata in bad_credentials(edge.issuer):
        assert call(channel, MULTIPLY, metadata)[0] == UNAUTHENTICATED, what
        code, _ = call(channel, "/grpc.health.v1.Health/Check", metadata)
        assert code == UNAUTHENTICATED, what
    assert asked and passed_on(edge) == asked


def test_gemmd_has_the_last_word(edge, channel):
    """Envoy requires no subject and knows no rules."""
    for subject in (None, "nobody", "uid:0", "anonymous"):
        code, _ = call(channel, MULTIPLY, bearer(edge.issuer.token(subject)))
        assert code in (UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED), subject
        assert any(line["event"] == "call_refused" for line in edge.audited())


def test_who_names_himself_is_still_his_token(edge, channel):
    """The edge sets this header itself: a client's own value could lead to another caller's pod."""
    said = [*bearer(edge.issuer.token("bob")), ("x-gemmd-identity", "alice")]
    with Session(channel, credentials=said) as session:
        tensor = session.put(b"bob's", bytes_spec(5))
        with edge.channel() as other, Session(
            other, credentials=bearer(edge.issuer.token("bob"))
        ) as same:
            assert same.get(by_handle(tensor))[1] == b"bob's"


def test_resident_tensors_are_found_over_every_connection(edge):
    """There are two daemons, and a session lives in one: the identity always leads to the same
    one."""
    ones = np.ones((8, 8), np.float32).tobytes()
    with contextlib.ExitStack() as stack:
        for name in ("alice", "bob"):
            credentials = bearer(edge.issuer.token(name))
            first = stack.enter_context(
                Session(stack.enter_context(edge.channel()), credentials=credentials)
            )
            tensor = first.put(ones, bytes_spec(len(ones)))
            for _ in range(6):
                with edge.channel() as channel, Session(channel, credentials=credentials) as other:
                    assert other.get(by_handle(tensor))[1] == ones
                    request = product(8)
                    assert other.multiply(request).d.data


def test_streams_pass(edge, channel):
    requests = [product(4) for _ in range(20)]
    for i, request in enumerate(requests):
        request.request_id = str(i)
    stub = gemm_pb2_grpc.GemmStub(channel)
    metadata = bearer(edge.issuer.token())
    answers = stub.MultiplyStream(joint(requests, 3), metadata=metadata, timeout=DEADLINE_S)
    assert {answer.request_id for answer in answers_in(answers)} == {str(i) for i in range(20)}


def test_messages_of_64_mib_pass_both_ways(edge, channel):
    side = 4096
    column = np.arange(side, dtype=np.float32)
    whole = np.ones((side, side), np.float32)
    stub = gemm_pb2_grpc.GemmStub(channel)

    def ask(m, n, k, a, b):
        a, b = (tensors_pb2.Operand(type=F32, data=x.tobytes()) for x in (a, b))
        request = gemm_pb2.MultiplyRequest(m=m, n=n, k=k, a=a, b=b)
        metadata = bearer(edge.issuer.token())
        return np.frombuffer(
            stub.Multiply(request, metadata=metadata, timeout=DEADLINE_S).d.data, np.float32
        )

    assert ask(side, 1, side, whole, column).tolist() == [float(column.sum(dtype=np.float64))] * side
    outer = ask(side, side, 1, column, np.ones(side, np.float32)).reshape(side, side)
    assert (outer == column[:, None]).all()


# What a client may show in TLS.

# The beginning of an HTTP/2 connection: the preface, and settings without a change.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


@contextlib.contextmanager
def secured(edge, version=None, client=None):
    """A connection on which the client has sent its preface."""
    context = ssl.create_default_context(cafile=str(edge.world.authority.cert_path))
    context.set_alpn_protocols(["h2"])
    if version:
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")
    if client:
        context.load_cert_chain(client.cert_path, client.key_path)
    with socket.create_connection(("127.0.0.1", edge.port), timeout=LIMIT_S) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            secure.sendall(PREFACE)
            yield secure


def handshake(edge, *shown, **more):
    """The agreed version and the certificate's number, once the server has answered."""
    with secured(edge, *shown, **more) as secure:
        if not secure.recv(1):
            raise ConnectionError("closed")
        return secure.version(), secure.getpeercert()["serialNumber"]


def test_only_tls_1_3_is_spoken(edge):
    assert handshake(edge)[0] == "TLSv1.3"
    versions = ssl.TLSVersion
    for version in (versions.TLSv1_2, versions.TLSv1_1, versions.TLSv1):
        with pytest.raises(ssl.SSLError, match="(?i)alert protocol version"):
            handshake(edge, version)
    before = edge.envoy.count("http.gemmd.downstream_rq_total")
    with socket.create_connection(("127.0.0.1", edge.port), timeout=LIMIT_S) as plain:
        plain.sendall(PREFACE)
        assert plain.recv(1) in (b"", b"\x15"), "neither the end nor an alert of TLS"
    assert edge.envoy.count("http.gemmd.downstream_rq_total") == before


def test_a_certificate_may_be_shown_but_not_a_bad_one(edge):
    with edge.channel(edge.world.client) as channel:
        assert multiply(channel, bearer(edge.issuer.token())).d
        assert call(channel, MULTIPLY, [])[0] == UNAUTHENTICATED, "a certificate is no token"
    for make in ("wrong authority", "self-signed", "expired"):
        shown = certificates.STRANGERS[make](edge.world)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(edge, client=shown)


def test_a_renewed_certificate_is_shown(edge):
    renewed = edge.world.authority.sign("renewed")
    try:
        edge.show(renewed)
        wait_until(lambda: int(handshake(edge)[1], 16) == renewed.serial, LIMIT_S, "renewed")
    finally:
        edge.show(edge.world.server)


# What the edge holds off.


def is_closed(peer):
    """Whether the other side has closed it by now."""
    peer.settimeout(0.001)
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_one_connection_too_many_is_closed_at_once(edge, channel):
    multiply(channel, bearer(edge.issuer.token()))
    limits = "connection_limit.edge.active_connections"
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", edge.port)))
            for _ in range(260)
        ]
        wait_until(lambda: sum(map(is_closed, peers[200:])) > 55, LIMIT_S, "those beyond the limit are closed")
        assert edge.envoy.count("connection_limit.edge.limited_connections") > 55
        # Connected clients continue.
        multiply(channel, bearer(edge.issuer.token()))
        # None of them has sent anything.
        wait_until(lambda: edge.envoy.count(limits) <= 2, LIMIT_S, "the silent ones are closed")
    with edge.channel() as other:
        assert multiply(other, bearer(edge.issuer.token())).d


def test_streams_and_windows_of_a_connection_are_bounded(edge):
    """According to the settings that Envoy sends first: RFC 9113, section 6.5."""
    with secured(edge) as secure, secure.makefile("rb") as answer:
        size, kind, _, stream = struct.unpack(">3sBBI", answer.read(9))
        assert (kind, stream) == (4, 0), "no settings"
        told = dict(struct.iter_unpack(">HI", answer.read(int.from_bytes(size, "big"))))
    max_concurrent_streams, initial_window_size = 3, 4
    assert told[max_concurrent_streams] == 100
    assert told[initial_window_size] == 1 << 20


@pytest.mark.parametrize(
    "headers",
    [
        [("x", "y" * 30_000)],
        [(f"x{i}", "y") for i in range(80)],
        [("under_score", "y")],
    ],
    ids=["long", "many", "underscore"],
)
def test_headers_are_bounded(edge, channel, headers):
    good = bearer(edge.issuer.token())
    few = [("x", "y" * 1000), *((f"x{i}", "y") for i in range(20))]
    asked = passed_on(edge)
    call(channel, MULTIPLY, [*good, *few])
    assert passed_on(edge) == asked + 1
    assert call(channel, MULTIPLY, [*good, *headers])[0] != grpc.StatusCode.OK
    assert passed_on(edge) == asked + 1


@pytest.mark.parametrize(
    "path",
    [
        "/gemmd.v1.Admin/ListIncidents",
        "/gemmd.v1.Gemm/../gemmd.v1.Admin/ListIncidents",
        "/gemmd.v1.Tensors/../gemmd.v1.Admin/ListIncidents",
        "/gemmd.v1.Tensors/%2e%2e%2fgemmd.v1.Admin/ListIncidents",
        "//gemmd.v1.Admin/ListIncidents",
        "/gemmd.v1.Gemm/%2e%2e/gemmd.v1.Admin/ListIncidents",
        "/gemmd.v1.Gemm%2f..%2fgemmd.v1.Admin/ListIncidents",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/gemmd.v1.Nothing/Nothing",
    ],
)
def test_other_methods_are_not_there(edge, channel, path):
    asked = passed_on(edge)
    for extra in ([], [("gemmd-session", "x")]):
        code, _ = call(channel, path, [*bearer(edge.issuer.token()), *extra])
        assert code in (UNIMPLEMENTED, grpc.StatusCode.INTERNAL), path
    assert passed_on(edge) == asked


def test_methods_that_are_not_of_products_pass(edge, channel):
    metadata = bearer(edge.issuer.token())
    registry = registry_pb2_grpc.RegistryStub(channel)
    listed = registry.ListDevices(registry_pb2.ListDevicesRequest(), metadata=metadata)
    assert [device.name for device in listed.devices] == ["cpu"]
    health = health_pb2_grpc.HealthStub(channel)
    asked = health_pb2.HealthCheckRequest(service="gemmd.v1.Gemm")
    answer = health.Check(asked, metadata=metadata, timeout=DEADLINE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_clients_share_no_connection_to_gemmd(edge):
    before = edge.envoy.count("cluster.gemmd.upstream_cx_total")
    metadata = bearer(edge.issuer.token())
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            multiply(stack.enter_context(edge.channel()), metadata)
        assert edge.envoy.count("cluster.gemmd.upstream_cx_total") >= before + 8


def lowered(which, most):
    """An edit of the configuration: this many calls, and no more for an hour."""
    bucket = {"max_tokens": most, "tokens_per_fill": 1, "fill_interval": "3600s"}

    def edit(config):
        (descriptor,) = filters(config)[which]["descriptors"]
        descriptor["token_bucket"] = bucket

    return edit


@pytest.fixture
def limited(tree, program, tmp_path):
    """An edge with a limit that a test can reach."""
    edges = []

    def start(which, most):
        edges.append(Edge(program, tree, tmp_path, lowered(which, most)))
        return edges[-1]

    yield start
    for edge in edges:
        edge.end()


def test_too_many_calls_of_one_identity(limited):
    edge = limited("by_identity", 10)
    with edge.channel() as channel:
        alice, bob = (bearer(edge.issuer.token(name)) for name in ("alice", "bob"))
        for _ in range(10):
            multiply(channel, alice)
        # A new token of hers, over another connection.
        with edge.channel() as other, pytest.raises(grpc.RpcError) as refused:
            multiply(other, bearer(edge.issuer.token("alice", "r", jti="another")))
        assert refused.value.code() == RESOURCE_EXHAUSTED
        trailers = dict(refused.value.trailing_metadata())
        assert int(trailers["grpc-retry-pushback-ms"]) > 0
        for _ in range(10):
            multiply(channel, bob)
        code, _ = call(channel, MULTIPLY, alice)
        assert code == RESOURCE_EXHAUSTED


def test_too_many_calls_of_one_address(limited):
    """Before a signature is verified."""
    edge = limited("by_address", 10)
    with edge.channel() as channel:
        codes = [call(channel, MULTIPLY, bearer("x.y.z"))[0] for _ in range(12)]
        assert codes == [UNAUTHENTICATED] * 10 + [RESOURCE_EXHAUSTED] * 2
