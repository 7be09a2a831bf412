# SPDX-License-Identifier: Apache-2.0
"""Requests that would occupy a thread of gRPC's: long patterns and names, long lists, answers that
nobody reads. No call holds a thread for more than 5 ms, as the timed run shows, so others are
served meanwhile."""

import contextlib
import time

import grpc
import metrics_page
import pytest
from bystander import Bystander
from daemon import PATIENCE_S, wait_until
from gemmd.v1 import (
    gemm_pb2,
    gemm_pb2_grpc,
    instructions_pb2,
    registry_pb2,
    registry_pb2_grpc,
    statistics_pb2,
    tensors_pb2,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from http2_peer import (
    MULTIPLY,
    MULTIPLY_STREAM,
    Http2Peer,
    joint_bytes,
    message,
    open_with_closed_windows,
    varint,
)
from named_calls import (
    DEADLINE_S,
    LONGEST_NAME,
    QUESTIONS_OF_PEER,
    listings,
    named,
    refusal,
    small_product,
)

MIB = 1 << 20
GEMMD_FLAGS = [
    "--devices=cpu,sim:sm_90",
    "--metrics-listen=127.0.0.1:0",
    "--max-queued-bytes=96MiB",
]

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
# The status of a call that was not answered.
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE

# A handler's clock also runs while its thread waits for a processor on a busy machine. So each
# request is tried this often, and the smallest of the longest times counts: a request that takes
# long by itself does so every time.
ROUNDS = 10


def test_long_patterns_stop_nobody(attacked, large, battery):
    """Four patterns of 16 MiB once blocked every call for 70 s. One peer's questions may hold half of
    that now, or its connection is closed (test_frames.py), so these four hold exactly as much."""
    registry = registry_pb2_grpc.RegistryStub(large)
    health_request = health_pb2.HealthCheckRequest()
    with grpc.insecure_channel(attacked.daemon.unix) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        health.Check(health_request, timeout=DEADLINE_S)
        # Each position of each name was compared with all of it.
        pattern = "*[" + "q" * (QUESTIONS_OF_PEER // 4) + "]"
        calls = [
            call.future(request, timeout=DEADLINE_S)
            for call, request in listings(registry, pattern) * 2
        ]
        longest = 0
        is_over = False
        while not is_over:
            is_over = all(call.done() for call in calls)
            began = time.monotonic()
            health.Check(health_request, timeout=DEADLINE_S)
            longest = max(longest, time.monotonic() - began)
    refused = sum(call.code() in (RESOURCE_EXHAUSTED, INVALID_ARGUMENT) for call in calls)
    battery.holds("four patterns of 8 MiB: refused", least=len(calls), seen=refused)
    # Sending 32 MiB occupies both processors of a small machine meanwhile.
    battery.timed("four patterns of 8 MiB: health", most=5, seen=longest, unit="s")


def bad_sparse_product():
    """A in the 2:4 form, whose last group is bad."""
    m, k = 256, 4096
    request = gemm_pb2.MultiplyRequest(m=m, n=1, k=k)
    request.a.type = request.b.type = tensors_pb2.ELEMENT_TYPE_S8
    request.a.sparsity = tensors_pb2.SPARSITY_2_4
    request.a.data = bytes(m * k // 2) + b"\x44" * (m * k // 8 - 1) + b"\x04"
    request.b.data = bytes(k)
    return request


def hostile_requests(registry, gemm):
    """Description, call and request."""
    listed = registry_pb2.ListKernelsRequest()
    yield "all kernels", registry.ListKernels, listed
    everything = instructions_pb2.ListInstructionsRequest()
    yield "all instructions", registry.ListInstructions, everything
    patterns = {
        "stars": "*a" * 64,
        "brackets": "*[" + "q" * 124 + "]",
        "classes": "*" + "[[:alpha:]]" * 11,
        "questions": "*?" * 64,
        "one in two": "*[02468]_*",
        "too long": "*a" * 64 + "*",
        "much too long": "*a" * 250_000,
        "16 MiB": "*[" + "q" * (16 * MIB) + "]",
    }
    for name, pattern in patterns.items():
        for call, request in listings(registry, pattern):
            yield f"pattern: {name}", call, request
    for name in ("mma.m16n8k16.f32.f61.f16.f32", "x" * LONGEST_NAME, "", "€" * 42):
        for field, call, request in named(registry, gemm, name):
            yield f"unknown {field}", call, request
    for operand in range(1, 6):
        for name in ("wgmma.m64n256k16.f32.bf16.bf16", "mma.sp.m16n8k64.s32.s8.u8.s32"):
            fragment = instructions_pb2.DescribeFragmentRequest(instruction=name, operand=operand)
            yield "fragment", registry.DescribeFragment, fragment
    product = small_product()
    for device in ("cpu", "sim:sm_90"):
        product.device = device
        explained = registry_pb2.ExplainRequest(request=product)
        yield f"explanation on {device}", registry.Explain, explained
        refused = gemm_pb2.MultiplyRequest(m=2, n=2, k=2, device=device, require_deterministic=True)
        refused.a.type = tensors_pb2.ELEMENT_TYPE_B1
        refused.b.type = tensors_pb2.ELEMENT_TYPE_B1
        refused.a.data = refused.b.data = bytes(2)
        refused.kernel = "wgmma.m64n256k16.f32.bf16.bf16"
        yield f"unsupported on {device}", gemm.Multiply, refused
    yield "devices", registry.ListDevices, registry_pb2.ListDevicesRequest()
    yield "statistics", registry.GetStatistics, statistics_pb2.GetStatisticsRequest()
    yield "information", registry.GetServerInfo, registry_pb2.GetServerInfoRequest()


def large_products():
    """Description and bytes: megabytes, of which as much as possible is scanned."""
    product = gemm_pb2.MultiplyRequest(m=5, n=5, k=1 << 20)
    product.a.type = product.b.type = tensors_pb2.ELEMENT_TYPE_F32
    product.a.data = product.b.data = bytes(20 * MIB)
    yield "a product of 40 MiB", product.SerializeToString()
    product.a.data = bytes(20 * MIB - 1)
    yield "a product of 40 MiB that is short", product.SerializeToString()
    # A field of two bytes two million times: the last one counts.
    for field in gemm_pb2.MultiplyRequest.DESCRIPTOR.fields:
        if field.message_type:
            yield f"two million of {field.name}", (varint(field.number << 3 | 2) + b"\0") * (2 * MIB)
    yield "a text of 20 MiB", text_field("kernel", b"x" * (20 * MIB))
    yield "two million texts", text_field("device", b"x") * (2 * MIB)
    yield "groups within groups", b"\xf3\x07" * (2 * MIB)
    yield "unknown numbers", b"\xf8\x07\x00" * (2 * MIB)
    yield "unknown bytes", b"\xfa\x07" + varint(20 * MIB) + bytes(20 * MIB)


def text_field(name, text):
    number = gemm_pb2.MultiplyRequest.DESCRIPTOR.fields_by_name[name].number
    return varint(number << 3 | 2) + varint(len(text)) + text


def large_requests(channel, session):
    """Description, call and bytes: of products, alone and on a stream, and of other methods."""
    product, stream = channel.unary_unary(MULTIPLY), channel.stream_stream(MULTIPLY_STREAM)
    explain = channel.unary_unary("/gemmd.v1.Registry/Explain")
    put = channel.stream_stream("/gemmd.v1.Tensors/Put")

    def streamed(call):
        return lambda body, timeout: list(call(iter([body]), timeout=timeout, metadata=session.metadata))

    for name, body in large_products():
        yield name, product, body
        yield f"{name} on a stream", streamed(stream), joint_bytes(body)
    yield "a message of nothing known", streamed(stream), b"\xf8\x07\x00" * (2 * MIB)
    # As large as the methods accept.
    yield "half a million of a", explain, joint_bytes(b"\x32\0" * (MIB // 2 - 8))
    yield "half a million chunks", streamed(put), b"\x1a\0" * (MIB // 2)
    offsets = b"\x08\x01" * (MIB // 2)
    yield "half a million offsets", streamed(put), b"\x1a" + varint(len(offsets)) + offsets


def timed_since(daemon, before):
    """A handler is timed once it has ended, which is after its answer."""
    return metrics_page.longest_handler_ms(metrics_page.scrape(daemon), before)


def test_no_call_holds_a_thread_for_long(attacked, large, session, battery, is_sanitized, is_timed):
    registry = registry_pb2_grpc.RegistryStub(large)
    gemm = gemm_pb2_grpc.GemmStub(large)
    longest = {}
    requests = 0
    for name, call, request in (*hostile_requests(registry, gemm), *large_requests(large, session)):
        requests += 1
        seen = []
        for _ in range(ROUNDS if is_timed else 1):
            before = metrics_page.scrape(attacked.daemon)
            try:
                call(request, timeout=DEADLINE_S)
            except grpc.RpcError as error:
                assert error.code() not in (DEADLINE_EXCEEDED, UNAVAILABLE), (name, error)
            seen.append(
                wait_until(lambda before=before: timed_since(attacked.daemon, before), PATIENCE_S, f"{name} timed")
            )
            if max(seen[-1].values()) <= 5:
                break
        least = min(max(times.values()) for times in seen)
        longest[name] = max(longest.get(name, 0), least)
    print(longest)
    battery.holds("requests that would keep a thread: answered", least=97, seen=requests)
    slowest = max(longest, key=longest.get)
    # AddressSanitizer takes two to four times as long.
    most = 20 if is_sanitized else 5
    battery.timed(f"a handler ({slowest})", most=most, seen=longest[slowest], unit="ms")


def mean_ms(daemon, call, request, times=100):
    """How long a handler of Multiply held its thread, including the end of its call."""
    totals = []
    for _ in range(2):
        page = metrics_page.scrape(daemon)
        labels = frozenset({("method", "Multiply")})
        totals.append(
            [page.samples.get((f"gemmd_handler_seconds_{what}", labels), 0) for what in ("sum", "count")]
        )
        for _ in range(times if len(totals) == 1 else 0):
            refusal(call, request)
    (sum_before, count_before), (sum_after, count_after) = totals
    assert count_after >= count_before + times
    return 1e3 * (sum_after - sum_before) / times


@pytest.mark.timed
def test_suggestions_take_little_time(attacked, large, battery, is_sanitized):
    """Finding the names nearest to an unknown one once took 15 ms of processor time."""
    multiply = gemm_pb2_grpc.GemmStub(large).Multiply
    unknown = small_product(kernel="wgmma.m64n256k16.f32.bf16.bf17" + "x" * 64)
    refused = small_product(m=-1)
    beyond = [
        mean_ms(attacked.daemon, multiply, unknown) - mean_ms(attacked.daemon, multiply, refused) for _ in range(5)
    ]
    print(beyond)
    # A handler's clock also runs while its thread waits for a processor: the minimum counts.
    battery.timed("an unknown kernel's suggestions", most=2 if is_sanitized else 0.2, seen=min(beyond), unit="ms")


def test_bad_indices_are_refused_as_before(attacked, large):
    """The device's thread checks them; tests/server/wire/convert_test.cc shows that no other
    does."""
    gemm = gemm_pb2_grpc.GemmStub(large)
    request = bad_sparse_product()
    for device in ("cpu", "sim:sm_90"):
        request.device = device
        code, text = refusal(gemm.Multiply, request)
        assert code == INVALID_ARGUMENT
        assert text == "a.data: row 255, group 1023: got indices 0, 0, want increasing"


# The memory that gRPC keeps for each call that waits for its reader, in addition to the answer.
CALL_BYTES = 32 << 10


def unread_questions():
    """Their answers take 100 to 200 KB each."""
    service = "/gemmd.v1.Registry/"
    explain = registry_pb2.ExplainRequest(request=small_product(device="sim:sm_90")).SerializeToString()
    fragment = instructions_pb2.DescribeFragmentRequest(operand=4)
    bodies = []
    for n in range(8, 257, 8):
        fragment.instruction = f"wgmma.m64n{n}k16.f32.bf16.bf16"
        bodies.append((service + "DescribeFragment", message(fragment.SerializeToString())))
    bodies += [(service + "Explain", message(explain))] * len(bodies)
    listing = registry_pb2.ListKernelsRequest().SerializeToString()
    return bodies + [(service + "ListKernels", message(listing))] * (len(bodies) // 2)


def ask(peer, bodies):
    """The calls."""
    calls = []
    for path, body in bodies:
        calls.append(peer.start(path))
        peer.send(calls[-1], body, end=True, limit_s=PATIENCE_S)
    return calls


def refusal_of_a_question(daemon, address=None):
    """None if it is answered."""
    question = registry_pb2.ExplainRequest(request=small_product(device="sim:sm_90"))
    with grpc.insecure_channel(address or daemon.unix) as channel:
        try:
            registry_pb2_grpc.RegistryStub(channel).Explain(question, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            assert error.code() == RESOURCE_EXHAUSTED
            return error
    return None


@pytest.mark.resident_memory
def test_unread_answers_take_bounded_memory(daemons, battery, is_timed):
    """Unread answers: above 32 MiB further ones are refused, except small ones and those that are
    kept anyway. One host has half of that. When their peers are gone there is room again."""
    daemon = daemons.start("--lame-duck=1ms", *GEMMD_FLAGS, "--send-timeout=10m")
    bodies = unread_questions()
    with Bystander(daemon) as bystander:
        before = daemon.rss_bytes()
        with contextlib.ExitStack() as stack, grpc.insecure_channel(daemon.unix) as channel:
            registry = registry_pb2_grpc.RegistryStub(channel)
            calls, refused = 0, None
            for i in range(12):
                # Of three hosts the last one meets the bound of all: two that have reached their own
                # bounds leave less than an answer each, which together may be one.
                peer = Http2Peer(daemon.tcp, own_host=f"127.0.0.{i % 3 + 2}")
                calls += len(ask(stack.enter_context(peer), bodies))
                refused = refused or refusal_of_a_question(daemon)
                if refused and not is_timed:
                    break
            # The peers' requests are answered only when the daemon has had time to read them.
            refused = refused or wait_until(lambda: refusal_of_a_question(daemon), PATIENCE_S, "no room for an answer")
            assert ("grpc-retry-pushback-ms", "100") in refused.trailing_metadata()
            assert registry.GetServerInfo(registry_pb2.GetServerInfoRequest(), timeout=DEADLINE_S)
            assert registry.ListKernels(registry_pb2.ListKernelsRequest(), timeout=DEADLINE_S)
            battery.holds(f"{calls} answers that nobody reads: room for another", most=0, seen=refused is None)
            grown = daemon.rss_bytes() - before
            most = 32 + 8 + 16 + calls * CALL_BYTES / MIB
            battery.timed("answers that nobody reads", most=most, seen=grown / MIB, unit="MiB")
        wait_until(lambda: refusal_of_a_question(daemon) is None, PATIENCE_S, "room for an answer")
        bystander.check_served()


def test_unread_answers_of_one_host_leave_room_for_others(daemons, battery):
    daemon = daemons.start("--lame-duck=1ms", *GEMMD_FLAGS, "--send-timeout=10m")
    bodies = unread_questions()
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            ask(stack.enter_context(Http2Peer(daemon.tcp)), bodies)
        refused = wait_until(lambda: refusal_of_a_question(daemon, daemon.tcp), PATIENCE_S, "no room for its host")
        assert "unread answers of this caller hold" in refused.details()
        served = refusal_of_a_question(daemon) is None
    battery.holds("unread answers of one host: another is served", least=1, seen=served)


def test_unread_answers_end(daemons, battery):
    """Their calls end once the time to read them is over, although the peer is still connected."""
    timeout_s = 1
    daemon = daemons.start("--lame-duck=1ms", *GEMMD_FLAGS, f"--send-timeout={timeout_s}s")
    with open_with_closed_windows(daemon.tcp) as peer:
        calls = ask(peer, unread_questions()[:80])
        began = time.monotonic()

        def have_ended():
            peer.receive(0)
            return all(map(peer.is_over, calls))

        wait_until(have_ended, PATIENCE_S, "the calls ended")
        took = time.monotonic() - began
    battery.holds("answers that nobody reads: calls ended", least=len(calls), seen=sum(map(peer.is_over, calls)))
    # The timeout, one round of the watch, and the delay of a busy machine.
    battery.timed("answers that nobody reads: ended", most=timeout_s + 1.25 + 10, seen=took, unit="s")
    assert refusal_of_a_question(daemon) is None
