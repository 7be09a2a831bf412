# SPDX-License-Identifier: Apache-2.0
"""A daemon that may map little memory (ulimit -v) and is asked for more: it refuses, survives and
serves."""

import collections
import concurrent.futures
import dataclasses
import math
import os
import resource
import signal

import grpc
import pytest
import small_product
from daemon import Daemon, wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from kserve.v2 import inference_pb2
from tensors import Session

MIB = 1 << 20
GIB = 1 << 30
DEADLINE_S = 600

# CUDA reserves more addresses than that for itself.
pytestmark = pytest.mark.own_device

FLAGS = ["--lame-duck=1ms", "--devices=cpu,sim:sm_90"]
CODES = {code.value[0]: code for code in grpc.StatusCode}
OK = grpc.StatusCode.OK
# gRPC closes connections when its quota is used up.
REFUSALS = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}


def product(m, n, k, element, result, with_operands=True, **fields):
    request = gemm_pb2.MultiplyRequest(m=m, n=n, k=k, **fields)
    request.a.type = request.b.type = ELEMENTS[element].number
    request.d.type = ELEMENTS[result].number
    if with_operands:
        request.a.data = bytes(m * k * ELEMENTS[element].bits // 8)
        request.b.data = bytes(k * n * ELEMENTS[element].bits // 8)
    return request


def zeros(size, **fields):
    """A few bytes that ask for a result of this size."""
    return product(1, size, 0, "s8", "s8", with_operands=False, **fields)


def gaps(mib, **fields):
    """Lines of one element in a result of `mib` MiB."""
    request = product(mib, 1, 0, "s8", "s8", with_operands=False, **fields)
    request.d.leading_dimension = MIB
    return request


def connect(address):
    options = ["grpc.max_receive_message_length", "grpc.max_send_message_length"]
    return grpc.insecure_channel(
        address, [*((name, -1) for name in options), ("grpc.use_local_subchannel_pool", 1)]
    )


def together(count, ask):
    """How often each code was returned to `count` simultaneous requests."""
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        rounds = [threads.submit(ask) for _ in range(count)]
        return sum((collections.Counter(round.result()) for round in rounds), collections.Counter())


def products(address, count, request):
    body = request.SerializeToString()

    def ask():
        with connect(address) as channel:
            call = channel.unary_unary("/gemmd.v1.Gemm/Multiply").future(body, timeout=DEADLINE_S)
            return [call.code()]

    return together(count, ask)


def streams(address, count, request):
    """Three products on each of `count` streams."""

    def ask():
        with connect(address) as channel:
            messages = iter([gemm_pb2.MultiplyStreamRequest(requests=[request])] * 3)
            stream = gemm_pb2_grpc.GemmStub(channel).MultiplyStream(messages, timeout=DEADLINE_S)
            seen = []
            try:
                for message in stream:
                    for answer in message.answers:
                        seen.append(CODES[answer.error.code] if answer.HasField("error") else OK)
            except grpc.RpcError as refused:
                seen.append(refused.code())
            return seen

    return together(count, ask)


def uploads(address, count, size):
    codes = collections.Counter()
    with connect(address) as channel, Session(channel) as session:
        for _ in range(count):
            try:
                session.put(bytes(size), hashed=False)
                codes[OK] += 1
            except grpc.RpcError as refused:
                codes[refused.code()] += 1
    return codes


def check_lives(daemon):
    """The memory taken by the attack is soon free again: the daemon now and then checks how much
    there is."""

    def served():
        assert daemon.process.poll() is None, daemon.stderr()[-4000:]
        try:
            small_product.multiply(daemon.tcp)
        except grpc.RpcError as refused:
            assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused
            assert refused.details().startswith("memory:"), refused
            return False
        return True

    wait_until(served, 60, "a small product served")
    with connect(daemon.tcp) as channel:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=DEADLINE_S)


def inferences(address, count, m, n, k, datatype, element_bytes):
    """Products of KServe's protocol."""
    request = inference_pb2.ModelInferRequest(model_name="gemm")
    for name, shape in (("A", (m, k)), ("B", (k, n))):
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(bytes(shape[0] * shape[1] * element_bytes))
    body = request.SerializeToString()

    def ask():
        with connect(address) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            return [call.future(body, timeout=DEADLINE_S).code()]

    return together(count, ask)


@dataclasses.dataclass(frozen=True)
class Size:
    """The parameters of an attack: the daemon's addresses, the size of a result, and the number of
    simultaneous requests. Operands take less."""

    addresses: int
    result_mib: int
    at_once: int


def results(size):
    """Results for which the client sends almost nothing."""
    mib, count = size.result_mib, size.at_once
    side = math.isqrt(mib * MIB // 4)  # Of f32.
    half_side = math.isqrt(mib * MIB // 2)  # Of f16.
    return {
        "a result as large as all addresses": lambda to: products(to, 1, zeros(size.addresses)),
        "results": lambda to: products(to, count, zeros(mib * MIB)),
        "results with gaps": lambda to: products(to, count, gaps(mib)),
        "products": lambda to: products(to, count, product(side, side, 16, "f32", "f32")),
        "products of f16": lambda to: products(to, count, product(side, side, 16, "f16", "f32")),
        "products of the simulator": (
            lambda to: products(to, count, product(half_side, half_side, 16, "f16", "f16", device="sim:sm_90"))
        ),
        "inferences": lambda to: inferences(to, count, side, side, 16, "FP32", 4),
        "results on streams": lambda to: streams(to, count, zeros(mib * MIB)),
    }


def operands(size):
    count = size.at_once // 2
    k = size.result_mib * MIB // 192  # Both take two thirds of a result.
    return {
        "operands": lambda to: products(to, count, product(1, 64, k, "f16", "f32")),
        "operands on streams": lambda to: streams(to, count, product(1, 64, k, "f16", "f32")),
        "operands of inferences": lambda to: inferences(to, count, 1, 64, k, "FP16", 2),
        "tensors": lambda to: uploads(to, 12, size.result_mib * MIB // 4),
    }


def attack(daemon, battery, asked):
    refused = 0
    for name, ask in asked.items():
        seen = ask(daemon.tcp)
        print(name, dict(seen))
        assert set(seen) <= REFUSALS | {OK}, name
        check_lives(daemon)
        refused += seen.total() - seen[OK]
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
    what = f"{len(asked)} kinds of large requests in {limits[0] / GIB:g} GiB of addresses"
    battery.holds(what, least=1, seen=refused, unit="refused")


@pytest.fixture(scope="module")
def small(gemmd, tmp_path_factory):
    """Little more than the daemon needs to start on this machine. gRPC starts threads for each
    processor, whose stacks take addresses, and OpenBLAS reserves more on some processors than on
    others; if it gets none, the worker ends and the daemon says so."""
    least = 704 + 4 * os.cpu_count()
    for mib in range(least, 4 * least, 64):
        daemon = Daemon(gemmd, tmp_path_factory.mktemp("small"), *FLAGS, address_space=mib * MIB)
        try:
            daemon.wait_until_ready()
        except AssertionError:
            assert "event=stop" in daemon.stderr()
            continue
        finally:
            daemon.kill()
        return Size(addresses=(mib + (64 if mib > least else 0)) * MIB, result_mib=56, at_once=4)
    raise AssertionError("gemmd needs more addresses to start than are tried")


SIZES = [Size(addresses=gib * GIB, result_mib=400, at_once=8) for gib in (2, 3)]
sizes = pytest.mark.parametrize("size", SIZES, ids=["2GiB", "3GiB"])


def less_addresses_than_is_asked_for(daemons, battery, size):
    daemon = daemons.start(*FLAGS, address_space=size.addresses)
    attack(daemon, battery, results(size) | operands(size))


@pytest.mark.resident_memory
def test_less_addresses_than_is_asked_for(daemons, battery, small):
    """By default the daemon admits what fits."""
    less_addresses_than_is_asked_for(daemons, battery, small)


@pytest.mark.exhaustive
@pytest.mark.resident_memory
@sizes
def test_less_addresses_than_large_requests_need(daemons, battery, size):
    less_addresses_than_is_asked_for(daemons, battery, size)


@pytest.mark.resident_memory
def test_a_matrix_leaves_room_for_the_rest(daemons, battery):
    """Addresses run out while it runs. gRPC and Abseil would abort the process if a few bytes of
    theirs could not be allocated, so a request that would leave less than 32 MiB is refused
    although it would fit. Memory that workers share needs no new addresses. A malloc arena has
    reserved 64 MiB of addresses long before: if a mapping fails, malloc finds up to that much
    there, which is no fault."""
    daemon = daemons.start(*FLAGS, "--metrics-listen=127.0.0.1:0")
    small_product.multiply(daemon.tcp)
    hard = resource.prlimit(daemon.pid, resource.RLIMIT_AS)[1]
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (daemon.mapped_bytes() + 100 * MIB, hard))
    refused = 0
    shared = uploads(daemon.tcp, 1, 60 * MIB)[OK]
    for device in ("cpu", "sim:sm_90"):
        refused += products(daemon.tcp, 1, gaps(80, device=device))[grpc.StatusCode.RESOURCE_EXHAUSTED]
        shared += products(daemon.tcp, 1, zeros(60 * MIB, device=device))[OK]
    battery.holds("80 MiB of its own where 100 are left: refused", least=2, seen=refused)
    battery.holds("60 MiB that a worker shares: answered", least=3, seen=shared)
    answered = products(daemon.tcp, 1, zeros(16 * MIB))[OK]
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (hard, hard))
    answered += products(daemon.tcp, 1, zeros(60 * MIB))[OK]
    battery.holds("16 MiB then, and 60 later: answered", least=2, seen=answered)
    check_lives(daemon)


@pytest.mark.resident_memory
def test_the_end_needs_no_addresses(daemons, battery):
    """The thread that supervises its shutdown exists from the start: a new one would find no room
    for its stack."""
    daemon = daemons.start(*FLAGS)
    small_product.multiply(daemon.tcp)
    hard = resource.prlimit(daemon.pid, resource.RLIMIT_AS)[1]
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (daemon.mapped_bytes() + 4 * MIB, hard))
    daemon.signal(signal.SIGTERM)
    battery.holds("SIGTERM with 4 MiB of addresses left: exit code", most=0, seen=abs(daemon.wait()))


def more_is_admitted_than_fits(daemons, battery, size):
    daemon = daemons.start(*FLAGS, "--max-queued-bytes=64GiB", address_space=size.addresses)
    attack(daemon, battery, results(size))


@pytest.mark.resident_memory
def test_more_is_admitted_than_fits(daemons, battery, small):
    """Then an allocation fails, and only its product."""
    more_is_admitted_than_fits(daemons, battery, small)


@pytest.mark.exhaustive
@pytest.mark.resident_memory
def test_more_of_large_requests_is_admitted_than_fits(daemons, battery):
    more_is_admitted_than_fits(daemons, battery, SIZES[0])
