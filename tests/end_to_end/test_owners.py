# SPDX-License-Identifier: Apache-2.0
"""Owners that are identified: their tensors belong to them, whatever session names them."""

import hashlib
import os
import signal
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from callers import RESOURCE_EXHAUSTED, UNAUTHENTICATED, Trust, bearer, product
from daemon import wait_until
from gemmd.v1 import (
    gemm_pb2,
    gemm_pb2_grpc,
    registry_pb2_grpc,
    resident_pb2,
    statistics_pb2,
    tensors_pb2,
)
from tensors import DEADLINE_S, MIB, Session, by_handle, by_name, bytes_spec, refusal
from tritonclient.utils import InferenceServerException

RULES = {
    "alice": {"may": ["multiply", "tensors", "registry"]},
    "bob": {"may": ["multiply", "tensors"]},
    "anonymous": {"may": ["multiply", "tensors"]},
}


@pytest.fixture(scope="module")
def trust(tmp_path_factory):
    trust = Trust(tmp_path_factory.mktemp("trust"))
    trust.write(RULES)
    return trust


@pytest.fixture(scope="module")
def daemon(gemmd, tmp_path_factory, trust):
    from fixtures import Daemons

    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    yield daemons.start("--devices=cpu", "--session-linger=100ms", *trust.flags)
    daemons.end()


def test_an_owner_finds_tensors_over_any_connection(daemon, rng):
    data = rng.randbytes(64)
    with grpc.insecure_channel(daemon.tcp) as tcp, grpc.insecure_channel(daemon.unix) as local:
        first = Session(tcp, credentials=bearer("alice"))
        tensor = first.put(data, name="w", pinned=True)
        upload = first.put_stream()
        begun = upload.begin(bytes_spec(1000)).upload
        with Session(local, credentials=bearer("alice")) as second:
            assert [one.name for one in second.list().tensors] == ["w"]
            for ref in (by_name("w"), by_handle(tensor)):
                assert second.get(ref)[1] == data
            # The bytes are known by their hash, and an upload can be resumed.
            again = second.put_stream()
            assert not again.begin(bytes_spec(64), sha256=hashlib.sha256(data).digest()).missing
            second.delete(by_handle(again.tensor()))
            joined = second.put_stream()
            joined.join(begun)
            joined.chunk(0, bytes(1000))
            assert joined.tensor().bytes == 1000
            upload.break_off()
            # A tensor replaced through one session is replaced for the other.
            replaced = second.put(data[::-1], name="w", pinned=True)
            assert first.describe(by_name("w")).handle == replaced.handle
        first.close()
        with Session(tcp, credentials=bearer("bob")) as other:
            assert not other.list().tensors
            nothing = refusal(other.describe, tensors_pb2.TensorRef(handle=bytes(16)))
            for ref in (by_name("w"), by_handle(replaced)):
                assert refusal(other.describe, ref) == nothing
            stream = other.put_stream()
            assert stream.begin(bytes_spec(64), sha256=hashlib.sha256(data[::-1]).digest()).missing
            stream.break_off()


def test_an_owner_needs_no_token_of_a_session(daemon, rng):
    """So can clients of other protocols, which have no sessions."""
    values = np.ones((4, 4), np.float32)
    spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F32, rows=4, columns=4)
    with grpc.insecure_channel(daemon.tcp) as channel:
        with Session(channel, credentials=bearer("alice")) as session:
            session.put(values.tobytes(), spec=spec, name="layer")
        stub = gemm_pb2_grpc.GemmStub(channel)
        request = product()
        request.b.Clear()
        request.b.tensor.tensor.name = "layer"
        answer = stub.Multiply(request, metadata=bearer("alice"), timeout=DEADLINE_S)
        assert answer.d.data == (4 * values).tobytes()
        several = gemm_pb2.MultiplyStreamRequest(requests=[request] * 2)
        stream = stub.MultiplyStream(iter([several]), metadata=bearer("alice"), timeout=DEADLINE_S)
        answers = [answer for message in stream for answer in message.answers]
        assert [answer.response.d.data for answer in answers] == [(4 * values).tobytes()] * 2
        for other in (bearer("bob"), []):
            code, words = refusal(stub.Multiply, request, metadata=other, timeout=DEADLINE_S)
            assert code in (UNAUTHENTICATED, grpc.StatusCode.NOT_FOUND), words
    tensor = triton.InferInput("A", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    with triton.InferenceServerClient(daemon.tcp) as client:
        headers = dict(bearer("alice"))
        answer = client.infer("layer", [tensor], headers=headers)
        assert np.array_equal(answer.as_numpy("D"), 4 * values)
        models = client.get_model_repository_index(headers=headers).models
        assert {"gemm", "layer"} <= {model.name for model in models}
        for other in (dict(bearer("bob")), None):
            with pytest.raises(InferenceServerException):
                client.infer("layer", [tensor], headers=other)


def test_tensors_of_an_owner_outlive_its_connections(daemon):
    with grpc.insecure_channel(daemon.tcp) as channel:
        with Session(channel, credentials=bearer("bob")) as session:
            session.put(bytes(10), name="b")
        guest = Session(channel)
        guest.put(bytes(10), name="b")
        guest.close()
        # Meanwhile the session of an unidentified caller ends, with its tensors.
        wait_until(lambda: gone(channel, guest.token), DEADLINE_S, "the guest's session is over")
        with Session(channel) as other:
            assert not other.list().tensors
        with Session(channel, credentials=bearer("bob")) as session:
            assert [one.name for one in session.list().tensors] == ["b"]


def gone(channel, token):
    time.sleep(0.2)  # Asking for a session would count as a use of it.
    try:
        Session(channel, token).close()
    except grpc.RpcError as error:
        return error.code() == grpc.StatusCode.UNAUTHENTICATED
    return False


def test_statistics_tell_whose_tensors_there_are(daemons, tmp_path):
    """By the rule that applies to the owner, never by the name that matched its pattern."""
    trust = Trust(tmp_path)
    trust.write({"team/*": {"may": ["tensors", "statistics"]}}, tokens=["team/one"])
    daemon = daemons.start("--devices=cpu", *trust.flags)
    with (
        grpc.insecure_channel(daemon.unix) as channel,
        Session(channel, credentials=bearer("team/one")) as session,
    ):
        session.put(bytes(MIB), name="w")
        stub = registry_pb2_grpc.RegistryStub(channel)
        answer = stub.GetStatistics(
            statistics_pb2.GetStatisticsRequest(), metadata=bearer("team/one"), timeout=DEADLINE_S
        )
        assert [owner.caller for owner in answer.tensors.owners] == ["team/*"]
    plain = daemons.start("--devices=cpu", "--lame-duck=1ms")
    with grpc.insecure_channel(plain.unix) as channel, Session(channel) as session:
        session.put(bytes(MIB), name="w")
        stub = registry_pb2_grpc.RegistryStub(channel)
        answer = stub.GetStatistics(statistics_pb2.GetStatisticsRequest(), timeout=DEADLINE_S)
        assert [owner.caller for owner in answer.tensors.owners] == [f"uid:{os.getuid()}"]


def test_a_user_of_a_unix_socket_is_an_owner_where_rules_name_it(daemons, tmp_path):
    trust = Trust(tmp_path)
    trust.write({f"uid:{os.getuid()}": {"may": ["tensors"]}})
    daemon = daemons.start("--devices=cpu", *trust.flags)
    with grpc.insecure_channel(daemon.unix) as one, grpc.insecure_channel(daemon.unix) as two:
        with Session(one) as first, Session(two) as second:
            first.put(bytes(10), name="x")
            assert [tensor.name for tensor in second.list().tensors] == ["x"]
    plain = daemons.start("--devices=cpu", "--lame-duck=1ms")
    with grpc.insecure_channel(plain.unix) as one, grpc.insecure_channel(plain.unix) as two:
        with Session(one) as first, Session(two) as second:
            first.put(bytes(10), name="x")
            assert not second.list().tensors


def test_other_limits_hold_while_an_owner_is_there(daemon, trust):
    with grpc.insecure_channel(daemon.tcp) as channel:
        first = Session(channel, credentials=bearer("alice"))
        default = first.opened.max_session_bytes
        changed = dict(RULES)
        changed["alice"] = {"may": ["tensors"], "tensor_bytes": MIB}
        trust.write(changed)
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: daemon.events("rules_read"), DEADLINE_S, "rules read")
        second = Session(channel, credentials=bearer("alice"))
        assert second.opened.max_session_bytes == MIB < default
        code, words = refusal(first.put, bytes(2 * MIB))
        assert code == RESOURCE_EXHAUSTED and "tensor_bytes of --rules" in words
        for session in (first, second):
            session.close()
