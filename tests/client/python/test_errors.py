# SPDX-License-Identifier: Apache-2.0
"""How calls fail: exceptions with field, got and want, deadlines, and retries."""

import asyncio
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import certificates
import gemmd
import grpc
import numpy as np
import pytest
from daemon import PATIENCE_S, wait_until
from gemmd.channel import Settings
from gemmd.errors import error_of
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, resident_pb2, resident_pb2_grpc
from proxies import Proxy

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90"]

ONE = np.ones((1, 1), np.float32)


def refused(kind, call, *arguments, **keywords):
    with pytest.raises(kind) as raised:
        call(*arguments, **keywords)
    return raised.value


def test_the_server_s_refusals(client):
    error = refused(gemmd.NotFound, client.matmul, ONE, ONE, kernel="no.such")
    assert error.code is grpc.StatusCode.NOT_FOUND
    assert "no.such" in error.message
    error = refused(gemmd.InvalidArgument, client.matmul, ONE, ONE, accumulation_type="s32")
    assert (error.field, error.got) == ("accumulation_type", "s32")
    assert error.want
    assert isinstance(error, ValueError)
    error = refused(gemmd.InvalidArgument, client.matmul, ONE, ONE.astype(np.int8))
    assert (error.field, error.got, error.want) == ("b.type", "s8", "f32 with a.type f32")
    kernel = "mma.m16n8k16.f32.bf16.bf16.f32"
    refused(gemmd.Unimplemented, client.matmul, ONE, ONE, kernel=kernel, device="sim:sm_90")


@pytest.mark.parametrize(
    "message, parts",
    [
        ("a.data: got 4096 bytes, want m*k*4 = 8192", ("a.data", "4096 bytes", "m*k*4 = 8192")),
        ("mask: row 3, group 17: got 3 of it, want 2", ("mask: row 3, group 17", "3 of it", "2")),
        ('name: got "x, want y", want z', ("name", '"x, want y"', "z")),
        ("no kernel; f: a.type: got f32, want f16; g: a.type: got f32, want s8", (None,) * 3),
        ("the server drains", (None, None, None)),
    ],
)
def test_parts_of_a_message(message, parts):
    error = error_of(grpc.StatusCode.INVALID_ARGUMENT, message)
    assert (error.field, error.got, error.want) == parts
    assert str(error) == f"INVALID_ARGUMENT: {message}"


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    "a, b, options, field",
    [
        (zeros(2, 3), zeros(2, 3), {}, "b.shape"),
        (zeros(2, 3, 4), zeros(3, 4, 5), {}, "b.shape"),
        (zeros(2, 3, dtype=np.int64), zeros(3, 2), {}, "a.dtype"),
        (np.float32(2), zeros(3, 2), {}, "a"),
        (ONE, ONE, {"out": zeros(2, 2)}, "out.shape"),
        (ONE, ONE, {"out": np.broadcast_to(ONE, (1, 1))}, "out"),
        (ONE, ONE, {"order": "K"}, "order"),
        (ONE, ONE, {"activation": "tanh"}, "activation"),
        (ONE, ONE, {"priority": "unspecified"}, "priority"),
        (ONE, ONE, {"verify": "sometimes"}, "verify"),
        (ONE, ONE, {"verify": "sampled:2"}, "verify"),
        (ONE, ONE, {"verify": "sampled:"}, "verify"),
        (ONE, ONE, {"verify": "checksum:0.5"}, "verify"),
        (ONE, ONE, {"out_type": "f31"}, "out_type"),
        (ONE, ONE, {"a_type": "f16"}, "a.dtype"),
        (ONE, ONE, {"bias": zeros(2)}, "bias.shape"),
        (ONE, ONE, {"c": zeros(2, 2)}, "c.shape"),
        (ONE, ONE, {"beta": 1.0}, "c"),
    ],
)
def test_what_is_refused_before_it_is_sent(client, a, b, options, field):
    assert refused(gemmd.InvalidArgument, client.matmul, a, b, **options).field == field


def test_unknown_options(client):
    tensor = client.put(ONE)
    for call, arguments, options, want in [
        (client.matmul, (ONE, ONE), {"aplha": 2}, "aplha: did you mean alpha?"),
        (client.chain, (ONE, tensor), {"pined": True}, "pined: did you mean pinned?"),
        (client.put, (ONE,), {"spares": True}, "spares: did you mean sparse?"),
        (client.compress, (tensor,), {"nmae": "x"}, "nmae: did you mean name?"),
        (gemmd.Client, ("x:1",), {"max_atempts": 1}, "max_atempts: did you mean max_attempts?"),
        (gemmd.aio.Client, ("x:1",), {"tokn": "t"}, "tokn: did you mean token?"),
        (client.matmul, (ONE, ONE), {"zz": 1, "yy": 2}, "yy, zz"),
    ]:
        assert str(refused(TypeError, call, *arguments, **options)) == f"unknown options: {want}"


@pytest.mark.parametrize(
    "address, options, field",
    [
        ("localhost", {}, "address"),
        ("unix:", {}, "address"),
        ("host:99999", {}, "address"),
        ("host:1", {"max_message_bytes": 1 << 31}, "max_message_bytes"),
        ("host:1", {"max_attempts": 6}, "max_attempts"),
        ("host:1", {"keepalive_s": 1}, "keepalive_s"),
        ("host:1", {"keepalive_s": math.inf}, "keepalive_s"),
        ("host:1", {"keepalive_s": 9e9}, "keepalive_s"),
    ],
)
def test_bad_clients(address, options, field):
    assert refused(gemmd.InvalidArgument, gemmd.Client, address, **options).field == field


BAD_TIMEOUTS = [math.inf, 9e9, math.nan, 0, -1]


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS)
def test_bad_timeouts(client, timeout):
    """Each is refused before anything is sent; None means no limit for the call."""
    tensor = client.put(ONE)
    calls = [
        lambda: client.matmul(ONE, ONE, timeout=timeout),
        lambda: client.multiply(ONE, ONE, timeout=timeout),
        lambda: client.chain(ONE, ONE, timeout=timeout),
        lambda: client.put(ONE, timeout=timeout),
        lambda: client.tensor("x", timeout=timeout),
        lambda: client.tensors(timeout=timeout),
        lambda: client.compress(tensor, timeout=timeout),
        lambda: client.stream(timeout=timeout),
        lambda: client.session(timeout=timeout),
        lambda: client.explain(ONE, ONE, timeout=timeout),
        lambda: client.devices(timeout=timeout),
        lambda: client.kernels(timeout=timeout),
        lambda: client.server_info(timeout=timeout),
        lambda: client.statistics(timeout=timeout),
        lambda: tensor.get(timeout=timeout),
        lambda: gemmd.Client("h:1", timeout=timeout),
    ]
    for call in calls:
        error = refused(gemmd.InvalidArgument, call)
        assert isinstance(error, ValueError)
        assert error.message.startswith(f"timeout: got {timeout}, want a number of seconds above 0"), error.message
    assert client.matmul(ONE, ONE, timeout=None) == 1


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS)
def test_bad_timeouts_of_asyncio(daemon, timeout):
    async def main():
        async with gemmd.aio.Client(daemon.tcp) as client:
            tensor = await client.put(ONE)
            for call in (
                client.matmul(ONE, ONE, timeout=timeout),
                client.put(ONE, timeout=timeout),
                client.tensors(timeout=timeout),
                client.session(timeout=timeout),
                client.devices(timeout=timeout),
                tensor.get(timeout=timeout),
            ):
                with pytest.raises(gemmd.InvalidArgument, match="timeout: got"):
                    await call
            with pytest.raises(gemmd.InvalidArgument, match="timeout: got"):
                client.stream(timeout=timeout)

    asyncio.run(main())


@pytest.mark.parametrize(
    "address, want",
    [
        ("http://127.0.0.1:8470", "'127.0.0.1:8470'"),
        ("https://gemmd.example.org:8470/", "'tls:gemmd.example.org:8470'"),
        ("grpc://h:1", "'h:1'"),
        ("http://h", "host:port"),
        ("::1:8470", "[host]:port for an address of IPv6, as in '[::1]:8470'"),
        ("unix://tmp/x", "'unix:/tmp/x'"),
        ("unix:/" + 107 * "x", "a path of at most 107 bytes, not 108"),
        ("unix-abstract:" + 108 * "x", "a path of at most 107 bytes, not 108"),
        ("dns://h:1", "'dns:///h:1'"),
        ("ipv4:10.0.0.1", "addresses with ports"),
        ("ipv4:10.0.0.1:1,", "addresses with ports"),
        ("user@h:1", "host:port"),
        ("h/x:1", "host:port"),
        ("[::1:1", "host:port"),
        ("a b:1", "host:port"),
        ("tls:tls:h:1", "host:port"),
        ("", "host:port"),
    ],
)
def test_bad_addresses(address, want):
    error = refused(gemmd.InvalidArgument, gemmd.Client, address)
    assert error.message.startswith(f"address: got {address!r}, want {want}"), error


@pytest.mark.parametrize(
    "address",
    ["h:1", "127.0.0.1:8470", "[::1]:8470", "unix:/x", "unix:///x", "unix:x", "unix:/" + 106 * "x"]
    + ["unix-abstract:x", "dns:h:1", "dns:///h:1", "dns://8.8.8.8/h:1", "ipv4:10.0.0.1:1,10.0.0.2:1", "ipv6:[::1]:1"],
)
def test_good_addresses(address):
    gemmd.Client(address).close()


def test_no_proxy_of_the_environment_is_used(daemon, monkeypatch):
    with Proxy() as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        with gemmd.Client(daemon.tcp, token="secret") as client:
            assert client.matmul(ONE, ONE) == 1

        async def main():
            async with gemmd.aio.Client(daemon.tcp, token="secret") as client:
                assert await client.matmul(ONE, ONE) == 1

        asyncio.run(main())
        assert proxy.connections == 0
        with gemmd.Client(daemon.tcp, use_proxy=True, max_attempts=1) as client:
            refused(gemmd.Unavailable, client.devices)
        assert proxy.connections > 0
    error = refused(gemmd.InvalidArgument, gemmd.Client, "127.0.0.1:1", token="secret", use_proxy=True)
    assert "so that the proxy does not read the token" in error.message
    gemmd.Client("tls:127.0.0.1:1", token="secret", use_proxy=True).close()


PRODUCTS = """
import asyncio, gemmd, numpy, sys
one = numpy.ones((1, 1), numpy.float32)
with gemmd.Client(sys.argv[1], token="a.secret") as client:
    assert client.matmul(one, one) == 1
async def main():
    async with gemmd.aio.Client(sys.argv[1], token="a.secret") as client:
        assert await client.matmul(one, one) == 1
asyncio.run(main())
"""


def test_no_proxy_of_addresses_is_used(daemon):
    """gRPC reads its variables once, so another process is needed."""
    with Proxy() as proxy:
        package = str(pathlib.Path(gemmd.__file__).parents[1])
        variables = {
            "PYTHONPATH": package,
            "GRPC_ADDRESS_HTTP_PROXY": proxy.environment["http_proxy"].removeprefix("http://"),
            "GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES": "127.0.0.1,0.0.0.0/0",
        }
        subprocess.run(
            [sys.executable, "-c", PRODUCTS, daemon.tcp], env=os.environ | variables, check=True, timeout=PATIENCE_S
        )
        assert proxy.connections == 0


def test_nobody_there(tmp_path):
    with gemmd.Client(f"unix:{tmp_path}/none", max_attempts=1) as client:
        error = refused(gemmd.Unavailable, client.devices)
    assert isinstance(error, ConnectionError)


@pytest.mark.parametrize("restarts", [2, pytest.param(20, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_restarts_lose_no_call(daemons, gemmload, tmp_path, restarts, kind):
    """The daemon restarts repeatedly at one address, while a Python client and gemmload, which uses
    the C++ client, multiply. All calls that wait for a server get their answers."""
    flags = ["--devices=cpu", "--lame-duck=50ms"]
    listen = f"unix:{tmp_path}/gemmd.sock"
    if kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as server:
            listen = f"127.0.0.1:{server.getsockname()[1]}"
    daemon = daemons.start(*flags, listen=listen)
    long = np.ones((256, 2048), np.float32)  # Is sent over the client's own socket.
    report = tmp_path / "report.json"
    command = [gemmload, f"--address={listen}", "--shape=64,64,64", "--rate=50", "--duration=1h", "--warmup=0s"]
    command += ["--retries=4", "--wait-for-ready", f"--timeout={PATIENCE_S}s", "--quiet", f"--json={report}"]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    answered = []
    is_over = threading.Event()

    def multiply():
        with gemmd.Client(listen, wait_for_ready=True, timeout=PATIENCE_S) as client:
            while not is_over.is_set():
                assert client.matmul(ONE, ONE) == 1
                assert (client.matmul(long, long[:1].T) == 2048).all()
                answered.append(time.monotonic())

    with futures.ThreadPoolExecutor() as threads:
        caller = threads.submit(multiply)
        try:
            for _ in range(restarts):
                before = len(answered)
                wait_until(lambda: caller.done() or len(answered) > before, PATIENCE_S, "an answer")
                daemon.stop()
                daemon = daemons.start(*flags, listen=listen)
            before = len(answered)
            wait_until(lambda: caller.done() or len(answered) > before, PATIENCE_S, "an answer")
        finally:
            is_over.set()
            load.send_signal(signal.SIGINT)
        caller.result()
    load.wait(PATIENCE_S)
    statuses = json.loads(report.read_text())["steps"][0]["calls_by_status"]
    print(len(answered), statuses)
    assert set(statuses) == {"OK"}, statuses


def test_deadline(client):
    large = np.ones((1500, 1500), np.float32)
    error = refused(
        gemmd.DeadlineExceeded, client.matmul, large, large, device="cpu", timeout=0.001
    )
    assert isinstance(error, TimeoutError)


def test_messages_have_a_limit(daemon):
    with gemmd.Client(daemon.tcp, max_message_bytes=1 << 20) as client:
        large = np.ones((1024, 1024), np.float32)
        with client.stream() as stream:
            for call in (client.matmul, client.chain, stream.submit):
                error = refused(gemmd.ResourceExhausted, call, large, large)
                assert error.message.startswith("request: got 8")
                assert "put large operands on the server first" in error.message
        # An answer can be too long as well, which only gRPC notices.
        tall = np.ones((1024, 1), np.float32)
        error = refused(gemmd.ResourceExhausted, client.matmul, tall, tall.T)
        assert "put large operands on the server first" in error.message


def test_a_server_that_is_no_gemmd():
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with gemmd.Client(f"127.0.0.1:{port}") as client:
        error = refused(gemmd.Unimplemented, client.server_info)
    server.stop(None)
    assert error.message == "the server does not know this call: it is no gemmd, or one of another version"


class FullAtFirst(gemm_pb2_grpc.GemmServicer):
    """Refuses its first products like a server whose queue is full."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.pushback_ms = "20"
        self.calls = []
        self._lock = threading.Lock()

    def Multiply(self, request, context):
        with self._lock:
            self.calls.append(dict(context.invocation_metadata()))
            self.refusals -= 1
            is_refused = self.refusals >= 0
        if is_refused:
            context.set_trailing_metadata([("grpc-retry-pushback-ms", self.pushback_ms)])
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue: got 9 requests, want 8")
        response = gemm_pb2.MultiplyResponse(kernel="fake")
        response.d.CopyFrom(gemm_pb2.MultiplyResponse().d)
        response.d.type, response.d.data = 2, np.float32(3).tobytes()
        response.d.rows = response.d.columns = response.d.batch = 1
        return response


@pytest.fixture
def serve():
    """Serves a service of Gemm or Tensors, with TLS if there are credentials. Yields its port."""
    servers = []

    def start(service, credentials=None):
        server = grpc.server(futures.ThreadPoolExecutor(2))
        if isinstance(service, resident_pb2_grpc.TensorsServicer):
            resident_pb2_grpc.add_TensorsServicer_to_server(service, server)
        else:
            gemm_pb2_grpc.add_GemmServicer_to_server(service, server)
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        servers.append(server)
        return port

    yield start
    for server in servers:
        server.stop(0).wait()


def test_pushback_is_told(serve):
    with gemmd.Client(f"127.0.0.1:{serve(FullAtFirst(1))}") as client:
        error = refused(gemmd.ResourceExhausted, client.matmul, ONE, ONE)
    assert (error.pushback_s, error.field) == (0.02, "queue")


def test_pushback_is_waited_for(serve):
    service = FullAtFirst(3)
    with gemmd.Client(f"127.0.0.1:{serve(service)}", wait_when_full=True) as client:
        start = time.monotonic()
        assert client.matmul(ONE, ONE) == 3
        assert time.monotonic() - start >= 0.06
        # A pause that would outlast the call's deadline is not made.
        service.refusals, service.pushback_ms = 1, "600000"
        refused(gemmd.ResourceExhausted, client.matmul, ONE, ONE, timeout=60)
    assert len(service.calls) >= 5


def test_metadata(serve):
    service = FullAtFirst(0)
    with gemmd.Client(f"127.0.0.1:{serve(service)}", metadata=[("a", "1")]) as client:
        client.matmul(ONE, ONE, metadata=[("b", "2")])
    assert service.calls[0].items() >= {"a": "1", "b": "2"}.items()


class AwayAtFirst(resident_pb2_grpc.TensorsServicer):
    """Cannot open its first session."""

    def __init__(self):
        self.tokens = []

    def OpenSession(self, request, context):
        self.tokens.append(request.token)
        if len(self.tokens) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server starts")
        yield resident_pb2.OpenSessionResponse(token=request.token)


def test_a_session_is_joined_once_the_server_is_there(serve):
    async def main(port):
        async with gemmd.aio.Client(f"127.0.0.1:{port}", session="a.token", max_attempts=1) as client:
            with pytest.raises(gemmd.Unavailable, match="the server starts"):
                await client.session()
            assert (await client.session()).token == "a.token"

    service = AwayAtFirst()
    with gemmd.Client(f"127.0.0.1:{serve(service)}", session="a.token", max_attempts=1) as client:
        refused(gemmd.Unavailable, client.session)
        assert client.session().token == "a.token"
    asyncio.run(main(serve(AwayAtFirst())))
    assert service.tokens[:2] == ["a.token"] * 2


@pytest.mark.parametrize("token", ["a\ntoken", "\ud800"])
def test_a_session_that_cannot_be_asked_for(daemon, token):
    """Neither message nor metadata can carry such a token, should one pass the check of the
    options. A waiting caller is told at once, not after the timeout."""
    with gemmd.Client(daemon.tcp) as client:
        client._session._token = token
        error = refused(gemmd.Error, client.session, timeout=PATIENCE_S)
        assert error.code is not grpc.StatusCode.DEADLINE_EXCEEDED and "closed" not in str(error)

    async def main():
        async with gemmd.aio.Client(daemon.tcp) as client:
            client._session.token = token
            with pytest.raises(gemmd.Error) as raised:
                await client.session(timeout=PATIENCE_S)
            assert raised.value.code is not grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(main())


def test_several_servers_share_a_client():
    config = Settings("dns:///gemmd:8470").options()
    assert "round_robin" in dict(config)["grpc.service_config"]
    config = Settings("gemmd:8470").options()
    assert "round_robin" not in dict(config)["grpc.service_config"]


def test_transfers_are_not_retried_by_grpc():
    """They resume by themselves."""
    config = json.loads(dict(Settings("h:1").options())["grpc.service_config"])
    every, transfers = config["methodConfig"]
    assert every["name"] == [{}] and every["retryPolicy"]["maxAttempts"] == 5
    names = [{"service": "gemmd.v1.Tensors", "method": method} for method in ("Put", "Get")]
    assert transfers == {"name": names}


def test_tls(serve, tmp_path):
    authority = certificates.Authority(tmp_path)
    server = authority.sign("server", names=["localhost"])
    ca = str(authority.cert_path)
    service = FullAtFirst(0)
    pair = (server.key_pem(), server.cert_pem)
    port = serve(service, grpc.ssl_server_credentials([pair]))
    good = [
        ("localhost", {"tls_ca": ca}),
        ("tls:localhost", {"tls_ca": ca, "token": "a.secret"}),
        ("127.0.0.1", {"tls_ca": ca, "tls_server_name": "localhost"}),
        ("localhost", {"credentials": grpc.ssl_channel_credentials(authority.cert_pem)}),
    ]
    for host, settings in good:
        with gemmd.Client(f"{host}:{port}", **settings) as client:
            assert client.matmul(ONE, ONE) == 3
    assert [call.get("authorization") for call in service.calls] == [None, "Bearer a.secret"] + [
        None
    ] * 2
    # In plain text, and with a certificate of another host or authority.
    for address, settings in (
        (f"localhost:{port}", {}),
        (f"127.0.0.1:{port}", {"tls_ca": ca}),
        (f"tls:localhost:{port}", {}),
    ):
        with gemmd.Client(address, max_attempts=1, **settings) as client:
            refused(gemmd.Unavailable, client.matmul, ONE, ONE)


@pytest.mark.parametrize("state", certificates.BROKEN)
def test_a_broken_authority_hides_no_other(serve, tmp_path, state):
    authority = certificates.Authority(tmp_path)
    stranger = certificates.Authority(tmp_path, "stranger")
    server = authority.sign("server", names=["localhost"])
    port = serve(FullAtFirst(0), grpc.ssl_server_credentials([(server.key_pem(), server.cert_pem)]))
    broken = certificates.BROKEN[state](stranger)
    bundle = tmp_path / "bundle.pem"
    for good in (authority.cert_pem, authority.trusted_pem):
        bundle.write_bytes(stranger.cert_pem + broken + b"# The next one.\n" + good)
        with pytest.warns(RuntimeWarning, match="whose certificate 2 is broken and left out"):
            with gemmd.Client(f"localhost:{port}", tls_ca=str(bundle)) as client:
                assert client.matmul(ONE, ONE) == 3
    bundle.write_bytes(broken)
    error = refused(gemmd.InvalidArgument, gemmd.Client, "h:1", tls_ca=str(bundle))
    assert error.field == "tls_ca" and str(bundle) in error.got
    bundle.write_bytes(server.cert_pem + broken)
    own = {"tls_cert": str(bundle), "tls_key": str(server.key_path)}
    error = refused(gemmd.InvalidArgument, gemmd.Client, "h:1", **own)
    assert error.field == "tls_cert" and "complete certificates" in error.want


def test_mutual_tls(serve, tmp_path):
    authority = certificates.Authority(tmp_path)
    server, own = authority.sign("server"), authority.sign("client")
    pair = (server.key_pem(), server.cert_pem)
    port = serve(
        FullAtFirst(0), grpc.ssl_server_credentials([pair], authority.cert_pem, True)
    )
    ca, files = str(authority.cert_path), {"tls_cert": str(own.cert_path), "tls_key": str(own.key_path)}
    with gemmd.Client(f"mtls:127.0.0.1:{port}", tls_ca=ca, **files) as client:
        assert client.matmul(ONE, ONE) == 3
    with gemmd.Client(f"tls:127.0.0.1:{port}", tls_ca=ca, max_attempts=1) as client:
        refused(gemmd.Unavailable, client.matmul, ONE, ONE)


def test_a_token_goes_where_nobody_else_reads_it():
    for address in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/x", "tls:h:1"):
        assert "a.secret" not in repr(Settings(address, token="a.secret"))
    for address in ("h:1", "192.0.2.1:1", "127.example.org:1", "dns:///h:1"):
        error = refused(gemmd.InvalidArgument, gemmd.Client, address, token="a.secret")
        assert error.field == "address" and "a.secret" not in str(error)
    for token in ("a secret", "a\n", "x" * 8193):
        error = refused(gemmd.InvalidArgument, gemmd.Client, "tls:h:1", token=token)
        assert error.field == "token" and token not in str(error)


@pytest.mark.parametrize(
    "address, settings, field",
    [
        ("h:1", {"tls_ca": "/missing"}, "tls_ca"),
        ("h:1", {"tls_ca": "/dev/null"}, "tls_ca"),
        ("h:1", {"tls_key": "/dev/null"}, "tls_key"),
        ("mtls:h:1", {}, "tls_key"),
        ("tls:unix:/x", {}, "address"),
        ("tls:tls:h:1", {}, "address"),
        ("tls:h:1", {"credentials": grpc.ssl_channel_credentials()}, "credentials"),
    ],
)
def test_tls_that_makes_no_sense(address, settings, field):
    assert refused(gemmd.InvalidArgument, gemmd.Client, address, **settings).field == field
