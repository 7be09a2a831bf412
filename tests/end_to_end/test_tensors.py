# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay on the server: sessions, uploads over several streams and broken connections,
downloads, names, leases and quotas."""

import contextlib
import hashlib
import re
import time

import grpc
import pytest
from daemon import wait_until
from gemmd.v1 import resident_pb2, tensors_pb2
from tensors import DEADLINE_S, FLAGS, MIB, Session, by_handle, by_name, bytes_spec, refusal

GEMMD_FLAGS = FLAGS

DATA_LOSS = grpc.StatusCode.DATA_LOSS
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
OUT_OF_RANGE = grpc.StatusCode.OUT_OF_RANGE
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("size", [0, 1, 4095, MIB, 3 * MIB + 17])
@pytest.mark.parametrize("hashed", [False, True])
def test_a_tensor_comes_back(session, rng, size, hashed):
    data = rng.randbytes(size)
    put = session.put(data, hashed=hashed, name="weights/layer3.q", chunk=MIB - 1)
    assert put.bytes == size and len(put.handle) == 16
    for ref in (by_handle(put), by_name("weights/layer3.q")):
        info, got = session.get(ref)
        assert info.handle == put.handle and got == data
    if size > 100:
        _, part = session.get(by_handle(put), offset=33, bytes=size - 50)
        assert part == data[33:-17]


def test_what_a_tensor_is_comes_back(session):
    spec = resident_pb2.TensorSpec(
        type=tensors_pb2.ELEMENT_TYPE_S8,
        order=tensors_pb2.ORDER_COLUMN_MAJOR,
        rows=5,
        columns=3,
        leading_dimension=7,
        matrices=2,
        scale=tensors_pb2.Scale(values=[1, 2, 3]),
    )
    put = session.put(bytes(2 * 3 * 7), spec=spec)
    assert put.spec == spec
    assert session.describe(by_handle(put)).spec == spec


def test_streams_share_an_upload_in_any_order(session, channel, rng):
    data = rng.randbytes(4 * MIB)
    first = session.put_stream()
    state = first.begin(bytes_spec(len(data)), sha256=hashlib.sha256(data).digest())
    assert [(m.offset, m.bytes) for m in state.missing] == [(0, len(data))]
    streams = [first] + [session.put_stream() for _ in range(3)]
    for stream in streams[1:]:
        assert stream.join(state.upload).max_chunk_bytes == MIB
    step = MIB // 2
    offsets = list(range(0, len(data), step))
    rng.shuffle(offsets)
    for i, offset in enumerate(offsets):
        streams[i % 4].chunk(offset, data[offset : offset + step])
    # Those that are still open are all told.
    handles = {stream.tensor().handle for stream in streams}
    [handle] = handles
    assert session.get(tensors_pb2.TensorRef(handle=handle))[1] == data


def test_an_upload_goes_on_after_every_chunk(daemon, session, rng):
    """The connection breaks after each chunk, and another one goes on."""
    chunks = 6
    data = rng.randbytes(chunks * 1000)
    options = [("grpc.use_local_subchannel_pool", 1)]
    upload = None
    for turn in range(chunks + 1):
        with grpc.insecure_channel(daemon.tcp, options=options) as channel:
            with Session(channel, session.token) as again:
                stream = again.put_stream()
                if upload is None:
                    digest = hashlib.sha256(data).digest()
                    state = stream.begin(bytes_spec(len(data)), sha256=digest, name="broken")
                    upload = state.upload
                else:
                    state = stream.join(upload)
                [missing] = state.missing
                assert missing.offset + missing.bytes == len(data)
                assert missing.offset == 1000 * turn
                stream.chunk(missing.offset, data[missing.offset :][:1000])
                if turn == chunks - 1:
                    stream.tensor()
                    break
                wait_until(
                    lambda turn=turn: again.put_stream().join(upload).missing[0].offset
                    == 1000 * (turn + 1),
                    DEADLINE_S,
                    "a chunk arrived",
                )
                stream.break_off()
    assert session.get(by_name("broken"))[1] == data


def test_bytes_that_are_there_are_not_sent_again(session, rng):
    data = rng.randbytes(2 * MIB)
    first = session.put(data, name="first")
    used = session.settled().session_bytes
    stream = session.put_stream()
    state = stream.begin(
        bytes_spec(len(data)), name="second", sha256=hashlib.sha256(data).digest()
    )
    assert not state.missing
    second = stream.tensor()
    assert second.handle != first.handle
    assert session.list().session_bytes < used + 4096, "the bytes are charged once"
    session.delete(by_name("first"))
    assert session.get(by_name("second"))[1] == data


def test_another_hash_keeps_nothing(session, rng):
    data = rng.randbytes(MIB)
    stream = session.put_stream()
    stream.begin(bytes_spec(MIB), name="bad", sha256=hashlib.sha256(b"other").digest())
    stream.chunk(0, data)
    code, text = stream.error()
    assert code == DATA_LOSS and "sha256" in text
    assert not session.list().tensors
    wait_until(lambda: session.list().session_bytes == 0, DEADLINE_S, "the bytes are free")


def test_names_are_replaced_when_complete(session, rng):
    old, new = rng.randbytes(MIB), rng.randbytes(MIB)
    before = session.put(old, name="w")
    stream = session.put_stream()
    stream.begin(bytes_spec(MIB), name="w")
    stream.chunk(0, new[:1000])
    assert session.get(by_name("w"))[1] == old
    stream.chunk(1000, new[1000:])
    stream.tensor()
    assert session.get(by_name("w"))[1] == new
    assert refusal(session.get, by_handle(before))[0] == NOT_FOUND
    assert len(session.list().tensors) == 1


def test_listing(session):
    for name in ("b", "a/2", "a/1", ""):
        session.put(bytes(10), name=name, hashed=False)
    listing = session.settled()
    assert [tensor.name for tensor in listing.tensors] == ["", "a/1", "a/2", "b"]
    assert listing.max_session_bytes == 64 * MIB
    assert listing.free_bytes == listing.max_session_bytes - listing.session_bytes
    assert sum(tensor.kept_bytes for tensor in listing.tensors) == listing.session_bytes
    assert [tensor.name for tensor in session.list("a/*").tensors] == ["a/1", "a/2"]
    assert [(place.device, place.bytes) for place in listing.tensors[0].places] == [("host", 10)]


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


def begun(spec=None, **fields):
    return {"begin": resident_pb2.PutBegin(spec=spec or bytes_spec(10), **fields)}


def chunk(offset, data):
    return {"chunk": resident_pb2.PutChunk(offset=offset, data=data)}


U8 = tensors_pb2.ELEMENT_TYPE_U8
Spec = resident_pb2.TensorSpec
NewTensor = tensors_pb2.NewTensor

BAD_UPLOADS = {
    "nothing first": ([{}], FAILED_PRECONDITION, "begin or join"),
    "a chunk first": ([chunk(0, b"x")], FAILED_PRECONDITION, "begin or join"),
    "two begins": ([begun(), begun()], INVALID_ARGUMENT, "want one"),
    "no type": ([begun(Spec(rows=1, columns=1))], INVALID_ARGUMENT, "spec.type"),
    "negative": ([begun(Spec(type=U8, rows=-1))], INVALID_ARGUMENT, "spec.rows: got -1"),
    "too large": (
        [begun(Spec(type=U8, rows=1 << 40, columns=1 << 40))],
        INVALID_ARGUMENT,
        "spec",
    ),
    "many matrices": (
        [begun(Spec(type=U8, rows=1 << 31, columns=1 << 31, matrices=1 << 31))],
        INVALID_ARGUMENT,
        "spec",
    ),
    "short lines": (
        [begun(Spec(type=U8, rows=2, columns=4, leading_dimension=3))],
        INVALID_ARGUMENT,
        "spec.leading_dimension: got 3",
    ),
    "unknown order": ([begun(Spec(type=U8, order=9))], INVALID_ARGUMENT, "spec.order"),
    "unknown sparsity": ([begun(Spec(type=U8, sparsity=9))], INVALID_ARGUMENT, "spec.sparsity"),
    "sparse columns": (
        [begun(Spec(type=U8, order=1, rows=4, columns=4, sparsity=1))],
        INVALID_ARGUMENT,
        "spec.order",
    ),
    "factors of f32": (
        [begun(Spec(type=2, rows=1, columns=1, scale=tensors_pb2.Scale(values=[1])))],
        INVALID_ARGUMENT,
        "spec.scale.values: got 1",
    ),
    "too many factors": (
        [begun(Spec(type=U8, rows=2, columns=3, scale=tensors_pb2.Scale(values=[1] * 5)))],
        INVALID_ARGUMENT,
        "spec.scale.values: got 5",
    ),
    "short hash": ([begun(sha256=b"1234")], INVALID_ARGUMENT, "begin.sha256: got 4 bytes"),
    "long name": ([begun(keep=NewTensor(name="x" * 129))], INVALID_ARGUMENT, "name: got 129"),
    "negative lease": ([begun(keep=NewTensor(lease_ns=-1))], INVALID_ARGUMENT, "lease_ns: got -1"),
    "before the tensor": ([begun(), chunk(-1, b"x")], INVALID_ARGUMENT, "chunk: got 1 bytes from -1"),
    "after the tensor": ([begun(), chunk(9, b"xy")], INVALID_ARGUMENT, "chunk: got 2 bytes from 9"),
    "far away": ([begun(), chunk((1 << 63) - 1, b"x")], INVALID_ARGUMENT, "chunk: got 1 bytes"),
    "long chunk": (
        [begun(bytes_spec(2 * MIB)), chunk(0, bytes(MIB + 1))],
        INVALID_ARGUMENT,
        "chunk.data: got 1048577",
    ),
    "longer message": (
        [begun(bytes_spec(2 * MIB)), chunk(0, bytes(2 * MIB))],
        INVALID_ARGUMENT,
        "message: got 20971",
    ),
    "more than the session's": ([begun(bytes_spec(65 * MIB))], RESOURCE_EXHAUSTED, "--session-tensor-bytes"),
}


@pytest.mark.parametrize("steps,code,text", BAD_UPLOADS.values(), ids=BAD_UPLOADS)
def test_bad_uploads_are_refused(session, steps, code, text):
    stream = session.put_stream()
    for step in steps:
        stream.send(**step)
    got_code, got_text = stream.error()
    assert (got_code, text in got_text) == (code, True), got_text


def test_quotas_say_what_is_free(daemon, channel, session):
    session.put(bytes(60 * MIB), hashed=False)
    session.settled()
    stream = session.put_stream()
    stream.send(**begun(bytes_spec(10 * MIB)))
    code, text = stream.error()
    assert code == RESOURCE_EXHAUSTED
    free = session.settled().free_bytes
    told = re.search(r"got 10485760 bytes, want at most the (\d+) of 67108864 that are free", text)
    assert free - 4096 < int(told[1]) <= free
    with contextlib.ExitStack() as stack:
        while True:
            other = stack.enter_context(Session(channel))
            stream = other.put_stream()
            stream.send(**begun(bytes_spec(40 * MIB)))
            try:
                stream.state()
            except grpc.RpcError as error:
                assert error.code() == RESOURCE_EXHAUSTED
                assert "of all sessions (--tensor-bytes)" in error.details()
                break
            stack.callback(stream.break_off)


def test_ranges_outside_of_a_tensor(session):
    tensor = session.put(bytes(100))
    for part in ({"offset": -1}, {"offset": 101}, {"offset": 50, "bytes": 51}, {"bytes": -1}):
        with pytest.raises(grpc.RpcError) as raised:
            session.get(by_handle(tensor), **part)
        assert raised.value.code() == OUT_OF_RANGE
    assert session.get(by_handle(tensor), offset=100)[1] == b""


def test_bad_names(session):
    for ref, text in (
        (tensors_pb2.TensorRef(), "tensor: got none"),
        (tensors_pb2.TensorRef(handle=b"x"), "tensor.handle: got 1 bytes"),
        (by_name(""), "tensor.name: got none"),
        (by_name("x" * 129), "tensor.name: got 129"),
    ):
        for call in (session.describe, session.delete, session.keep_alive, session.get):
            code, got = refusal(call, ref)
            assert code == INVALID_ARGUMENT and text in got, got


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
    daemon = daemons.start("--devices=cpu", "--session-linger=300ms")
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
            time.sleep(2)  # To ask for a session would be a use of it.
            assert refusal(Session, channel, second.token)[0] == UNAUTHENTICATED
            with Session(channel, first.token) as again:
                assert [tensor.name for tensor in again.list().tensors] == ["pinned"]
            assert third.list().tensors


def test_there_are_so_many_sessions(daemons):
    """One host may have seven times as many as are free."""
    daemon = daemons.start("--devices=cpu", "--max-sessions=8", "--session-linger=100ms")
    with grpc.insecure_channel(daemon.tcp) as channel, grpc.insecure_channel(daemon.unix) as local:
        sessions = [Session(channel) for _ in range(7)]
        code, text = refusal(Session, channel)
        assert code == RESOURCE_EXHAUSTED and "--max-sessions" in text
        sessions.append(Session(local))
        assert refusal(Session, local)[0] == RESOURCE_EXHAUSTED
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
