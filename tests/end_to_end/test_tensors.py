# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay on the server: uploads over several streams and broken connections, downloads,
names."""

import hashlib

import grpc
import pytest
from daemon import wait_until
from gemmd.v1 import resident_pb2, tensors_pb2
from tensors import DEADLINE_S, FLAGS, MIB, Session, by_handle, by_name, bytes_spec, refusal

GEMMD_FLAGS = FLAGS

NOT_FOUND = grpc.StatusCode.NOT_FOUND


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
    # Streams that are still open are all told.
    handles = {stream.tensor().handle for stream in streams}
    [handle] = handles
    assert session.get(tensors_pb2.TensorRef(handle=handle))[1] == data


def test_an_upload_goes_on_after_every_chunk(daemon, session, rng):
    """The connection breaks after each chunk, and another one continues."""
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


def test_an_upload_that_ends_early_is_no_tensor(session, rng):
    """Its stream ends as a client would end it, but two bytes are missing: anybody with the
    upload's name may send them."""
    data = rng.randbytes(1000)
    stream = session.put_stream()
    upload = stream.begin(bytes_spec(1000), name="early").upload
    stream.chunk(0, data[:400]).chunk(402, data[402:]).close()
    assert list(stream.call) == []
    assert refusal(session.get, by_name("early"))[0] == NOT_FOUND
    assert not session.list().tensors
    again = session.put_stream()
    assert [(m.offset, m.bytes) for m in again.join(upload).missing] == [(400, 2)]
    again.chunk(400, data[400:402]).tensor()
    assert session.get(by_name("early"))[1] == data


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


def test_an_upload_takes_room_besides_its_bytes(session):
    """So that there cannot be thousands of uploads that never send."""
    stream = session.put_stream()
    stream.begin(bytes_spec(1))
    assert session.list().session_bytes >= 64 << 10
    stream.chunk(0, b"x").tensor()
    assert session.settled().session_bytes < 64 << 10


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
    # Each takes memory in addition to its bytes, so the number of empty tensors is limited, too.
    assert listing.session_bytes >= 4 * 1024
    assert listing.free_bytes == listing.max_session_bytes - listing.session_bytes
    assert sum(tensor.kept_bytes for tensor in listing.tensors) == listing.session_bytes
    assert [tensor.name for tensor in session.list("a/*").tensors] == ["a/1", "a/2"]
    assert [(place.device, place.bytes) for place in listing.tensors[0].places] == [("host", 10)]
