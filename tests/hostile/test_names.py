# SPDX-License-Identifier: Apache-2.0
"""Names and patterns that are too long, and unknown names."""

import concurrent.futures
import statistics
import time

import grpc
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc, registry_pb2_grpc
from named_calls import DEADLINE_S, LONGEST_NAME, listings, named, refusal, small_product
from streams import answers_in, joint

MIB = 1 << 20
GEMMD_FLAGS = ["--devices=cpu,sim:sm_90", "--max-queued-bytes=100MiB"]

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SHOWN = 64
LONGEST_REQUEST = 4096


def test_names_and_patterns_have_a_bounded_length(attacked, large, battery):
    registry = registry_pb2_grpc.RegistryStub(large)
    gemm = gemm_pb2_grpc.GemmStub(large)
    refused = 0
    for size in (LONGEST_NAME + 1, 4000, 100_000):
        text = f"got {size} bytes, want at most {LONGEST_NAME}"
        calls = [("name_pattern", *call) for call in listings(registry, "*" * size)]
        for field, call, request in [*calls, *named(registry, gemm, "x" * size)]:
            want = (INVALID_ARGUMENT, f"{field}: {text}")
            # What takes a name alone takes no such request at all.
            if request.ByteSize() > LONGEST_REQUEST and not hasattr(request, "m") and not hasattr(request, "request"):
                got = f"request: got {request.ByteSize()} bytes, want at most {LONGEST_REQUEST}"
                want = (RESOURCE_EXHAUSTED, got)
            assert refusal(call, request) == want
            refused += 1
    battery.holds("names and patterns that are too long: refused", least=30, seen=refused)
    for call, request in listings(registry, "*" * LONGEST_NAME):
        call(request, timeout=DEADLINE_S)


def test_errors_repeat_little_of_a_name(attacked, large, battery):
    """A name of the maximum length, of characters of several bytes; then one of 32 MiB, which was
    once repeated as a whole."""
    registry = registry_pb2_grpc.RegistryStub(large)
    gemm = gemm_pb2_grpc.GemmStub(large)
    for character in ("x", "ä", "€", "🐍"):
        name = ("-" + character * LONGEST_NAME).encode()[:LONGEST_NAME].decode(errors="ignore")
        for field, call, request in named(registry, gemm, name):
            if field == "request_id":
                continue
            code, text = refusal(call, request)
            assert code == NOT_FOUND
            [shown] = [part for part in text.split() if part.startswith("-")]
            assert name.startswith(shown.removesuffix("...,")), text
            assert len(shown.removesuffix("...,").encode()) <= SHOWN, text
    name = "y" * (32 * MIB)
    longest = 0
    for field, call, request in named(registry, gemm, name):
        code, text = refusal(call, request)
        assert code in (INVALID_ARGUMENT, RESOURCE_EXHAUSTED), field
        longest = max(longest, len(text))
    battery.holds("a name of 32 MiB: the error", most=200, seen=longest, unit="bytes")


def test_unknown_names_do_not_end_a_stream(attacked, large, battery):
    """A name that was cut inside a character was not valid text, and Python ended the stream."""
    gemm = gemm_pb2_grpc.GemmStub(large)
    requests = [small_product(kernel="x" * i + "€" * 40, request_id=f"{i}") for i in range(4)]
    requests.append(small_product(device="🐍" * 20, request_id="device"))
    requests.append(small_product(kernel="€" * 50, request_id="too long"))
    requests.append(small_product(request_id="🐍" * MIB))
    answers = {
        answer.request_id: answer.error.code
        for answer in answers_in(gemm.MultiplyStream(joint(requests), timeout=DEADLINE_S))
    }
    battery.holds("unknown names in a stream: answered", least=len(requests), seen=len(answers))
    long_id = answers.pop("🐍" * (LONGEST_NAME // 4))
    assert long_id == answers.pop("too long") == INVALID_ARGUMENT.value[0]
    assert answers == dict.fromkeys([*"0123", "device"], NOT_FOUND.value[0])


CALLERS = 4
PAUSE_S = 0.02  # So all callers together make nearly 200 calls a second.


class Callers:
    """Send one request repeatedly, each on its own connection, until told to stop."""

    def __init__(self, daemon, request):
        self._channels = [
            grpc.insecure_channel(daemon.tcp, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CALLERS)
        ]
        self._pool = concurrent.futures.ThreadPoolExecutor(CALLERS)
        self._request = request
        self._stopped = False
        self.calls = 0

    def __enter__(self):
        for channel in self._channels:
            self._pool.submit(self._call, gemm_pb2_grpc.GemmStub(channel))
        return self

    def _call(self, stub):
        while not self._stopped:
            refusal(stub.Multiply, self._request)
            self.calls += 1
            time.sleep(PAUSE_S)

    def __exit__(self, *_):
        self._stopped = True
        self._pool.shutdown()
        for channel in self._channels:
            channel.close()


def median_ms(stub, seconds):
    """The median time of a bystander's products."""
    times = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        stub.Multiply(small_product(), timeout=DEADLINE_S)
        times.append(time.monotonic() - began)
    return 1e3 * statistics.median(times)


@pytest.mark.timed
def test_callers_of_unknown_names_slow_nobody_down(attacked, battery):
    """A bystander's products beside callers of an unknown kernel take at most twice as long as
    alone. The callers pause between their calls, so that the daemon is measured and not the
    processors that it shares with them; beside as many callers of a negative size, which costs
    nothing, it takes as long. (Each unknown name once took 35 ms of processor time.)"""
    unknown = small_product(kernel="x" * LONGEST_NAME)
    cheap = small_product(kernel="x" * LONGEST_NAME, m=-1)
    seconds = 10 if battery.is_long else 2
    to_alone, to_cheap = [], []
    with grpc.insecure_channel(attacked.daemon.unix) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        for _ in range(3):
            alone = median_ms(stub, seconds)
            with Callers(attacked.daemon, cheap):
                beside_cheap = median_ms(stub, seconds)
            with Callers(attacked.daemon, unknown) as callers:
                beside_unknown = median_ms(stub, seconds)
                wait_until(
                    lambda callers=callers: callers.calls > CALLERS, DEADLINE_S, "calls refused"
                )
            print(f"alone {alone:.3f} ms, beside cheap {beside_cheap:.3f}, beside unknown {beside_unknown:.3f}")
            to_alone.append(beside_unknown / alone)
            to_cheap.append(beside_unknown / beside_cheap)
    for than, ratios in (("alone", to_alone), ("beside other refusals", to_cheap)):
        attack = f"unknown names: p50 of others to that {than}"
        battery.timed(attack, most=2, seen=statistics.median(ratios), unit="times")
