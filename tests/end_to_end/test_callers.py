# SPDX-License-Identifier: Apache-2.0
"""Who may do what: rules, tokens, users of unix sockets, and what callers without rights learn."""

import base64
import hashlib
import hmac
import json

import grpc
import metrics_page
import pytest
from callers import (
    EVERYTHING,
    PERMISSION_DENIED,
    POISON,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    Trust,
    bearer,
    call,
    multiply,
    product,
)
from gemmd.v1 import admin_pb2, admin_pb2_grpc, gemm_pb2_grpc, incidents_pb2
from gemmd.v1 import registry_pb2, registry_pb2_grpc, resident_pb2, statistics_pb2, tensors_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kserve.v2 import inference_pb2, inference_pb2_grpc
from served_methods import method_paths
from signed_tokens import KEY_X, SIGNED
from tensors import DEADLINE_S, Session, by_handle, bytes_spec, refusal

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
    flags = ["--devices=cpu,sim:sm_90", "--metrics-listen=127.0.0.1:0"]
    daemon = daemons.start(*flags, *trust.flags)
    yield daemon
    daemons.end()
    assert POISON not in daemon.stderr()
    assert SIGNED["good"].split(".")[2] not in daemon.stderr()


# KServe's probes, which are open like health.
FOR_EVERYBODY = ("/ServerLive", "/ServerReady")
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
        "grpc.reflection.v1.ServerReflection": "reflection",
        "grpc.reflection.v1alpha.ServerReflection": "reflection",
    }[service]


ALL_METHODS = [
    *(path for path in method_paths() if not path.endswith(FOR_EVERYBODY)),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]


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
                if path.endswith(("/RestartDevice", "/DropSession")):
                    assert "want a unix socket" in text, (role, text)
                    continue
                # Tensors returns the same code for a missing session.
                assert code != PERMISSION_DENIED and "caller" not in text, (path, role, text)
            else:
                assert code == PERMISSION_DENIED, (path, role)
                words.add(text)
    # Methods that do not exist are refused in the same way.
    for path in ("/gemmd.v1.Nothing/Nothing", "/x"):
        code, text = call(channel, path, bearer("all"))
        assert code == PERMISSION_DENIED
        words.add(text)
    assert len(words) == 1, words


def test_anybody_may_ask_whether_the_server_lives(channel):
    stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    assert stub.ServerLive(inference_pb2.ServerLiveRequest(), timeout=DEADLINE_S).live
    assert stub.ServerReady(inference_pb2.ServerReadyRequest(), timeout=DEADLINE_S).ready


def test_who_administers_restarts_devices_over_unix_sockets_alone(daemon):
    codes = []
    for address in (daemon.tcp, daemon.unix):
        with grpc.insecure_channel(address) as channel:
            code, _ = refusal(
                admin_pb2_grpc.AdminStub(channel).RestartDevice,
                admin_pb2.RestartDeviceRequest(device="cuda:7"),
                metadata=bearer("administer"),
                timeout=DEADLINE_S,
            )
            codes.append(code)
    assert codes == [PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND]


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
    # Over TCP too, since rules identify the caller.
    incidents = admin_pb2_grpc.AdminStub(channel).ListIncidents(
        incidents_pb2.ListIncidentsRequest(), metadata=bearer("administer"), timeout=DEADLINE_S
    )
    assert incidents.found == 0


def encoded(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged_tokens():
    """Tokens that no key has signed, by their fault."""
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


def test_signed_tokens(daemon, channel):
    for name in ("good", "no key's id"):
        assert multiply(channel, [("authorization", f"Bearer {SIGNED[name]}")]).d
    words = set()
    for name, token in forged_tokens():
        # Each on its own connection, since one connection only examines a few at once.
        with grpc.insecure_channel(daemon.tcp, [("grpc.use_local_subchannel_pool", 1)]) as own:
            code, text = refusal(multiply, own, [("authorization", f"Bearer {token}")])
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
        # A caller without the right to tensors is refused before anything is looked up.
        for handle in (tensor.handle, bytes(16)):
            ask.a.tensor.tensor.handle = handle
            mine = session.own_metadata + bearer("multiply")
            code, _ = refusal(gemm.Multiply, ask, metadata=mine, timeout=DEADLINE_S)
            assert code == PERMISSION_DENIED


def test_limits_of_a_caller(channel):
    code, text = refusal(multiply, channel, bearer("only-cpu"), device="sim:sm_90")
    assert code == PERMISSION_DENIED
    # A device that does not exist is refused in the same way.
    assert refusal(multiply, channel, bearer("only-cpu"), device="cuda:9") == (code, text)
    assert multiply(channel, bearer("only-cpu")).device == "cpu"
    # The limits also apply to explanations.
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


def test_metrics_tell_what_callers_had(daemon, channel):
    """Earlier tests do not matter, since only the increase is checked."""

    def totals(name, *labels):
        samples = metrics_page.scrape(daemon).with_labels(name)
        return {tuple(kinds[label] for label in labels): value for kinds, value in samples}

    products, compute, tensors = (f"gemmd_caller_{what}" for what in (
        "products_total", "compute_seconds_total", "tensor_bytes"))  # fmt: skip
    for _ in range(2):
        multiply(channel, bearer("all"), size=64)
    multiply(channel, bearer("small"))
    before = totals(products, "rule", "outcome"), totals(compute, "rule")
    for _ in range(3):
        multiply(channel, bearer("all"), size=64)
    assert refusal(multiply, channel, bearer("small"), size=64)[0] == RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError):
        multiply(channel, [])
    after = totals(products, "rule", "outcome"), totals(compute, "rule")
    added = {key: after[0][key] - before[0].get(key, 0) for key in after[0]}
    assert {key: count for key, count in added.items() if count} == {
        ("all", "answered"): 3,
        ("small", "refused"): 1,
    }
    assert after[1]["all",] > before[1]["all",]
    assert after[1]["small",] == before[1]["small",]
    registry = registry_pb2_grpc.RegistryStub(channel)
    ask = statistics_pb2.GetStatisticsRequest()
    told = registry.GetStatistics(ask, metadata=bearer("statistics"), timeout=DEADLINE_S).callers
    assert {each.rule: (each.answered, each.refused) for each in told if each.rule in RULES} == {
        rule: (after[0][rule, "answered"], after[0][rule, "refused"]) for rule, in after[1]
    }
    held = totals(tensors, "rule").get(("second",), 0)
    with Session(channel, credentials=bearer("second")) as session:
        session.put(bytes(5000))
        assert totals(tensors, "rule")["second",] >= held + 5000
