# SPDX-License-Identifier: Apache-2.0
"""Thousands of damaged requests, sent as raw bytes to every method: each gets a proper status,
never INTERNAL or UNKNOWN, and a bystander's product is right after all of them."""

import re
from collections import Counter

import grpc
import pytest
from gemmd.v1 import gemm_pb2, registry_pb2
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from http2_peer import joint_bytes
from mutation import BadRequest, bad_product, bad_small, good_requests, one_for_each_status
from streams import answers_in

COUNT = 4000  # Damaged products; methods with smaller requests get a tenth of it.
AT_ONCE = 50
DEADLINE_S = 60

# Such a small maximum message that no answer takes long.
GEMMD_FLAGS = ["--max-message-bytes=1MiB", "--max-queued-bytes=1000000"]

OK = grpc.StatusCode.OK
# Proper statuses for a readable request.
PROPER = {
    OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,  # An operand that is a tensor, in a call without a session.
}
# gRPC's own status if the bytes are not such a message, before any of our code sees them:
# UNIMPLEMENTED without a text in 1.51, INTERNAL in other versions.
UNREADABLE = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL}
# The daemon's text if it parses the bytes itself.
UNREADABLE_TEXT = re.compile(r"(request|message): got bytes that are not a message")


def parses(message_type, data):
    try:
        message_type.FromString(data)
        return True
    except DecodeError:
        return False


def send_all(channel, path, requests):
    """Each request's outcome: status code, text, answer."""
    method = channel.unary_unary(path)
    for start in range(0, len(requests), AT_ONCE):
        some = requests[start : start + AT_ONCE]
        for call in [method.future(request.data, timeout=DEADLINE_S) for request in some]:
            yield call.code(), call.details(), call.result() if call.code() == OK else None


def check_outcomes(battery, message_type, requests, outcomes):
    """Counts the codes; fails if one is improper."""
    counts = Counter()
    disagreements = 0
    for request, (code, text, _) in zip(requests, outcomes, strict=True):
        what = f"{code} {text!r} for {request.data.hex()}"
        can_be_read = parses(message_type, request.data)
        is_no_message = bool(UNREADABLE_TEXT.match(text or ""))
        if is_no_message or (code in UNREADABLE and not text):
            assert request.is_damaged, what
            disagreements += can_be_read
            counts["unreadable"] += 1
            continue
        assert code in PROPER, what
        assert code == OK or text, f"no reason: {what}"
        disagreements += not can_be_read
        counts[code] += 1
    print(dict(counts), f"{disagreements} disagreements")
    # Python's parser and that of C++ differ in which tags of more than 32 bits they accept.
    name = f"{len(requests)} damaged {message_type.DESCRIPTOR.name}s: read as only one parser reads them"
    battery.holds(name, most=len(requests) // 50, seen=disagreements)
    return counts


def test_multiply(attacked, channel, rng, battery):
    good = good_requests(rng)
    requests = [bad_product(rng, good) for _ in range(COUNT)]
    sure = one_for_each_status()
    assert set(sure) == PROPER
    for request in sure.values():
        requests.append(BadRequest(request.SerializeToString(), is_damaged=False))
    outcomes = list(send_all(channel, "/gemmd.v1.Gemm/Multiply", requests))
    counts = check_outcomes(battery, gemm_pb2.MultiplyRequest, requests, outcomes)
    assert [code for code, _, _ in outcomes[COUNT:]] == list(sure)
    assert counts["unreadable"] > 0
    for code, _, answer in outcomes:
        if code == OK:
            product = gemm_pb2.MultiplyResponse.FromString(answer)
            assert len(product.d.data) == product.bytes_written


def test_explain(attacked, channel, rng, battery):
    good = good_requests(rng)

    def wrap(request):
        return registry_pb2.ExplainRequest(request=request)

    requests = [bad_product(rng, good, wrap) for _ in range(COUNT)]
    outcomes = send_all(channel, "/gemmd.v1.Registry/Explain", requests)
    counts = check_outcomes(battery, registry_pb2.ExplainRequest, requests, outcomes)
    assert set(counts) >= {OK, grpc.StatusCode.INVALID_ARGUMENT, "unreadable"}


@pytest.mark.parametrize(
    "name,good",
    [
        ("ListKernels", registry_pb2.ListKernelsRequest(name_pattern="onednn.*")),
        ("ListDevices", registry_pb2.ListDevicesRequest()),
        ("GetServerInfo", registry_pb2.GetServerInfoRequest()),
    ],
)
def test_registry(attacked, channel, rng, battery, name, good):
    requests = [bad_small(rng, good) for _ in range(COUNT // 10)]
    outcomes = send_all(channel, f"/gemmd.v1.Registry/{name}", requests)
    assert set(check_outcomes(battery, type(good), requests, outcomes)) == {OK, "unreadable"}


def in_messages(products, rng):
    """A few products in each message."""
    products = list(products)
    while products:
        size = rng.randrange(1, 6)
        yield joint_bytes(*products[:size])
        del products[:size]


def test_multiply_stream(attacked, channel, rng, battery):
    """Each request is answered, readable or not."""
    good = good_requests(rng)
    method = channel.stream_stream("/gemmd.v1.Gemm/MultiplyStream")
    answered = 0
    for _ in range(COUNT // 80):
        requests = [bad_product(rng, good) for _ in range(40)]
        readable = [request.data for request in requests if not request.is_damaged]
        call = method(in_messages(readable, rng), timeout=DEADLINE_S)
        answers = list(answers_in(map(gemm_pb2.MultiplyStreamResponse.FromString, call)))
        assert len(answers) == len(readable)
        for answer in answers:
            if answer.WhichOneof("outcome") == "error":
                assert answer.error.code in {code.value[0] for code in PROPER - {OK}}, answer
                assert answer.error.message
            else:
                assert len(answer.response.d.data) == answer.response.bytes_written
        answered += len(answers)
        # Unreadable ones among the others.
        everything = in_messages([request.data for request in requests], rng)
        call = method(everything, timeout=DEADLINE_S)
        responses = map(gemm_pb2.MultiplyStreamResponse.FromString, call)
        assert len(list(answers_in(responses))) == len(requests)
    battery.holds("damaged requests on streams: answered", least=COUNT // 8 + 1, seen=answered)


def test_an_unreadable_request_does_not_end_its_stream(attacked, channel, rng, battery):
    method = channel.stream_stream("/gemmd.v1.Gemm/MultiplyStream")
    good = good_requests(rng)[0].SerializeToString()
    call = method(iter([joint_bytes(good, b"\xff\xff\xff", good)]), timeout=DEADLINE_S)
    answers = list(answers_in(map(gemm_pb2.MultiplyStreamResponse.FromString, call)))
    refusals = [answer.error for answer in answers if answer.HasField("error")]
    battery.holds("an unreadable request amid a stream: answered", least=3, seen=len(answers))
    codes = [refusal.code for refusal in refusals]
    assert codes == [grpc.StatusCode.INVALID_ARGUMENT.value[0]], refusals
    assert UNREADABLE_TEXT.match(refusals[0].message)


def drain(call, proper):
    """The answers on a stream, which may end with an error."""
    answers = []
    try:
        for answer in call:
            answers.append(answer)
    except grpc.RpcError:
        assert call.code() in proper, (call.code(), call.details())
    return answers


def test_health_and_reflection(attacked, channel, rng, battery):
    """gRPC's services, on the same port."""
    good = health_pb2.HealthCheckRequest(service="gemmd.v1.Gemm")
    requests = [bad_small(rng, good) for _ in range(COUNT // 10)]
    outcomes = list(send_all(channel, "/grpc.health.v1.Health/Check", requests))
    improper = [(code, text) for code, text, _ in outcomes if code not in PROPER]
    print(improper)
    battery.holds("damaged requests of health: improper codes", most=0, seen=len(improper))
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
    for request in requests[:20]:
        call = watch(request.data, timeout=DEADLINE_S)
        try:
            health_pb2.HealthCheckResponse.FromString(next(call))
        except grpc.RpcError:
            assert call.code() in PROPER | UNREADABLE, (call.code(), call.details())
        call.cancel()
    reflect = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    )
    good = reflection_pb2.ServerReflectionRequest(file_containing_symbol="gemmd.v1.Gemm")
    for _ in range(20):
        requests = [bad_small(rng, good).data for _ in range(10)]
        for answer in drain(reflect(iter(requests), timeout=DEADLINE_S), PROPER | UNREADABLE):
            reflection_pb2.ServerReflectionResponse.FromString(answer)
