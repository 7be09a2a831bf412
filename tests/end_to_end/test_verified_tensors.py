# SPDX-License-Identifier: Apache-2.0
"""Products of tensors whose answers are checked before they are sent, with workers that flip bits
of D."""

import concurrent.futures

import grpc
import numpy as np
import pytest
from checked_server import (
    CHECKSUM,
    DATA_LOSS,
    DEADLINE_S,
    DUPLICATE,
    NOT_VERIFIED,
    PASSED,
    WHOLE,
    serve,  # noqa: F401
    some_product,
)
from gemmd.v1 import gemm_pb2, incidents_pb2, resident_pb2, tensors_pb2
from product import check_bytes
from tensors import Session, by_name, refusal

F16 = tensors_pb2.ELEMENT_TYPE_F16


class Resident:
    """A product of two tensors of a session; `d` says where its D goes."""

    def __init__(self, server):
        self.server = server
        self.session = Session(server.channel)
        self.product = some_product()
        for name, values in (("a", self.product.a), ("b", self.product.b)):
            self.put(name, values[0].astype(np.float16))

    def put(self, name, array, **fields):
        spec = resident_pb2.TensorSpec(type=F16, rows=array.shape[0], columns=array.shape[1])
        return self.session.put(array.tobytes(), spec=spec, name=name, hashed=False, **fields)

    def request(self, d=None, verify=None, device="cuda:0", a="a"):
        size = self.product.a.shape[1]
        request = gemm_pb2.MultiplyRequest(m=size, n=size, k=size, device=device)
        if a is None:
            request.a.type = F16
            request.a.data = self.product.a[0].astype(np.float16).tobytes()
        else:
            request.a.tensor.tensor.name = a
        request.b.tensor.tensor.name = "b"
        request.d.CopyFrom(d or tensors_pb2.OutputSpec())
        if verify is not None:
            request.verify.CopyFrom(verify)
        return request

    def multiply(self, **keywords):
        return self.session.multiply(self.request(**keywords))

    def refusal(self, **keywords):
        return refusal(self.multiply, **keywords)

    def close(self):
        self.session.close()


def new_tensor(name):
    return tensors_pb2.OutputSpec(new_tensor=tensors_pb2.NewTensor(name=name))


def over(name):
    return tensors_pb2.OutputSpec(tensor=tensors_pb2.TensorPart(tensor=by_name(name)))


@pytest.fixture
def resident(serve):
    made = []

    def start(*flags, **keywords):
        made.append(Resident(serve(*flags, **keywords)))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize("verify", [WHOLE, CHECKSUM, DUPLICATE])
def test_tensors_are_checked_like_any_matrix(resident, verify):
    """Operands and results only on the GPU, on the host, and on the CPU device."""
    own = resident()
    check_bytes(own.multiply(verify=verify).d, own.product)
    first = own.multiply(d=new_tensor("d"), verify=verify)
    # Samples are computed where the tensors are.
    assert {place.device for place in own.session.describe(by_name("d")).places} == (
        {"cuda:0"} if verify is WHOLE else {"host", "cuda:0"}
    )
    assert first.verification.device == ("" if verify is CHECKSUM else "cuda:0")
    for answer in (
        first,
        own.multiply(d=over("d"), verify=verify),
        own.multiply(d=over("d"), verify=verify, device="cpu"),
        own.multiply(verify=verify, device="cpu"),
    ):
        checked = answer.verification
        assert (checked.mode, checked.outcome) == (verify.mode, PASSED), checked
        assert checked.elements_checked == 24 * 24
    # A result that only the GPU has is an operand.
    eye = np.eye(24, dtype=np.float16)
    own.put("b2", eye)
    d16 = new_tensor("x")
    d16.type = F16
    own.multiply(d=d16)
    assert [place.device for place in own.session.describe(by_name("x")).places] == ["cuda:0"]
    answer = own.multiply(a="x", verify=verify)
    assert answer.verification.outcome == PASSED


@pytest.mark.parametrize("d", [None, new_tensor("d"), over("kept")])
def test_the_host_decides_where_a_sample_of_the_device_differs(resident, d):
    own = resident()
    own.multiply(d=new_tensor("kept"))
    own.server.flip(2)  # The sample, after a right product.
    answer = own.multiply(d=d, verify=WHOLE)
    assert answer.verification.outcome == PASSED
    assert answer.verification.elements_checked == 24 * 24
    assert answer.verification.device == ""
    assert not own.server.incidents().incidents
    [event] = own.server.daemon.awaited_events("sample_differs")
    assert event["device"] == "cuda:0" and "24x24x24" in event["problem"]


def test_the_host_judges_the_elements_that_the_device_found(resident):
    """One element of every D is wrong, and in a sample of nine of 576 now and then."""
    own = resident()
    own.server.flip(*range(1, 8001, 2))  # Every product, no sample.
    own.multiply(d=new_tensor("d"))
    part = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_SAMPLED, rate=1 / 64)
    own.server.flip(*range(1, 8001, 2))
    for _ in range(4000):
        try:
            answer = own.multiply(d=over("d"), verify=part)
        except grpc.RpcError as error:
            assert error.code() == DATA_LOSS
            break
        assert answer.verification.elements_checked == 9
        # The device has not found it, so the host has not been asked.
        assert answer.verification.device == "cuda:0"
    else:
        pytest.fail("the wrong element was never found")


@pytest.mark.parametrize("d", [None, new_tensor("d")])
def test_a_sample_has_operands_of_the_message(resident, d):
    own = resident()
    answer = own.multiply(a=None, d=d, verify=WHOLE)
    assert answer.verification.outcome == PASSED
    assert answer.verification.device == "cuda:0"
    own.server.flip(1)
    assert own.refusal(a=None, d=d, verify=WHOLE)[0] == DATA_LOSS


def test_what_others_overwrite_meanwhile_is_no_difference(resident):
    own = resident()
    own.put("a2", own.product.a[0].astype(np.float16) + 1)
    own.multiply(d=new_tensor("d"))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda i: own.multiply(a=("a", "a2")[i % 2], d=over("d"), verify=WHOLE), range(160)
        )
        outcomes = {(answer.verification.outcome, answer.verification.reason) for answer in answers}
    assert outcomes <= {(PASSED, ""), (NOT_VERIFIED, "overwritten")}
    assert not own.server.daemon.events("sample_differs")
    assert not own.server.incidents().incidents


def test_the_host_decides_where_the_device_fails(resident):
    own = resident()
    (own.server.folder / "part").write_text("Gather 1 error\n")
    (own.server.folder / "part").rename(own.server.folder / "script")
    answer = own.multiply(verify=WHOLE)
    check_bytes(answer.d, own.product)
    assert (answer.verification.outcome, answer.verification.device) == (PASSED, "")
    assert not own.server.incidents().incidents


@pytest.mark.parametrize("verify", [WHOLE, CHECKSUM, DUPLICATE])
@pytest.mark.parametrize("d", [None, new_tensor("d"), over("kept")])
def test_a_wrong_answer_of_tensors_is_not_given(resident, verify, d):
    own = resident()
    own.multiply(d=new_tensor("kept"))
    own.server.flip(1)
    code, words = own.refusal(d=d, verify=verify)
    assert code == DATA_LOSS, words
    is_overwritten = d is not None and d.HasField("tensor")
    assert ("undefined" in words) == is_overwritten
    [incident] = own.server.incidents().incidents
    assert incident.got_bits == incident.want_bits ^ (1 << 30)
    # There is no tensor with this result.
    assert {tensor.name for tensor in own.session.list().tensors} == {"a", "b", "kept"}
    # The incident has the operands.
    product = own.server.admin.GetIncidentProduct(
        incidents_pb2.GetIncidentProductRequest(id=incident.id), timeout=DEADLINE_S
    )
    product.request.kernel = ""
    check_bytes(own.server.gemm.Multiply(product.request, timeout=DEADLINE_S).d, own.product)


def test_a_wrong_answer_of_tensors_is_computed_elsewhere(resident):
    own = resident("--verify=sampled:1,retry")
    kernel = own.multiply().kernel
    own.server.flip(1)
    answer = own.multiply()
    check_bytes(answer.d, own.product)
    assert answer.kernel != kernel
    assert answer.verification.wrong_answers == 1


def test_what_went_into_a_tensor_is_not_computed_elsewhere(resident):
    """Others may have read it."""
    own = resident("--verify=sampled:1,retry")
    own.multiply(d=new_tensor("d"))
    own.server.flip(1)
    assert own.refusal(d=over("d"))[0] == DATA_LOSS


def test_what_a_result_overwrites_is_not_checked(resident):
    """C is overwritten by the time D is complete."""
    own = resident("--verify=sampled")
    own.multiply(d=new_tensor("c"))

    def in_place(verify=None):
        request = own.request(d=over("c"), verify=verify)
        request.c.tensor.tensor.name = "c"
        request.beta = 1
        return own.session.multiply(request)

    checked = in_place().verification
    assert (checked.outcome, checked.reason) == (NOT_VERIFIED, "in_place")
    code, words = refusal(in_place, WHOLE)
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert "overwrites C" in words
