# SPDX-License-Identifier: Apache-2.0
"""Calls of a few bytes that stay open because their peers read nothing or send nothing more: the
memory that each takes is limited, and so is its duration."""

import contextlib

import grpc
import metrics_page
import pytest
import small_product
from bystander import KEPT_THREADS, Bystander
from daemon import last_value, wait_until
from gemmd.v1 import instructions_pb2, registry_pb2, resident_pb2, tensors_pb2
from grpc_health.v1 import health_pb2
from http2_peer import Http2Peer, message, open_with_closed_windows, varint
from kept import kept_bytes
from tensors import Session

MIB = 1 << 20

# The timed run measures the memory of the process, which includes a GPU's staging area.
pytestmark = pytest.mark.own_device

# Such a small capacity that the bystander's probe of it does not matter for the measurement.
FLAGS = ["--lame-duck=1ms", "--devices=cpu", "--max-queued-bytes=1000000"]

# The memory that malloc keeps in addition, and that of a bystander's requests.
MALLOC_SLACK = 24 * MIB
# The memory that gRPC keeps for a call.
CALL_BYTES = 32 << 10

CONNECTIONS, STREAMS = 4, 100
CALLS = CONNECTIONS * STREAMS


class OpenCalls:
    """As many calls of one method as this many connections may have open, none of which reads. The
    stack ends them."""

    def __init__(self, stack, daemon, path, headers=(), connections=CONNECTIONS):
        self.peers = [stack.enter_context(open_with_closed_windows(daemon.tcp)) for _ in range(connections)]
        self.calls = [(peer, peer.start(path, headers)) for peer in self.peers for _ in range(STREAMS)]

    def send(self, body, end=True):
        for peer, stream in self.calls:
            peer.send(stream, message(body), end=end, limit_s=60)

    def ended(self):
        for peer in self.peers:
            while peer.receive(0):
                pass
        return [peer.answers[stream] for peer, stream in self.calls if peer.is_over(stream)]

    def refused(self):
        return sum(answer.status == RESOURCE_EXHAUSTED for answer in self.ended())

    def refused_in_the_end(self, least):
        """How many are refused, once they are at least `least`, or once no more are for a while: a
        call runs the daemon's code several times, so calls that seem to wait may not have had all
        their turns."""
        return last_value(self.refused, lambda refused: refused >= least, 120)


def handled(daemon, method):
    """How many times the daemon's code has run for calls of a method."""
    counts = metrics_page.scrape(daemon).with_labels("gemmd_handler_seconds_count")
    return sum(count for labels, count in counts if labels["method"] == method)


def wait_until_handled(daemon, method):
    """Until the daemon's code has run for each of the calls, and no longer runs for them."""
    assert last_value(lambda: handled(daemon, method), lambda count: count >= CALLS, 120) >= CALLS
    last_value(lambda: handled(daemon, method), lambda _: False, 0)


def hold_kept(battery, attack, daemon, before, most):
    """In the timed run: the daemon's growth."""
    if battery.is_timed:
        kept = kept_bytes(daemon, before, most)
        battery.timed(attack, most=most / MIB, seen=kept / MIB, unit="MiB kept")


def scaled_spec():
    """The specification of a small tensor with 1 MiB of factors."""
    columns = MIB // 4
    spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_S8, rows=1, columns=columns)
    spec.scale.values.extend([1.0] * columns)
    return spec


# Unread answers hold at most this much.
UNREAD_BYTES = 32 * MIB
INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8


@contextlib.contextmanager
def an_owner(daemon):
    with grpc.insecure_channel(daemon.unix) as channel, Session(channel) as session:
        yield session


def test_descriptions_that_nobody_reads(daemons, battery):
    """A few bytes ask for the description of a tensor, which has all its factors."""
    daemon = daemons.start(*FLAGS, "--send-timeout=1h")
    get = resident_pb2.GetRequest(tensor=tensors_pb2.TensorRef(name="scaled"))
    with Bystander(daemon) as bystander:
        with an_owner(daemon) as session, contextlib.ExitStack() as stack:
            spec = scaled_spec()
            session.put(bytes(spec.columns), spec=spec, name="scaled")
            before = daemon.rss_bytes()
            attack = OpenCalls(stack, daemon, "/gemmd.v1.Tensors/Get", session.metadata)
            attack.send(get.SerializeToString())
            wait_until_handled(daemon, "Get")
            wait_until(bystander.is_served, 60, "others served")
            beyond = CALLS - UNREAD_BYTES // MIB
            refused = attack.refused_in_the_end(beyond)
            kept = daemon.rss_bytes() - before
        most = UNREAD_BYTES + CALLS * CALL_BYTES + MALLOC_SLACK
        name = f"{CALLS} calls of Get for a MiB of factors, unread"
        battery.timed(name, most=most / MIB, seen=kept / MIB, unit="MiB kept")
        battery.holds(f"{name}: those beyond", least=beyond, seen=refused, unit="refused")
        bystander.check()


STREAMS_OF_UPLOAD = 64


def test_ends_of_uploads_that_nobody_reads(daemons, battery):
    """Whoever sends the last byte of an upload causes an answer on all its streams: few may join,
    and their answers lack the factors."""
    daemon = daemons.start(*FLAGS, "--send-timeout=1h")
    with Bystander(daemon) as bystander:
        with an_owner(daemon) as session, contextlib.ExitStack() as stack:
            spec = scaled_spec()
            upload = session.put_stream()
            begun = upload.begin(spec)
            before = daemon.rss_bytes()
            attack = OpenCalls(stack, daemon, "/gemmd.v1.Tensors/Put", session.metadata)
            join = resident_pb2.PutRequest(join=begun.upload).SerializeToString()
            attack.send(join, end=False)
            wait_until_handled(daemon, "Put")
            beyond = CALLS + 1 - STREAMS_OF_UPLOAD
            refused = attack.refused_in_the_end(beyond)
            upload.chunk(0, bytes(spec.columns))
            told = upload.tensor().spec
            assert (told.columns, len(told.scale.values)) == (spec.columns, spec.columns)
            wait_until_handled(daemon, "Put")
            wait_until(bystander.is_served, 60, "others served")
            kept = daemon.peak_rss_bytes() - before
        # Its owner's answer has the factors.
        most = 2 * MIB + CALLS * CALL_BYTES + MALLOC_SLACK
        name = f"{CALLS} streams of one upload with a MiB of factors, unread"
        battery.timed(name, most=most / MIB, seen=kept / MIB, unit="MiB kept")
        battery.holds(f"{name}: those beyond", least=beyond, seen=refused, unit="refused")
        bystander.check()


def text_twice(number, last, size=4 << 10):
    """A message of 4 KiB, as most methods take it, that contains its one text twice: the last one counts, and is
    short."""
    short = varint(number << 3 | 2) + varint(len(last)) + last
    long = size - len(short) - 8
    return varint(number << 3 | 2) + varint(long) + b"x" * long + short


def number_of(message_type, name):
    return message_type.DESCRIPTOR.fields_by_name[name].number


# Health takes 64 KiB.
ABOUT_SERVER = text_twice(number_of(health_pb2.HealthCheckRequest, "service"), b"", 64 << 10)

LONG_REQUESTS = {
    "/gemmd.v1.Registry/ListKernels": (
        text_twice(number_of(registry_pb2.ListKernelsRequest, "name_pattern"), b"none of them")
    ),
    "/gemmd.v1.Registry/ListInstructions": (
        text_twice(number_of(instructions_pb2.ListInstructionsRequest, "name_pattern"), b"none of them")
    ),
    "/grpc.health.v1.Health/Check": ABOUT_SERVER,
    "/grpc.health.v1.Health/Watch": ABOUT_SERVER,
    "/inference.GRPCInferenceService/ModelReady": text_twice(1, b"gemm"),
    # It is not read.
    "/inference.GRPCInferenceService/RepositoryModelLoad": text_twice(1, b"gemm", MIB),
}


@pytest.mark.parametrize("path", LONG_REQUESTS)
def test_requests_of_calls_that_stay_open(daemons, battery, is_timed, path):
    """Each is as long as its method takes, and its answer is small. Nothing of the request is kept, and a caller that
    does not read the answer loses the call."""
    connections, timeout_s = (CONNECTIONS, 3) if is_timed else (1, 1)
    daemon = daemons.start(*FLAGS, f"--send-timeout={timeout_s}s", "--max-sessions=1000")
    with Bystander(daemon) as bystander:
        before = daemon.rss_bytes()
        with contextlib.ExitStack() as stack:
            attack = OpenCalls(stack, daemon, path, connections=connections)
            calls = len(attack.calls)
            attack.send(LONG_REQUESTS[path])
            wait_until(bystander.is_served, 60, "others served")
            name = f"{calls} requests of {len(LONG_REQUESTS[path]) >> 10} KiB to {path}"
            hold_kept(battery, name, daemon, before, calls * CALL_BYTES + MALLOC_SLACK)
            wait_until(lambda: len(attack.ended()) == calls, 120, "all calls ended")
            battery.holds(name, least=calls, seen=len(attack.ended()), unit="calls ended")
        bystander.check()


def answered(calls):
    return [bool(peer.answers[stream].data) for peer, stream in calls]


# Calls that are answered and stay open.
LASTING = {
    "/gemmd.v1.Tensors/OpenSession": text_twice(number_of(resident_pb2.OpenSessionRequest, "token"), b""),
    "/grpc.health.v1.Health/Watch": ABOUT_SERVER,
}


@pytest.mark.parametrize("path", LASTING)
def test_requests_of_calls_that_last(daemons, battery, is_timed, path):
    """A session lasts as long as its call, and so does a watch of health. Nothing of the longest
    request that each takes is kept meanwhile."""
    daemon = daemons.start(*FLAGS, "--max-sessions=1000")
    with Bystander(daemon) as bystander:
        before = daemon.rss_bytes()
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Http2Peer(daemon.tcp)) for _ in range(2)]
            calls = [(peer, peer.start(path)) for peer in peers for _ in range(STREAMS if is_timed else 10)]
            for peer, stream in calls:
                peer.send(stream, message(LASTING[path]), end=True, limit_s=60)
            wait_until(lambda: [peer.receive(0.01) for peer in peers] and all(answered(calls)), 120, "opened")
            name = f"{len(calls)} calls of {path}, asked for with {len(LASTING[path]) >> 10} KiB each"
            hold_kept(battery, name, daemon, before, len(calls) * CALL_BYTES + MALLOC_SLACK)
            ended = sum(peer.is_over(stream) for peer, stream in calls)
            battery.holds(name, most=0, seen=ended, unit="calls ended")
        bystander.check()


# What the daemon documents as the memory of an idle call (kIdleCallBytes).
IDLE_CALL_BYTES = 24 << 10

IDLE = [
    "/gemmd.v1.Gemm/Multiply",
    "/gemmd.v1.Gemm/MultiplyStream",
    "/gemmd.v1.Registry/ListKernels",
    "/inference.GRPCInferenceService/ModelStreamInfer",
]


@pytest.mark.timed
@pytest.mark.resident_memory
@pytest.mark.parametrize("path", IDLE)
def test_idle_calls(daemons, battery, path):
    """Calls that never send anything: for methods with one request message, gRPC does not report
    the call before that message has arrived."""
    connections = 100 if battery.is_long else 40
    daemon = daemons.start(*FLAGS)
    with Bystander(daemon) as bystander:
        before = daemon.rss_bytes()
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Http2Peer(daemon.tcp)) for _ in range(connections)]
            calls = [(peer, peer.start(path)) for peer in peers for _ in range(STREAMS)]
            wait_until(bystander.is_served, 60, "others served")
            kept = daemon.rss_bytes() - before
            assert not any(peer.is_over(stream) for peer, stream in calls)
        name = f"{len(calls)} idle calls of {path}"
        battery.timed(name, most=IDLE_CALL_BYTES / 1024, seen=kept / len(calls) / 1024, unit="KiB kept of each")
        bystander.check()


@pytest.mark.resident_memory
def test_idle_calls_beyond_the_memory(daemons, battery):
    """By default the number of connections is limited such that their idle calls fit into an eighth
    of the memory limit."""
    limit = 512 * MIB
    daemon = daemons.start(*FLAGS, f"--memory-limit-bytes={limit}")
    with Bystander(daemon) as bystander:
        before = daemon.rss_bytes()
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Http2Peer(daemon.tcp)) for _ in range(60)]
            for peer in peers:
                for _ in range(STREAMS):
                    if not peer.closed:
                        peer.start("/gemmd.v1.Gemm/MultiplyStream")
            small_product.multiply(daemon.unix)  # Another peer can connect.
            kept = daemon.rss_bytes() - before
            beyond = len(peers) - limit // 8 // (STREAMS * IDLE_CALL_BYTES)

            def closed():
                for peer in peers:
                    peer.receive(0)
                return sum(peer.closed for peer in peers)

            wait_until(lambda: closed() >= beyond, 60, "those beyond are closed")
            battery.holds("60 connections with 512 MiB", least=beyond, seen=closed(), unit="closed")
        most = limit / 8 + MALLOC_SLACK
        battery.timed("6,000 idle calls with 512 MiB", most=most / MIB, seen=kept / MIB, unit="MiB kept")
        bystander.check()


GEMM = b"gemmd.v1.Gemm"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def test_idle_reflection_streams(daemons, battery):
    """A caller of reflection that then sends nothing more keeps no thread waiting."""
    daemon = daemons.start(*FLAGS)
    services = b"\x3a\0"
    with Bystander(daemon) as bystander:
        before, threads = daemon.rss_bytes(), daemon.threads()
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Http2Peer(daemon.tcp)) for _ in range(5)]
            calls = [(peer, peer.start(REFLECTION)) for peer in peers for _ in range(STREAMS)]
            for peer, stream in calls:
                peer.send(stream, message(services))
            wait_until(lambda: [peer.receive(0.01) for peer in peers] and all(answered(calls)), 120, "answered")
            name = f"{len(calls)} idle streams of reflection"
            hold_kept(battery, name, daemon, before, len(calls) * CALL_BYTES + MALLOC_SLACK)
            started = daemon.threads() - threads
            bystander.check_served()
            assert not any(peer.is_over(stream) for peer, stream in calls)
        battery.holds(name, most=KEPT_THREADS, seen=started, unit="threads")
        bystander.check()


def test_long_questions_to_reflection(daemons, battery):
    """64 KiB of unknown groups, of which protobuf makes 16 times as much; and 16 MiB, of which nothing is read."""
    daemon = daemons.start(*FLAGS)
    group = varint(1000 << 3 | 3) + varint(1000 << 3 | 4)
    with Bystander(daemon) as bystander:
        before = daemon.peak_rss_bytes()
        with Http2Peer(daemon.tcp) as peer:
            stream = peer.start(REFLECTION)
            peer.send(stream, message(group * ((64 << 10) // len(group))), end=True, limit_s=60)
            status = peer.wait(stream, 120).status
        battery.holds("reflection: 64 KiB of unknown groups", most=INVALID_ARGUMENT, seen=status, unit="the status")
        assert status == INVALID_ARGUMENT
        with Http2Peer(daemon.tcp) as peer:
            stream = peer.start(REFLECTION)
            peer.send(stream, message(group * (4 * MIB)), end=True, limit_s=60)
            peer.wait(stream, 120)
            closed = peer.closed
        grown = daemon.peak_rss_bytes() - before
        battery.timed("reflection: 16 MiB of unknown groups", most=MALLOC_SLACK / MIB, seen=grown / MIB, unit="MiB")
        battery.holds("reflection: 16 MiB of unknown groups", least=1, seen=closed, unit="connections closed")
        bystander.check()


QUESTIONS = {"services": b"\x3a\0", "a file": b"\x22" + varint(len(GEMM)) + GEMM}


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_of_reflection_that_nobody_reads(daemons, battery, is_timed, question):
    timeout_s = 5 if is_timed else 1
    daemon = daemons.start(*FLAGS, f"--send-timeout={timeout_s}s")
    with Bystander(daemon) as bystander:
        before = daemon.rss_bytes()
        with contextlib.ExitStack() as stack:
            attack = OpenCalls(stack, daemon, REFLECTION)
            attack.send(QUESTIONS[question], end=False)
            wait_until_handled(daemon, "ServerReflectionInfo")
            name = f"{CALLS} answers of reflection ({question}), unread"
            hold_kept(battery, name, daemon, before, 8 * MIB + CALLS * CALL_BYTES + MALLOC_SLACK)
            wait_until(lambda: len(attack.ended()) == CALLS, 120, "all calls ended")
            battery.holds(name, least=CALLS, seen=len(attack.ended()), unit="calls ended")
        bystander.check()
