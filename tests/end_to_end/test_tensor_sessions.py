# SPDX-License-Identifier: Apache-2.0
"""Sessions that own tensors: who sees which, how long they stay, and how many sessions there may
be."""

import hashlib
import os

import grpc
import pytest
from daemon import wait_until
from gemmd.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    registry_pb2_grpc,
    resident_pb2,
    statistics_pb2,
    tensors_pb2,
)
from tensors import DEADLINE_S, FLAGS, MIB, Session, by_handle, by_name, bytes_spec, refusal

GEMMD_FLAGS = FLAGS

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def test_others_see_nothing(channel, session, rng):
    """The text is the same whether there is no such tensor or it belongs to another session."""
    data = rng.randbytes(1000)
    tensor = session.put(data, name="secret")
    with Session(channel) as other:
        assert not other.list().tensors
        nothing = refusal(other.describe, tensors_pb2.TensorRef(handle=bytes(16)))
        assert nothing[0] == NOT_FOUND
        for ref in (by_handle(tensor), by_name("secret")):
            for call in (other.describe, other.get, other.delete, other.keep_alive):
                assert refusal(call, ref) == nothing
        # Nor does a hash reveal that another session has the bytes.
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
                """According to the statistics: asking for a session would count as a use of it."""
                request = statistics_pb2.GetStatisticsRequest()
                told = registry.GetStatistics(request, timeout=DEADLINE_S).tensors
                return (told.sessions, sorted(owner.tensors for owner in told.owners)) == (2, [1, 1])

            wait_until(are_over, DEADLINE_S, "what is pinned alone is left")
            assert refusal(Session, channel, second.token)[0] == UNAUTHENTICATED
            with Session(channel, first.token) as again:
                assert [tensor.name for tensor in again.list().tensors] == ["pinned"]
            assert third.list().tensors


def test_an_operator_drops_what_an_owner_has_left(daemons):
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", "--session-linger=50ms", "--max-sessions=2")
    with grpc.insecure_channel(daemon.tcp) as tcp, grpc.insecure_channel(daemon.unix) as channel:
        admin = admin_pb2_grpc.AdminStub(channel)

        def sessions(**request):
            return admin.ListSessions(admin_pb2.ListSessionsRequest(**request), timeout=DEADLINE_S)

        def drop(session_id):
            return admin.DropSession(admin_pb2.DropSessionRequest(id=session_id), timeout=DEADLINE_S)

        owner = Session(channel)
        owner.put(bytes(MIB), name="left", pinned=True)
        owner.put(bytes(10))
        assert sessions().sessions[0].streams == 1
        owner.close()

        def left():
            """The owner's session, once only pinned tensors are left."""
            [session] = sessions().sessions
            return session if session.tensors == 1 else None

        session = wait_until(left, DEADLINE_S, "the session has lingered")
        assert session.id == hashlib.sha256(bytes.fromhex(owner.token)).hexdigest()[:16]
        assert session.caller == f"uid:{os.getuid()}" and session.age_ns > 0
        assert (session.streams, session.in_use, session.lingers_ns) == (0, False, 0)
        assert (session.pinned_tensors, session.uploads) == (1, 0)
        assert MIB <= session.host_bytes <= MIB + 4096
        [largest] = session.largest_tensors
        assert (largest.name, largest.bytes, largest.pinned) == ("left", MIB, True)
        assert owner.token not in str(session)

        with Session(tcp) as other:
            assert refusal(Session, channel)[0] == RESOURCE_EXHAUSTED
            listed = sessions(limit=1)
            assert [each.id for each in listed.sessions] == [session.id] and listed.left_out == 1
            assert [each.caller for each in sessions().sessions][1] == "ipv4:127.0.0.1"
            for limit in (-1, 1001):
                code, text = refusal(sessions, limit=limit)
                assert code == INVALID_ARGUMENT and f"limit: got {limit}, want 0 to 1000" in text
            remote = admin_pb2_grpc.AdminStub(tcp)
            for call, request in (
                (remote.ListSessions, admin_pb2.ListSessionsRequest()),
                (remote.DropSession, admin_pb2.DropSessionRequest(id=session.id)),
            ):
                assert refusal(call, request, timeout=DEADLINE_S)[0] == PERMISSION_DENIED
            for unknown in ("", "0" * 16, owner.token):
                assert refusal(drop, unknown)[0] == NOT_FOUND
            assert refusal(drop, "x" * 129)[0] == INVALID_ARGUMENT

            dropped = drop(session.id)
            assert (dropped.tensors, dropped.freed_bytes) == (1, session.host_bytes)
            assert dropped.held_bytes == 0
            assert refusal(drop, session.id)[0] == NOT_FOUND
            assert refusal(Session, channel, owner.token)[0] == UNAUTHENTICATED
            with Session(channel) as again:
                again.put(bytes(MIB), name="left")
            assert other.list().session_bytes == 0
        told = [event for event in daemon.events("drop_session") if event["status"] == "OK"]
        assert [(event["session"], event["tensors"]) for event in told] == [(session.id, "1")]


def test_calls_of_a_session_that_is_dropped_end(daemons):
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms")
    with grpc.insecure_channel(daemon.unix) as channel:
        admin = admin_pb2_grpc.AdminStub(channel)
        owner = Session(channel)
        joined = Session(channel, owner.token)
        owner.put(bytes(10), name="x")
        upload = owner.put_stream()
        upload.begin(bytes_spec(1000), name="u", pinned=True)
        [session] = admin.ListSessions(admin_pb2.ListSessionsRequest(), timeout=DEADLINE_S).sessions
        assert (session.streams, session.uploads) == (2, 1)
        admin.DropSession(admin_pb2.DropSessionRequest(id=session.id), timeout=DEADLINE_S)
        for each in (owner, joined):
            wait_until(lambda each=each: not each.stream.is_active(), DEADLINE_S, "its stream ends")
            assert each.stream.code() == NOT_FOUND
            assert "an operator has dropped it" in each.stream.details()
        assert upload.error()[0] == NOT_FOUND
        assert refusal(owner.list)[0] == UNAUTHENTICATED
        assert refusal(Session, channel, owner.token)[0] == UNAUTHENTICATED
        listed = admin.ListSessions(admin_pb2.ListSessionsRequest(), timeout=DEADLINE_S)
        assert not listed.sessions and not listed.left_out


def test_there_are_so_many_sessions(daemons):
    """One host may have at most seven for each that is still free."""
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
