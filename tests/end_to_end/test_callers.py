# SPDX-License-Identifier: Apache-2.0
"""Who may do what: rules, tokens, users of unix sockets, and what others learn."""

import base64
import hashlib
import hmac
import importlib
import json
import os
import pkgutil
import queue
import signal
import threading

import gemmd.v1
import grpc
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import admin_pb2, admin_pb2_grpc, gemm_pb2, gemm_pb2_grpc
from gemmd.v1 import registry_pb2, registry_pb2_grpc, resident_pb2, tensors_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kserve.v2 import inference_pb2, inference_pb2_grpc
from signed_tokens import KEY_X, SIGNED
from tensors import DEADLINE_S, Session, by_handle, bytes_spec, refusal

PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

EVERYTHING = ["multiply", "tensors", "statistics", "registry", "reflection", "administer"]
POISON = "poison-d41d8cd98f00b204"  # Begins each static token; no log may have it.


def token_of(name):
    return f"{POISON}-{name}"


class Trust:
    """The files of a daemon's rules."""

    def __init__(self, folder):
        self.rules_file = folder / "rules.json"
        self.tokens_file = folder / "tokens"
        self.keys_file = folder / "keys.json"
        key = {"kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": KEY_X}
        self.keys_file.write_text(json.dumps({"keys": [key]}))
        self.flags = [
            "--lame-duck=1ms",
            f"--rules={self.rules_file}",
            f"--tokens={self.tokens_file}",
            f"--jwt-keys={self.keys_file}",
            "--jwt-audience=gemmd",
            "--jwt-issuer=https://issuer.test",
        ]

    def write(self, rules, tokens=None):
        self.rules_file.write_text(json.dumps({"identities": rules}))
        names = rules if tokens is None else tokens
        self.tokens_file.write_text(
            "".join(
                f"{name}: {hashlib.sha256(token_of(name).encode()).hexdigest()}\n"
                for name in names
                if not name.startswith("uid:") and name != "anonymous"
            )
        )


RULES = {
    "all": {"may": EVERYTHING},
    "second": {"may": EVERYTHING},
    "nothing": {"may": []},
    "only-cpu": {"may": ["multiply"], "devices": ["cpu"]},
    "explains": {"may": ["registry"], "devices": ["sim:sm_90"]},
    "small": {"may": ["multiply", "tensors"], "tensor_bytes": 1048576, "message_bytes": 9000},
    "alice": {"may": ["multiply"]},
} | {role: {"may": [role]} for role in EVERYTHING}


@pytest.fixture(scope="module")
def trust(tmp_path_factory):
    trust = Trust(tmp_path_factory.mktemp("trust"))
    trust.write(RULES)
    return trust


@pytest.fixture(scope="module")
def daemon(gemmd, tmp_path_factory, trust):
    from fixtures import Daemons

    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    daemon = daemons.start("--devices=cpu,sim:sm_90", *trust.flags)
    yield daemon
    daemons.end()
    assert POISON not in daemon.stderr()
    assert SIGNED["good"].split(".")[2] not in daemon.stderr()


def bearer(name):
    return [("authorization", f"Bearer {token_of(name)}")]


def product(size=4, device=""):
    values = np.ones((size, size), np.float32).tobytes()
    operand = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_F32, data=values)
    return gemm_pb2.MultiplyRequest(
        m=size, n=size, k=size, a=operand, b=operand, device=device
    )


def multiply(channel, metadata, **keywords):
    stub = gemm_pb2_grpc.GemmStub(channel)
    return stub.Multiply(product(**keywords), metadata=metadata, timeout=DEADLINE_S)


def methods():
    """Every method of the daemon's services that is not for everybody, so that none can be forgotten."""
    files = [inference_pb2.DESCRIPTOR]
    for module in pkgutil.iter_modules(gemmd.v1.__path__):
        if module.name.endswith("_pb2"):
            files.append(importlib.import_module(f"gemmd.v1.{module.name}").DESCRIPTOR)
    for file in files:
        for service in file.services_by_name.values():
            for method in service.methods:
                if method.name not in FOR_EVERYBODY:
                    yield f"/{service.full_name}/{method.name}"


# What probes of KServe ask, as they ask health.
FOR_EVERYBODY = ("ServerLive", "ServerReady")
DESCRIPTIONS = ("ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "RepositoryIndex")


def role_of(path):
    if path.endswith(("/GetStatistics", "/ModelStatistics")):
        return "statistics"
    if path.endswith(DESCRIPTIONS):
        return "registry"
    service = path.split("/")[1]
    return {
        "gemmd.v1.Gemm": "multiply",
        "inference.GRPCInferenceService": "multiply",
        "gemmd.v1.Tensors": "tensors",
        "gemmd.v1.Registry": "registry",
        "gemmd.v1.Admin": "administer",
        "grpc.reflection.v1alpha.ServerReflection": "reflection",
    }[service]


def call(channel, path, metadata):
    """Sends an empty message as to any method; gives the code and the words."""
    stub = channel.stream_stream(path, lambda data: data, lambda data: data)
    answers = stub(iter([b""]), metadata=metadata, timeout=DEADLINE_S)
    is_answered = False
    try:
        for _ in answers:
            is_answered = True
            answers.cancel()
    except grpc.RpcError as error:
        # What was answered has ended as this side wanted.
        if not is_answered:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


ALL_METHODS = [*methods(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]


def test_whoever_is_not_known_may_call_nothing(channel):
    words = set()
    for path in [*ALL_METHODS, "/gemmd.v1.Nothing/Nothing", "/x"]:
        for metadata in ([], [("authorization", "Bearer x")], [("authorization", "Basic eDp5")]):
            code, text = call(channel, path, metadata)
            assert code == UNAUTHENTICATED, path
            words.add(text)
    assert len(words) == 1, words
    health = health_pb2_grpc.HealthStub(channel)
    answer = health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_each_role_allows_its_own_methods_alone(channel):
    words = set()
    for path in ALL_METHODS:
        for role in [*EVERYTHING, "nothing"]:
            code, text = call(channel, path, bearer(role))
            if role == role_of(path):
                # For a session that is missing, Tensors have the same code.
                assert code != PERMISSION_DENIED and "caller" not in text, (path, role, text)
            else:
                assert code == PERMISSION_DENIED, (path, role)
                words.add(text)
    # What does not exist is refused alike.
    for path in ("/gemmd.v1.Nothing/Nothing", "/x"):
        code, text = call(channel, path, bearer("all"))
        assert code == PERMISSION_DENIED
        words.add(text)
    assert len(words) == 1, words


def test_anybody_may_ask_whether_the_server_lives(channel):
    stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    assert stub.ServerLive(inference_pb2.ServerLiveRequest(), timeout=DEADLINE_S).live
    assert stub.ServerReady(inference_pb2.ServerReadyRequest(), timeout=DEADLINE_S).ready


def test_roles_do_what_they_are_for(channel):
    assert multiply(channel, bearer("multiply")).device == "cpu"
    registry = registry_pb2_grpc.RegistryStub(channel)
    answer = registry.ListDevices(
        registry_pb2.ListDevicesRequest(), metadata=bearer("registry"), timeout=DEADLINE_S
    )
    assert len(answer.devices) == 2
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = reflection.ServerReflectionInfo(
        iter([ask]), metadata=bearer("reflection"), timeout=DEADLINE_S
    )
    names = [service.name for service in next(answers).list_services_response.service]
    assert "gemmd.v1.Gemm" in names
    # Over TCP too, since rules say who it is.
    admin = admin_pb2_grpc.AdminStub(channel)
    code, _ = refusal(
        admin.RestartDevice,
        admin_pb2.RestartDeviceRequest(device="cuda:7"),
        metadata=bearer("administer"),
        timeout=DEADLINE_S,
    )
    assert code == grpc.StatusCode.NOT_FOUND


def encoded(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged_tokens():
    """Tokens that no key has signed, by what is wrong with them."""
    header, claims, signature = SIGNED["good"].split(".")
    unsigned = encoded({"alg": "none"}) + "." + claims + "."
    yield "alg none", unsigned
    yield "alg none with a signature", encoded({"alg": "none"}) + f".{claims}.{signature}"
    public = base64.urlsafe_b64decode(KEY_X + "=")
    for secret in (public, KEY_X.encode(), b""):
        text = encoded({"alg": "HS256", "kid": "k1"}) + "." + claims
        mac = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        yield "HS256 with the public key", f"{text}.{encoded(mac)}"
    yield "other claims", f"{header}.{encoded({'sub': 'all', 'aud': 'gemmd', 'exp': 9**10})}.{signature}"
    yield "no signature", f"{header}.{claims}."
    yield "cut", SIGNED["good"][:-1]
    yield "two parts", f"{header}.{claims}"
    yield "four parts", SIGNED["good"] + ".x"
    yield "padding", SIGNED["good"] + "="
    yield "too long", SIGNED["good"] + "A" * 5000
    yield "empty", ""
    for name in SIGNED:
        if name not in ("good", "no key's id"):
            yield name, SIGNED[name]


def test_signed_tokens(channel):
    for name in ("good", "no key's id"):
        assert multiply(channel, [("authorization", f"Bearer {SIGNED[name]}")]).d
    words = set()
    for name, token in forged_tokens():
        code, text = refusal(multiply, channel, [("authorization", f"Bearer {token}")])
        assert code == UNAUTHENTICATED, name
        words.add(text)
    good = f"Bearer {SIGNED['good']}"
    for values in ([good, good], [good, "Bearer x"], [good[len("Bearer ") :]]):
        code, text = refusal(multiply, channel, [("authorization", value) for value in values])
        assert code == UNAUTHENTICATED
        words.add(text)
    assert len(words) == 1, words


def test_sessions_belong_to_who_opened_them(channel):
    with Session(channel, credentials=bearer("all")) as session:
        tensor = session.put(bytes(1000), name="secret")
        absent = refusal(session.describe, tensors_pb2.TensorRef(handle=bytes(16)))
        assert absent[0] == grpc.StatusCode.NOT_FOUND
        stub = session.stub
        foreign = session.own_metadata + bearer("second")
        unknown = [("gemmd-session", "0" * 32), *bearer("second")]
        request = resident_pb2.ListTensorsRequest()
        nothing = refusal(stub.List, request, metadata=unknown, timeout=DEADLINE_S)
        assert nothing[0] == UNAUTHENTICATED
        assert refusal(stub.List, request, metadata=foreign, timeout=DEADLINE_S) == nothing
        for one in (stub.Describe, stub.Delete):
            assert refusal(one, by_handle(tensor), metadata=foreign, timeout=DEADLINE_S) == nothing
        join = resident_pb2.OpenSessionRequest(token=session.token)
        joined = stub.OpenSession(join, metadata=bearer("second"), timeout=DEADLINE_S)
        assert refusal(next, joined) == nothing
        # Nor with a product.
        ask = product()
        ask.a.ClearField("data")
        ask.a.tensor.tensor.handle = tensor.handle
        gemm = gemm_pb2_grpc.GemmStub(channel)
        assert refusal(gemm.Multiply, ask, metadata=foreign, timeout=DEADLINE_S) == nothing
        # Whoever may hold no tensors is refused before anything is looked for.
        for handle in (tensor.handle, bytes(16)):
            ask.a.tensor.tensor.handle = handle
            mine = session.own_metadata + bearer("multiply")
            code, _ = refusal(gemm.Multiply, ask, metadata=mine, timeout=DEADLINE_S)
            assert code == PERMISSION_DENIED


def test_limits_of_a_caller(channel):
    code, text = refusal(multiply, channel, bearer("only-cpu"), device="sim:sm_90")
    assert code == PERMISSION_DENIED
    # A device that does not exist is refused alike.
    assert refusal(multiply, channel, bearer("only-cpu"), device="cuda:9") == (code, text)
    assert multiply(channel, bearer("only-cpu")).device == "cpu"
    # An explanation is held to them, too.
    registry = registry_pb2_grpc.RegistryStub(channel)

    def explain(device=""):
        ask = registry_pb2.ExplainRequest(request=product(device=device))
        return registry.Explain(ask, metadata=bearer("explains"), timeout=DEADLINE_S)

    assert explain().device == "sim:sm_90"
    assert explain("sim:sm_90").device == "sim:sm_90"
    code, text = refusal(explain, "cpu")
    assert code == PERMISSION_DENIED
    assert refusal(explain, "cuda:9") == (code, text)
    assert multiply(channel, bearer("small"), size=16).d
    code, text = refusal(multiply, channel, bearer("small"), size=64)
    assert code == RESOURCE_EXHAUSTED and "the caller's rules allow 9000" in text
    with Session(channel, credentials=bearer("small")) as session:
        session.put(bytes(1000))
        stream = session.put_stream()
        stream.send(begin=resident_pb2.PutBegin(spec=bytes_spec(2097152)))
        code, text = stream.error()
        assert code == RESOURCE_EXHAUSTED and "tensor_bytes of --rules" in text


def test_the_audit_log(daemons, tmp_path):
    trust = Trust(tmp_path)
    rest = ["tensors", "statistics", "administer"]
    trust.write({"batch": {"may": ["multiply"]}, "keeper": {"may": rest}})
    log = tmp_path / "audit"
    daemon = daemons.start("--devices=cpu", *trust.flags, f"--audit-log={log}")
    with grpc.insecure_channel(daemon.tcp) as channel:
        assert multiply(channel, bearer("batch")).d
        assert refusal(multiply, channel, bearer("stranger"))[0] == UNAUTHENTICATED
        assert refusal(multiply, channel, bearer("batch"), device="none")[0]
        with Session(channel, credentials=bearer("keeper")) as session:
            session.put(b"secret-operand", name="mine")
        for path in ("/gemmd.v1.Registry/GetStatistics", "/gemmd.v1.Admin/ListIncidents"):
            assert call(channel, path, bearer("keeper"))[0] == grpc.StatusCode.OK
        assert call(channel, "/gemmd.v1.Registry/ListDevices", bearer("keeper"))[0]
    daemon.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    rest, lines = lines[3:], lines[:3]
    assert [(line["event"], line["identity"], line["method"]) for line in rest] == [
        ("call", "keeper", "/gemmd.v1.Tensors/OpenSession"),
        ("call", "keeper", "/gemmd.v1.Tensors/Put"),
        ("call", "keeper", "/gemmd.v1.Registry/GetStatistics"),
        ("call", "keeper", "/gemmd.v1.Admin/ListIncidents"),
        ("call_refused", "keeper", "/gemmd.v1.Registry/ListDevices"),
    ]
    assert "secret-operand" not in log.read_text()
    assert [line["event"] for line in lines] == ["product", "call_refused", "product_refused"]
    done, refused, no_device = lines
    assert (done["identity"], done["device"], done["status"]) == ("batch", "cpu", "OK")
    assert done["bytes"] == 3 * 4 * 4 * 4 and done["problem"] and done["kernel"] and done["peer"]
    assert refused["method"] == "/gemmd.v1.Gemm/Multiply"
    assert (no_device["identity"], no_device["status"]) == ("batch", "NOT_FOUND")
    assert POISON not in log.read_text()


def test_the_user_of_a_unix_socket(daemons, tmp_path):
    trust = Trust(tmp_path)
    me = f"uid:{os.getuid()}"
    trust.write({me: {"may": ["multiply"]}})
    daemon = daemons.start("--devices=cpu", *trust.flags)
    with grpc.insecure_channel(daemon.unix) as unix, grpc.insecure_channel(daemon.tcp) as tcp:
        assert multiply(unix, []).d
        assert refusal(multiply, tcp, [])[0] == UNAUTHENTICATED
        # A bad token is not made good by the user.
        assert refusal(multiply, unix, [("authorization", "Bearer x")])[0] == UNAUTHENTICATED
    trust.write({me: {"may": []}, "uid:4294967294": {"may": ["multiply"]}})
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.events("rules_read"), 30, "rules read")
    with grpc.insecure_channel(daemon.unix) as unix:
        assert refusal(multiply, unix, [])[0] == PERMISSION_DENIED


def test_rules_are_read_again_under_load(daemons, tmp_path):
    """Calls of those who keep their role never fail; those who lose it are refused."""
    trust = Trust(tmp_path)
    rules = {"keeps": {"may": ["multiply"]}, "loses": {"may": ["multiply"]}}
    trust.write(rules)
    daemon = daemons.start("--devices=cpu", *trust.flags)
    over = threading.Event()
    failures = []

    def keep_calling():
        with grpc.insecure_channel(daemon.tcp) as channel:
            while not over.is_set():
                try:
                    multiply(channel, bearer("keeps"))
                except grpc.RpcError as error:
                    failures.append(error)

    threads = [threading.Thread(target=keep_calling) for _ in range(2)]
    for thread in threads:
        thread.start()
    with grpc.insecure_channel(daemon.tcp) as channel:
        stream_messages = queue.SimpleQueue()
        stream = gemm_pb2_grpc.GemmStub(channel).MultiplyStream(
            iter(stream_messages.get, None), metadata=bearer("loses"), timeout=DEADLINE_S
        )
        stream_messages.put(gemm_pb2.MultiplyStreamRequest(requests=[product()]))
        next(stream)
        for count in range(1, 6):
            changed = dict(rules)
            changed["loses"] = {"may": []} if count % 2 else {"may": ["multiply"]}
            trust.write(changed)
            daemon.signal(signal.SIGHUP)
            wait_until(lambda: len(daemon.events("rules_read")) >= count, 30, "rules read")
            if count % 2:
                assert refusal(multiply, channel, bearer("loses"))[0] == PERMISSION_DENIED
            else:
                assert multiply(channel, bearer("loses")).d
        # A stream that began before is refused from its next message on.
        stream_messages.put(gemm_pb2.MultiplyStreamRequest(requests=[product()]))
        code, _ = refusal(next, stream)
        assert code == PERMISSION_DENIED
        stream_messages.put(None)
        # A bad file changes nothing and says why.
        trust.rules_file.write_text('{"identities": {"keeps": {"may": ["all"]}}}')
        daemon.signal(signal.SIGHUP)
        kept = wait_until(lambda: daemon.events("rules_kept"), 30, "rules kept")
        assert "identities.keeps.may" in kept[0]["reason"]
        assert refusal(multiply, channel, bearer("loses"))[0] == PERMISSION_DENIED
    over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_files_that_are_wrong_are_told_at_the_start(daemons, tmp_path):
    trust = Trust(tmp_path)
    trust.write({"a": {"may": ["multiply"]}})
    trust.tokens_file.write_text("a: short\n")
    daemon = daemons.launch("--devices=cpu", *trust.flags)
    assert daemon.wait() == 1
    assert "tokens: line 1: got no SHA-256" in daemon.stderr()
    daemon = daemons.launch(f"--tokens={trust.tokens_file}", "--devices=cpu")
    assert daemon.wait() == 1
    assert "rules: got nothing" in daemon.stderr()
