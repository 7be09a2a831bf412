# SPDX-License-Identifier: Apache-2.0
"""A daemon near its memory limit: what it still accepts, answers and ends at each level, and that
each change of the level is reported once."""

import contextlib
import time

import grpc
import metrics_page
import pytest
from daemon import wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from http2_peer import message, open_with_closed_windows
from kserve.v2 import inference_pb2, inference_pb2_grpc
from served_methods import method_paths
from tensors import Session, bytes_spec, by_name, refusal

pytestmark = pytest.mark.own_device  # A GPU's staging memory is resident, too.

MIB = 1 << 20
LIMIT = 600 * MIB
LARGE_TENSORS = ["--tensor-bytes=2GiB:2GiB"]
ANY_LIMIT_FLAGS = ["--lame-duck=1ms", "--devices=cpu", "--max-queued-bytes=2GiB", *LARGE_TENSORS]
FLAGS = [*ANY_LIMIT_FLAGS, f"--memory-limit-bytes={LIMIT}"]
DEADLINE_S = 120
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

# The methods that are answered from 92 % of the limit on, and why; all others are refused.
ANSWERED = {
    # Statistics.
    "/gemmd.v1.Registry/GetStatistics",
    "/inference.GRPCInferenceService/ModelStatistics",
    # Whether it is alive; probes ask this like health.
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    # What gemmctl doctor asks in addition to the statistics, to find out what is wrong.
    "/gemmd.v1.Registry/GetServerInfo",
    "/gemmd.v1.Registry/ListDevices",
    # Methods that free memory, or that keep existing tensors from being lost.
    "/gemmd.v1.Tensors/Delete",
    "/gemmd.v1.Tensors/KeepAlive",
    # What operators do about it; the answers are small.
    "/gemmd.v1.Admin/RestartDevice",
    "/gemmd.v1.Admin/ListIncidents",
    "/gemmd.v1.Admin/ListSessions",
    "/gemmd.v1.Admin/DropSession",
}
# Their products are refused one by one.
STREAMS_OF_PRODUCTS = {
    "/gemmd.v1.Gemm/MultiplyStream",
    "/inference.GRPCInferenceService/ModelStreamInfer",
}


def zeros(count):
    """A few bytes that ask for an answer of this size."""
    request = gemm_pb2.MultiplyRequest(m=1, n=count, k=0)
    request.a.type = request.b.type = request.d.type = ELEMENTS["s8"].number
    return request


def levels(daemon):
    return [event["pressure"] for event in daemon.events("memory_pressure")]


def check_changes(daemon, battery, attack, least):
    """Each change is logged and counted once."""
    page = metrics_page.scrape(daemon)
    told = levels(daemon)
    repeated = sum(now == before for before, now in zip(told, told[1:]))
    battery.holds(f"{attack}: a level logged twice in turn", most=0, seen=repeated)
    counted = {
        labels["level"]: value
        for labels, value in page.with_labels("gemmd_memory_pressure_changes_total")
    }
    assert counted == {level: told.count(level) for level in ("none", "high", "severe", "critical")}
    battery.holds(f"{attack}: changes", least=least, seen=sum(counted.values()))


def code_and_words(channel, path, request=b""):
    """The status and the text with which a call of any kind ends."""
    call = channel.stream_stream(path)(iter([request]), timeout=DEADLINE_S)
    with contextlib.suppress(grpc.RpcError, StopIteration):
        next(call)
        call.cancel()
    return call.code(), call.details() or ""


def is_for_memory(code, words):
    return code == RESOURCE_EXHAUSTED and words.startswith("memory:")


def fill_until(level, daemon, stream):
    """Sends chunks until that level is noticed, at 40 MiB/s so that the level is exceeded only
    slightly; returns how many bytes were sent."""
    block = bytes(MIB)
    sent = 0
    while level not in levels(daemon):
        assert sent < LIMIT // 4, "never noticed"
        stream.chunk(sent, block)
        sent += MIB
        time.sleep(0.025)
    return sent


def check_high(channel, session, battery):
    """Requests that take more than 1 MiB are large."""
    stub = gemm_pb2_grpc.GemmStub(channel)
    refusals = [
        refusal(stub.Multiply, zeros(2 * MIB), timeout=DEADLINE_S),
        refusal(session.put_stream().begin, bytes_spec(2 * MIB)),
    ]
    battery.holds(
        "at 88 % of the memory: large ones refused", least=2, seen=sum(is_for_memory(*one) for one in refusals)
    )
    stub.Multiply(zeros(1000), timeout=DEADLINE_S)
    session.put(bytes(1000))
    session.list()


def check_severe(daemon, channel, battery, attack):
    """Everything that is not on the list is refused, and nothing on the list is."""
    with grpc.insecure_channel(daemon.unix) as local:
        ends = {path: code_and_words(local, path) for path in method_paths()}
    refused = {path for path, end in ends.items() if is_for_memory(*end)}
    assert not refused & ANSWERED, refused & ANSWERED
    others = set(ends) - ANSWERED - STREAMS_OF_PRODUCTS - refused
    assert not others, {path: ends[path] for path in others}
    battery.holds(f"{attack}: methods refused", least=20, seen=len(refused))
    stub = gemm_pb2_grpc.GemmStub(channel)
    requests = iter([gemm_pb2.MultiplyStreamRequest(requests=[zeros(1)])])
    [answer] = [one for joint in stub.MultiplyStream(requests, timeout=DEADLINE_S) for one in joint.answers]
    assert is_for_memory(RESOURCE_EXHAUSTED, answer.error.message), answer
    code, _ = code_and_words(channel, "/grpc.health.v1.Health/Check")
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)


def test_what_is_answered_beyond_the_limit(daemons, battery):
    """A daemon whose limit is below its own memory. test_levels reaches the same level by
    tensors."""
    room = ["--memory-quota-bytes=256MiB", "--max-connections=200"]
    daemon = daemons.start(*ANY_LIMIT_FLAGS, *room, "--memory-limit-bytes=8MiB")
    wait_until(lambda: levels(daemon), 60, "the level noticed")
    with grpc.insecure_channel(daemon.tcp) as channel:
        check_severe(daemon, channel, battery, "beyond the limit of the memory")
    assert levels(daemon) == ["critical"]
    check_changes(daemon, battery, "beyond the limit of the memory", 1)


@pytest.mark.timed
@pytest.mark.resident_memory
def test_levels(daemons, battery):
    """Tensors bring the daemon to 88 and to 93 % of its limit, and Delete brings it back."""
    daemon = daemons.start(*FLAGS)
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        stream = session.put_stream()
        upload = stream.begin(bytes_spec(LIMIT)).upload
        session.put(bytes(int(0.87 * LIMIT) - daemon.rss_bytes()), name="first")
        wait_until(lambda: levels(daemon)[-1:] == ["high"], 60, "the level noticed")
        check_high(channel, session, battery)
        sent = fill_until("severe", daemon, stream)
        check_severe(daemon, channel, battery, "at 93 % of the memory")
        assert levels(daemon)[-1] == "severe"
        stream.chunk(sent, bytes(MIB))
        assert is_for_memory(*stream.error()), "a chunk more"
        assert is_for_memory(*refusal(session.put_stream().join, upload)), "an upload joined"

        session.stub.Delete(by_name("first"), metadata=session.metadata, timeout=DEADLINE_S)
        wait_until(lambda: levels(daemon)[-1] == "none", 60, "the pressure gone")
        kept = session.put_stream().join(upload).missing[0].offset
        assert 0 < kept <= sent, "the upload is kept"
    check_changes(daemon, battery, "tensors up to 93 % of the memory", 2)


@pytest.mark.timed
@pytest.mark.resident_memory
def test_unread_answers(daemons, battery):
    """At 95 % a client that does not read loses its call long before the send timeout, however long
    the answer is."""
    answer, count = 128 * MIB, 5
    daemon = daemons.start(*FLAGS, "--send-timeout=10m")
    with grpc.insecure_channel(daemon.tcp) as channel, open_with_closed_windows(daemon.tcp) as peer:
        multiply = gemm_pb2_grpc.GemmStub(channel).Multiply
        multiply(zeros(1), timeout=DEADLINE_S)
        streams = [peer.start() for _ in range(count)]
        for stream in streams:
            peer.send(stream, message(zeros(answer).SerializeToString()), end=True)
        wait_until(lambda: "critical" in levels(daemon), 60, "the pressure noticed")
        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as failure:
            multiply(zeros(1), timeout=DEADLINE_S)
        assert is_for_memory(failure.value.code(), failure.value.details())
        assert "grpc-retry-pushback-ms" in dict(failure.value.trailing_metadata())
        wait_until(lambda: [peer.receive(0.05)] and any(map(peer.is_over, streams)), 60, "calls ended")
        wait_until(lambda: levels(daemon)[-1] != "critical", 60, "the pressure relieved")
        took = time.monotonic() - started
        peer.close()
        wait_until(lambda: levels(daemon)[-1] == "none", 60, "the pressure gone")
        multiply(zeros(1), timeout=DEADLINE_S)
    battery.timed("unread answers at 95 % of the memory", most=8, seen=took, unit="s until it is below")
    check_changes(daemon, battery, "unread answers at 95 % of the memory", 2)


@pytest.mark.timed
@pytest.mark.resident_memory
def test_the_memory_of_workers_counts(daemons, battery):
    """A tensor on the tests' GPU is memory of its worker, in addition to the copy that the daemon
    keeps: both share the limit."""
    limit, size = 160 * MIB, 40 * MIB
    flags = ["--lame-duck=1ms", "--devices=cuda:0", "--gpu-memory-bytes=64000KiB", *LARGE_TENSORS]
    daemon = daemons.start(*flags, f"--memory-limit-bytes={limit}")
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        session.put(bytes(size), device="cuda:0")
        # The upload's own buffers are released first, and then the level stays.
        wait_until(lambda: daemon.rss_bytes() < 0.8 * limit, 30, "the daemon alone is far below")
        time.sleep(1)  # Four measurements of the memory.
        own = daemon.rss_bytes()
        assert levels(daemon)[-1:] not in ([], ["none"]), levels(daemon)
    battery.timed("a tensor on a GPU: the daemon alone", most=0.8 * limit / MIB, seen=own / MIB, unit="MiB")
