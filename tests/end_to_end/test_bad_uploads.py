# SPDX-License-Identifier: Apache-2.0
"""Invalid uploads and references to tensors: each is refused with a reason, and leaves nothing."""

import contextlib
import hashlib
import re

import grpc
import pytest
from daemon import wait_until
from gemmd.v1 import resident_pb2, tensors_pb2
from tensors import DEADLINE_S, FLAGS, MIB, Session, by_handle, by_name, bytes_spec, refusal

GEMMD_FLAGS = FLAGS

DATA_LOSS = grpc.StatusCode.DATA_LOSS
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
OUT_OF_RANGE = grpc.StatusCode.OUT_OF_RANGE
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def test_another_hash_keeps_nothing(session, rng):
    data = rng.randbytes(MIB)
    stream = session.put_stream()
    stream.begin(bytes_spec(MIB), name="bad", sha256=hashlib.sha256(b"other").digest())
    stream.chunk(0, data)
    code, text = stream.error()
    assert code == DATA_LOSS and "sha256" in text
    assert not session.list().tensors
    wait_until(lambda: session.list().session_bytes == 0, DEADLINE_S, "the bytes are free")


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
    "more than the session's": ([begun(bytes_spec(65 * MIB))], RESOURCE_EXHAUSTED, "--tensor-bytes of a session"),
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
    told = re.search(
        r"got 10485760 bytes of host memory, want at most the (\d+) that are free of the session: "
        r"(\d+) of 67108864 are used \(--tensor-bytes of a session\)",
        text,
    )
    assert free - 4096 < int(told[1]) <= free
    assert int(told[1]) + int(told[2]) == 64 * MIB
    with contextlib.ExitStack() as stack:
        for begun_before in range(7):
            assert begun_before < 6, "room for 60 + 6 * 40 MiB, want at most 256"
            other = stack.enter_context(Session(channel))
            stream = other.put_stream()
            stream.send(**begun(bytes_spec(40 * MIB)))
            try:
                stream.state()
            except grpc.RpcError as error:
                assert error.code() == RESOURCE_EXHAUSTED
                assert "free of all sessions: " in error.details()
                assert "of 268435456 are used (--tensor-bytes)" in error.details()
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
