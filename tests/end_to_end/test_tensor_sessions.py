# SPDX-License-Identifier: Apache-2.0
"""Sessions that own tensors: who sees what, how long it stays, and how many there are."""

import hashlib

import grpc
import pytest
from daemon import wait_until
from gemmd.v1 import registry_pb2_grpc, resident_pb2, statistics_pb2, tensors_pb2
from tensors import DEADLINE_S, FLAGS, Session, by_handle, by_name, bytes_spec, refusal

GEMMD_FLAGS = FLAGS

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def test_others_see_nothing(channel, session, rng):
    """The same words whether there is no such tensor or it is somebody else's."""
    data = rng.randbytes(1000)
    tensor = session.put(data, name="secret")
    with Session(channel) as other:
        assert not other.list().tensors
        nothing = refusal(other.describe, tensors_pb2.TensorRef(handle=bytes(16)))
        assert nothing[0] == NOT_FOUND
        for ref in (by_handle(tensor), by_name("secret")):
            for call in (other.describe, other.get, other.delete, other.keep_alive):
                assert refusal(call, ref) == nothing
        # Nor does the hash tell that somebody has the bytes.
        stream = other.put_stream()
        state = stream.begin(bytes_spec(1000), sha256=hashlib.sha256(data).digest())
        assert state.missing
        stream.break_off()
    stream = session.put_stream()
    upload = stream.begin(bytes_spec(1000)).upload
    with Session(channel) as other:
        thief = other.put_stream()
        thief.send(join=upload)
        code, words = thief.error()
        assert code == NOT_FOUND
        thief = other.put_stream()
        thief.send(join=b"x")
        assert thief.error() == (code, words)
    stream.break_off()


def test_calls_need_a_session(channel, session):
    stub = session.stub
    for metadata in (
        [],
        [("gemmd-session", "")],
        [("gemmd-session", "0" * 32)],
        [("gemmd-session", session.token.upper())],
        session.metadata * 2,
    ):
        request = resident_pb2.ListTensorsRequest()
        code, text = refusal(stub.List, request, metadata=metadata, timeout=DEADLINE_S)
        assert code == UNAUTHENTICATED and session.token not in text
        with pytest.raises(grpc.RpcError) as raised:
            list(stub.Put(iter(()), metadata=metadata, timeout=DEADLINE_S))
        assert raised.value.code() == UNAUTHENTICATED
        request = resident_pb2.GetRequest(tensor=by_name("x"))
        with pytest.raises(grpc.RpcError) as raised:
            list(stub.Get(request, metadata=metadata, timeout=DEADLINE_S))
        assert raised.value.code() == UNAUTHENTICATED
    assert refusal(Session, channel, "0" * 32)[0] == UNAUTHENTICATED


def test_leases_end(session):
    second = 1_000_000_000
    session.put(bytes(10), name="short", lease_ns=second // 10)
    session.put(bytes(11), name="pinned", lease_ns=second // 10, pinned=True)
    session.put(bytes(12), name="long")
    assert 0 < session.describe(by_name("long")).expires_in_ns <= 600 * second
    wait_until(
        lambda: [t.name for t in session.list().tensors] == ["long", "pinned"],
        DEADLINE_S,
        "the lease ended",
    )
    assert refusal(session.describe, by_name("short"))[0] == NOT_FOUND
    kept = session.keep_alive(by_name("pinned"), pinned=False, lease_ns=second // 10)
    assert not kept.pinned and kept.lease_ns == second // 10
    wait_until(
        lambda: [t.name for t in session.list().tensors] == ["long"], DEADLINE_S, "it is gone"
    )
    assert refusal(session.keep_alive, by_name("long"), lease_ns=-1)[0] == INVALID_ARGUMENT


def test_a_session_lingers(daemons):
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", "--session-linger=300ms")
    with grpc.insecure_channel(daemon.tcp) as channel:
        first = Session(channel)
        first.put(bytes(10), name="gone")
        first.put(bytes(10), name="pinned", pinned=True)
        second = Session(channel)
        second.put(bytes(10))
        with Session(channel) as third:
            third.put(bytes(10), name="stays")
            first.close()
            second.close()
            registry = registry_pb2_grpc.RegistryStub(channel)

            def are_over():
                """As the statistics tell it: to ask for a session would be a use of it."""
                request = statistics_pb2.GetStatisticsRequest()
                told = registry.GetStatistics(request, timeout=DEADLINE_S).tensors
                return (told.sessions, sorted(owner.tensors for owner in told.owners)) == (2, [1, 1])

            wait_until(are_over, DEADLINE_S, "what is pinned alone is left")
            assert refusal(Session, channel, second.token)[0] == UNAUTHENTICATED
            with Session(channel, first.token) as again:
                assert [tensor.name for tensor in again.list().tensors] == ["pinned"]
            assert third.list().tensors


def test_there_are_so_many_sessions(daemons):
    """One host may have seven times as many as are free."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", "--max-sessions=8", "--session-linger=100ms")
    with grpc.insecure_channel(daemon.tcp) as channel, grpc.insecure_channel(daemon.unix) as local:
        sessions = [Session(channel) for _ in range(7)]
        code, text = refusal(Session, channel)
        assert code == RESOURCE_EXHAUSTED and "--max-sessions" in text
        sessions.append(Session(local))
        code, text = refusal(Session, local)
        assert code == RESOURCE_EXHAUSTED and "got 8 sessions, want fewer to open one more" in text
        for session in sessions:
            session.close()

        def opened():
            try:
                return Session(local)
            except grpc.RpcError:
                return None

        wait_until(opened, DEADLINE_S, "a place is free")


def test_a_drain_refuses_uploads(daemons):
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", "--grace=10s")
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        session.put(bytes(10))
        daemon.stop()
        with pytest.raises(grpc.RpcError):
            for _ in session.stream:
                pass
