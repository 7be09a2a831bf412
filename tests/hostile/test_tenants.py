# SPDX-License-Identifier: Apache-2.0
"""One tenant asks for what another one has: handles, names, hashes, uploads, sessions. Existing
objects look like missing ones, by the error's text and, with --long, by its time."""

import hashlib
import os
import statistics
import time

import grpc
import pytest
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2
from tensors import Session, bytes_spec, refusal

GEMMD_FLAGS = ["--devices=cpu", "--tensor-bytes=64MiB:16MiB"]
DEADLINE_S = 60
SIZE = 64
NAME = "of another tenant"
CONTENT = bytes(range(SIZE))
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def random_id():
    return os.urandom(16)


def multiply(session, ref):
    row = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_U8, tensor=tensors_pb2.TensorPart(tensor=ref))
    column = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_U8, data=bytes(SIZE))
    return session.multiply(gemm_pb2.MultiplyRequest(m=1, n=1, k=SIZE, a=row, b=column))


def compress(session, ref):
    request = resident_pb2.CompressRequest(tensor=ref)
    return session.stub.Compress(request, metadata=session.metadata, timeout=DEADLINE_S)


def into(session, ref):
    """A product whose result would overwrite the tensor."""
    one = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_U8, data=bytes(SIZE))
    output = tensors_pb2.OutputSpec(tensor=tensors_pb2.TensorPart(tensor=ref))
    return session.multiply(gemm_pb2.MultiplyRequest(m=SIZE, n=1, k=1, a=one, b=one, d=output))


PROBES = {
    "Describe": lambda session, ref: session.describe(ref),
    "Delete": lambda session, ref: session.delete(ref),
    "Get": lambda session, ref: session.get(ref),
    "KeepAlive": lambda session, ref: session.keep_alive(ref, pinned=True),
    "Compress": compress,
    "operand": multiply,
    "result": into,
}


@pytest.fixture(scope="module")
def tenants(daemon):
    """The owner of a tensor, who has it under a name, and a stranger."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with (
        grpc.insecure_channel(daemon.tcp, options=options) as here,
        grpc.insecure_channel(daemon.tcp, options=options) as there,
        Session(here) as owner,
        Session(there) as stranger,
    ):
        tensor = owner.put(CONTENT, name=NAME)
        yield owner, stranger, tensor
        # Nobody has changed it.
        info, data = owner.get(tensors_pb2.TensorRef(handle=tensor.handle))
        assert data == CONTENT and not info.pinned
        assert [t.name for t in owner.list().tensors] == [NAME]


def references(tensor):
    """Pairs of a reference to another tenant's object and one, of the same length, to nothing."""
    yield (
        tensors_pb2.TensorRef(handle=tensor.handle),
        tensors_pb2.TensorRef(handle=random_id()),
    )
    yield (
        tensors_pb2.TensorRef(name=NAME),
        tensors_pb2.TensorRef(name=hashlib.sha256(random_id()).hexdigest()[: len(NAME)]),
    )


def without(ref, words):
    """The text of a refusal without the reference."""
    asked = ref.handle.hex() if ref.WhichOneof("tensor") == "handle" else ref.name
    return words.replace(asked, "...")


def timed(probe, session, ref):
    began = time.perf_counter()
    code, words = refusal(probe, session, ref)
    return time.perf_counter() - began, code, without(ref, words)


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES.keys())
def test_tensors_of_others_are_not_there(tenants, battery, request, probe):
    _, stranger, tensor = tenants
    rounds = 3600 if battery.is_long else 20
    different = 0
    times = {"theirs": [], "nobody's": []}
    for i in range(rounds):
        for theirs, nobodys in references(tensor):
            pair = [("theirs", theirs), ("nobody's", nobodys)]
            answers = {}
            for which, ref in pair if i % 2 == 0 else reversed(pair):
                spent, *answers[which] = timed(probe, stranger, ref)
                times[which].append(spent)
            assert answers["theirs"][0] == NOT_FOUND
            different += answers["theirs"] != answers["nobody's"]
    name = request.node.callspec.id
    battery.holds(f"{name} of another tenant's tensor: other words", most=0, seen=different)
    # Medians of a few calls differ by more.
    if battery.is_long:
        ratio = statistics.median(times["theirs"]) / statistics.median(times["nobody's"])
        battery.timed(f"{name} of another tenant's tensor: time", most=0.05, seen=abs(ratio - 1))


def test_hashes_of_others_are_unknown(tenants, battery):
    """Knowing the hash of another tenant's bytes does not reveal that they exist."""
    _, stranger, _ = tenants
    told = 0
    rounds = 2000 if battery.is_long else 20
    for i in range(rounds):
        is_known = i % 2 == 0
        digest = hashlib.sha256(CONTENT).digest() if is_known else random_id() * 2
        stream = stranger.put_stream()
        state = stream.begin(bytes_spec(SIZE), sha256=digest)
        told += [(r.offset, r.bytes) for r in state.missing] != [(0, SIZE)]
        stream.chunk(0, CONTENT)
        if is_known:
            stranger.delete(tensors_pb2.TensorRef(handle=stream.tensor().handle))
            stranger.settled()  # Until its own upload is released, it finds its own bytes.
        else:
            stream.error()
    battery.holds("hashes of another tenant's bytes that are known", most=0, seen=told)


def test_uploads_of_others_are_not_there(tenants, battery):
    owner, stranger, _ = tenants
    stream = owner.put_stream()
    state = stream.begin(bytes_spec(SIZE))
    seen = set()
    for _ in range(2000 if battery.is_long else 20):
        for upload in (state.upload, random_id()):
            code, words = stranger.put_stream().send(join=upload).error()
            seen.add((code, words.replace(upload.hex(), "...")))
    battery.holds("ways to refuse an upload of another tenant", most=1, seen=len(seen))
    assert {code for code, _ in seen} == {NOT_FOUND}
    stream.chunk(0, CONTENT)
    owner.delete(tensors_pb2.TensorRef(handle=stream.tensor().handle))


def test_sessions_are_not_guessed(tenants, battery):
    """A token that belongs to no session, and one that is nearly another tenant's."""
    owner, stranger, tensor = tenants
    ref = tensors_pb2.TensorRef(handle=tensor.handle)
    last = "0" if owner.token[-1] != "0" else "1"
    seen = set()
    for i in range(8000 if battery.is_long else 40):
        token = owner.token[:-1] + last if i % 2 == 0 else random_id().hex()
        metadata = [("gemmd-session", token)]
        code, words = refusal(stranger.stub.Describe, ref, metadata=metadata, timeout=DEADLINE_S)
        seen.add((code, words.replace(token, "...")))
    battery.holds("ways to refuse a session that there is not", most=1, seen=len(seen))
