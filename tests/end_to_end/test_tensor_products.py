# SPDX-License-Identifier: Apache-2.0
"""Products of tensors that stay on the server: whole, in part, overwritten and replaced."""

import contextlib
import os
import signal

import grpc
import metrics_page
import numpy as np
import pytest
from daemon import wait_until
from elements import COLUMN_MAJOR, ELEMENTS, ROW_MAJOR, load
from gemmd.v1 import gemm_pb2, registry_pb2, registry_pb2_grpc, resident_pb2, tensors_pb2
from product import (
    DEADLINE_S,
    Layout,
    Product,
    check_bytes,
    check_within,
    small_integers,
    transposed_orders,
)
from streams import answers_in, joint
from tensor_operands import array_of, integers, operand, part, product, put_array
from tensors import FLAGS, Session, by_handle, by_name, refusal

GEMMD_FLAGS = FLAGS

F32 = tensors_pb2.ELEMENT_TYPE_F32
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
@pytest.mark.parametrize("kind", ["f32", "f16", "s8", "e2m1", "b1", "e3m2"])
def test_tensors_give_the_bits_of_inline_operands(session, rng, device, kind):
    """In every order, transposed or not, padded or not."""
    for turn, (a_form, b_form) in enumerate(zip(transposed_orders(), transposed_orders()[::-1])):
        m, n, k = 9, 17, 33
        want = Product(
            a=small_integers(rng, ELEMENTS[kind], 1, m, k),
            b=small_integers(rng, ELEMENTS[kind], 1, k, n),
            a_type=kind,
            b_type=kind,
        )
        padding = turn % 2 * 3
        want.layouts = {
            "a": Layout(a_form.order, a_form.transpose, padding),
            "b": Layout(b_form.order, b_form.transpose, padding),
        }
        request = want.request()
        request.device = device
        try:
            inline = session.multiply(request)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
            continue
        for name, rows, columns in (("a", m, k), ("b", k, n)):
            field = getattr(request, name)
            data = field.data
            transposed = field.transpose
            spec = resident_pb2.TensorSpec(
                type=field.type,
                order=field.order,
                rows=columns if transposed else rows,
                columns=rows if transposed else columns,
                leading_dimension=field.leading_dimension,
            )
            lines = spec.rows if spec.order == ROW_MAJOR else spec.columns
            length = spec.columns if spec.order == ROW_MAJOR else spec.rows
            stride = ((spec.leading_dimension or length) * ELEMENTS[kind].bits + 7) // 8
            tensor = session.put(data.ljust(lines * stride, b"\0"), spec=spec)
            field.CopyFrom(operand(by_handle(tensor), transposed))
        answer = session.multiply(request)
        assert answer.d == inline.d
        check_bytes(answer.d, want)


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
def test_parts_of_tensors(session, rng, device):
    whole = integers(rng, 3, 20, 30, dtype=np.float16)
    other = integers(rng, 1, 40, 25, dtype=np.float16)
    a = by_handle(put_array(session, whole))
    b = by_handle(put_array(session, other))

    def multiply(left, right, want, batch=1):
        request = product(*want.shape[1:], left.tensor.columns, left, right, batch, device=device)
        answer = session.multiply(request)
        assert (load(answer.d) == want).all()

    rows = operand(a, first_row=3, rows=7, first_column=5, columns=11, first_matrix=1, matrices=1)
    columns = operand(b, first_row=2, rows=11, first_column=20)
    multiply(rows, columns, whole[1:2, 3:10, 5:16] @ other[:, 2:13, 20:])
    # A batch with one matrix of B for all.
    batch = operand(a, first_row=3, rows=7, first_column=5, columns=11)
    multiply(batch, columns, whole[:, 3:10, 5:16] @ other[:, 2:13, 20:], 3)
    two = operand(a, first_row=3, rows=7, first_column=5, columns=11, first_matrix=1)
    multiply(two, columns, whole[1:, 3:10, 5:16] @ other[:, 2:13, 20:], 2)
    # Both operands are parts of one tensor, one of them transposed.
    transposed = operand(a, True, first_row=1, rows=6, first_column=4, columns=11, matrices=1)
    multiply(rows, transposed, whole[1:2, 3:10, 5:16] @ whole[:1, 1:7, 4:15].swapaxes(1, 2))


def test_factors_of_a_part(session, rng):
    a, b = integers(rng, 1, 6, 8, dtype=np.int8), integers(rng, 1, 8, 5, dtype=np.int8)
    by_row = [float(2**i) for i in range(6)]
    by_column = [float(2 ** (i % 3)) for i in range(5)]
    left = by_handle(put_array(session, a, scale=by_row))
    right = by_handle(put_array(session, b, scale=by_column))
    request = product(
        3, 2, 8, operand(left, first_row=2, rows=3), operand(right, first_column=3),
        accumulation_type=tensors_pb2.ELEMENT_TYPE_S32,
        d=tensors_pb2.OutputSpec(type=F32),
    )
    want = (a[:, 2:5].astype(np.float32) * np.array(by_row[2:5]).reshape(1, 3, 1)) @ (
        b[:, :, 3:].astype(np.float32) * np.array(by_column[3:])
    )
    assert (load(session.multiply(request).d) == want).all()
    # A transposed B needs factors for its rows.
    request = product(6, 8, 5, operand(by_handle(put_array(session, integers(rng, 1, 6, 5, dtype=np.int8)))),
                      operand(right, True), d=tensors_pb2.OutputSpec(type=F32))
    code, text = refusal(session.multiply, request)
    assert code == INVALID_ARGUMENT and "b.tensor: got 5 factors" in text


def test_results_stay_for_the_next_product(session, rng):
    """A chain of which only the end is sent."""
    x, w1, w2 = integers(rng, 2, 4, 6), integers(rng, 1, 6, 5), integers(rng, 1, 5, 3)
    a, b, c = (by_handle(put_array(session, array)) for array in (x, w1, w2))
    first = product(4, 5, 6, operand(a), operand(b), 2)
    first.d.new_tensor.name = "hidden"
    answer = session.multiply(first)
    assert answer.d.data == b"" and answer.d.rows == 4 and answer.tensor.name == "hidden"
    assert answer.tensor.bytes == 2 * 4 * 5 * 4 and answer.tensor.spec.matrices == 2
    assert (array_of(session, answer.tensor) == x @ w1).all()
    second = product(4, 3, 5, operand(by_name("hidden")), operand(c), 2)
    assert (load(session.multiply(second).d) == x @ w1 @ w2).all()
    assert session.describe(by_name("hidden")).products == 1
    # The next result takes its name, and can read the previous one.
    again = product(4, 5, 5, operand(by_name("hidden")), operand(by_handle(put_array(session, w1[:, :5]))), 2)
    again.d.new_tensor.name = "hidden"
    answer = session.multiply(again)
    assert (array_of(session, answer.tensor) == x @ w1 @ w1[:, :5]).all()


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
def test_results_overwrite_a_part(session, rng, device):
    # Every sum is exact, and rounded once to f16.
    a, b, whole = (
        integers(rng, *shape, dtype=np.float16) for shape in ((2, 3, 6), (2, 6, 4), (3, 8, 9))
    )
    left, right = (by_handle(put_array(session, array)) for array in (a, b))
    into = by_handle(put_array(session, whole, hashed=False))
    request = product(3, 4, 6, operand(left), operand(right), 2, device=device)
    request.d.tensor.CopyFrom(part(into, first_row=2, rows=3, first_column=5, first_matrix=1))
    answer = session.multiply(request)
    want = whole.copy()
    want[1:, 2:5, 5:] = a @ b
    assert answer.d.data == b"" and answer.tensor.handle == into.handle
    assert (array_of(session, answer.tensor) == want).all()
    # D overwrites C.
    request.beta = 2
    request.c.CopyFrom(operand(into, first_row=2, rows=3, first_column=5, first_matrix=1))
    answer = session.multiply(request)
    want[1:, 2:5, 5:] = a @ b + 2 * want[1:, 2:5, 5:]
    assert (array_of(session, answer.tensor) == want).all()
    # The operand is another part of the same tensor.
    request = product(3, 2, 4, operand(into, first_row=2, rows=3, first_column=5, matrices=1),
                      operand(into, rows=4, first_column=3, columns=2, matrices=1), device=device)
    request.d.tensor.CopyFrom(part(into, first_row=5, rows=3, columns=2, matrices=1))
    answer = session.multiply(request)
    wide = want.astype(np.float32)
    want[:1, 5:, :2] = wide[:1, 2:5, 5:] @ wide[:1, :4, 3:5]
    assert (array_of(session, answer.tensor) == want).all()


def test_a_result_in_columns(session, rng):
    a, b = integers(rng, 1, 3, 6), integers(rng, 1, 6, 4)
    request = product(3, 4, 6, operand(by_handle(put_array(session, a))),
                      operand(by_handle(put_array(session, b))))
    request.d.order = COLUMN_MAJOR
    request.d.leading_dimension = 5
    request.d.new_tensor.SetInParent()
    info = session.multiply(request).tensor
    assert (info.spec.order, info.spec.leading_dimension, info.bytes) == (COLUMN_MAJOR, 5, 80)
    _, data = session.get(by_handle(info))
    lines = np.frombuffer(data, np.float32).reshape(4, 5)
    assert (lines[:, :3] == (a @ b)[0].T).all() and (lines[:, 3:] == 0).all()
    request.d.Clear()
    request.d.tensor.CopyFrom(part(by_handle(info)))
    assert session.multiply(request).tensor.handle == info.handle


def test_products_of_others_tensors(channel, session, rng):
    put_array(session, integers(rng, 1, 2, 2), name="x")
    request = product(2, 2, 2, operand(by_name("x")), operand(by_name("x")))
    assert session.multiply(request).d.rows == 2
    with Session(channel) as other:
        assert refusal(other.multiply, request)[0] == NOT_FOUND
    call = session.gemm.Multiply
    with pytest.raises(grpc.RpcError) as raised:
        call(request, timeout=DEADLINE_S)
    assert raised.value.code() == UNAUTHENTICATED


def test_streams_of_products_name_tensors(session, rng):
    a, b = integers(rng, 1, 4, 6), integers(rng, 1, 6, 5)
    left, right = (by_handle(put_array(session, array)) for array in (a, b))
    requests = [product(4, 5, 6, operand(left), operand(right), request_id=str(i)) for i in range(5)]
    requests[3].d.new_tensor.name = "kept"
    answers = {
        answer.request_id: answer.response
        for answer in answers_in(
            session.gemm.MultiplyStream(
                joint(requests, 2), metadata=session.metadata, timeout=DEADLINE_S
            )
        )
    }
    for i in (0, 1, 2, 4):
        assert (load(answers[str(i)].d) == a @ b).all()
    assert (array_of(session, answers["3"].tensor) == a @ b).all()


def test_explanations_name_tensors(channel, session, rng):
    a = put_array(session, integers(rng, 1, 64, 64), name="a")
    request = product(64, 64, 64, operand(by_name("a")), operand(by_name("a")))
    request.d.new_tensor.name = "result"
    registry = registry_pb2_grpc.RegistryStub(channel)
    explain = registry_pb2.ExplainRequest(request=request)
    answer = registry.Explain(explain, metadata=session.metadata, timeout=DEADLINE_S)
    assert answer.candidates
    assert [tensor.handle for tensor in session.list().tensors] == [a.handle]
    with pytest.raises(grpc.RpcError) as raised:
        registry.Explain(explain, timeout=DEADLINE_S)
    assert raised.value.code() == UNAUTHENTICATED


def test_bytes_that_a_product_overwrote_are_sent_again(session, rng):
    """They were known by their hash, but have changed."""
    array = integers(rng, 1, 4, 4)
    ones = by_handle(put_array(session, np.ones((1, 4, 4), np.float32), hashed=False))
    tensor = put_array(session, array, name="old")
    request = product(4, 4, 4, operand(ones), operand(ones))
    request.d.tensor.CopyFrom(part(by_handle(tensor)))
    session.multiply(request)
    again = put_array(session, array, name="new")
    assert (array_of(session, again) == array).all()
    assert (array_of(session, tensor) == 4).all()


def copies(daemon, event):
    page = metrics_page.scrape(daemon)
    return page.value("gemmd_tensor_copies_total", device="cuda:0", event=event)


def test_a_gpu_keeps_copies(daemons, fake_worker, rng):
    """With a worker that simulates its GPU: made once, evicted for others, made again in a new
    worker."""
    daemon = daemons.start(
        "--lame-duck=1ms",
        "--devices=cuda:0,cpu",
        f"--worker-binary={fake_worker}",
        "--gpu-memory-bytes=80KiB",  # Tensors may take 64 KiB of it.
        "--metrics-listen=127.0.0.1:0",
    )
    x = integers(rng, 1, 16, 96, dtype=np.float16)
    weights = [integers(rng, 1, 96, 128, dtype=np.float16) for _ in range(4)]  # 24 KiB each.
    with grpc.insecure_channel(daemon.unix) as channel, Session(channel) as session:
        refs = [by_handle(put_array(session, array)) for array in weights]
        left = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_F16, data=x.tobytes())

        def multiply(i, **fields):
            columns = fields.get("columns", 128)
            asked = product(16, columns, 96, left, operand(refs[i], **fields), device="cuda:0")
            first = fields.get("first_column", 0)
            answer = session.multiply(asked)
            assert answer.device == "cuda:0"
            want = x.astype(np.float32) @ weights[i][:, :, first : first + columns]
            assert (load(answer.d) == want).all()

        multiply(0)
        multiply(0, first_column=8, columns=16)
        assert (copies(daemon, "made"), copies(daemon, "found")) == (1, 1)
        assert {place.device for place in session.describe(refs[0]).places} == {"host", "cuda:0"}
        for i in (1, 2, 3):
            multiply(i)
        assert copies(daemon, "evicted") == 2
        assert {place.device for place in session.describe(refs[0]).places} == {"host"}
        multiply(0)
        # The worker is lost, and with it all copies.
        made = copies(daemon, "made")
        [worker] = daemon.gpu_workers()
        os.kill(worker, signal.SIGKILL)

        def works_again():
            try:
                multiply(0)
                return True
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
                return False

        wait_until(works_again, DEADLINE_S, "there is a new worker")
        assert copies(daemon, "made") > made
        # A tensor that is larger than the room for all is read from the host.
        big = integers(rng, 1, 96, 512, dtype=np.float16)
        weights.append(big)
        refs.append(by_handle(put_array(session, big)))
        multiply(4, columns=512)
        # A result that overwrites a tensor leaves no stale copy of it.
        into = by_handle(put_array(session, weights[1], hashed=False))
        refs.append(into)
        weights.append(weights[1].copy())
        multiply(5)
        square = integers(rng, 1, 96, 96, dtype=np.float16) % 2
        left_square = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_F16, data=square.tobytes())
        asked = product(96, 128, 96, left_square, operand(refs[2]), device="cuda:0")
        asked.d.tensor.CopyFrom(part(into))
        session.multiply(asked)
        weights[5] = (square.astype(np.float32) @ weights[2]).astype(np.float16)
        multiply(5)


JOINING = ["--devices=cpu", "--metrics-listen=127.0.0.1:0", "--lame-duck=1ms"]
DUPLICATE = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_DUPLICATE)
WHOLE = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_SAMPLED, rate=1)


class SharedB:
    """Products of f32 rows with one resident B, in one message of a stream."""

    K, N = 97, 131

    def __init__(self, session, rng):
        numbers = np.random.default_rng(rng.getrandbits(32))
        self.session = session
        self.a = [numbers.standard_normal((1 + i % 3, self.K), np.float32) for i in range(24)]
        self.b = numbers.standard_normal((self.K, self.N), np.float32)
        self.kept = put_array(session, self.b[None], name="b")
        # Named, because the best kernel for one row is not that for three.
        self.kernel = self.multiply(self.a[0], require_deterministic=True).kernel

    def request(self, a, **fields):
        sent = tensors_pb2.Operand(type=F32, data=a.tobytes())
        b = operand(by_handle(self.kept))
        return product(len(a), self.N, self.K, sent, b, **fields)

    def multiply(self, a, **fields):
        return self.session.multiply(self.request(a, **fields))

    def may_vary(self, request):
        registry = registry_pb2_grpc.RegistryStub(self.session.channel)
        explained = registry.Explain(
            registry_pb2.ExplainRequest(request=request),
            metadata=self.session.metadata,
            timeout=DEADLINE_S,
        )
        assert explained.candidates
        return explained.bits_may_vary

    def together(self, **fields):
        requests = [
            self.request(a, request_id=str(i), kernel=self.kernel, **fields)
            for i, a in enumerate(self.a)
        ]
        messages = self.session.gemm.MultiplyStream(
            joint(requests, len(requests)), metadata=self.session.metadata, timeout=DEADLINE_S
        )
        answers = [answer.response for answer in answers_in(messages)]
        answers.sort(key=lambda answer: int(answer.request_id))
        assert len(answers) == len(requests)
        return answers

    def check(self, answers):
        """Each element is within the bound for a sum of K products in any order."""
        for a, answer in zip(self.a, answers):
            wide_a, wide_b = a.astype(np.float64), self.b.astype(np.float64)
            bound = (self.K + 1) * 2.0**-23 * (np.abs(wide_a) @ np.abs(wide_b))
            check_within(load(answer.d)[0].astype(np.float64), wide_a @ wide_b, bound)


@pytest.fixture
def shared_b(daemons, rng):
    with contextlib.ExitStack() as stack:

        def start(batch="256:300ms"):
            daemon = daemons.start(*JOINING, f"--batch={batch}")
            channel = stack.enter_context(grpc.insecure_channel(daemon.unix))
            return daemon, SharedB(stack.enter_context(Session(channel)), rng)

        yield start


def test_products_of_floats_that_share_b_run_as_one_on_cpu(shared_b):
    daemon, products = shared_b()
    counted = 0
    for verify in (None, WHOLE):
        answers = products.together(verify=verify)
        products.check(answers)
        joined = [answer.joined for answer in answers]
        assert max(joined) > 1
        assert sum(count == 1 for count in joined) < len(joined) / 2
        assert {answer.kernel for answer in answers} == {products.kernel}
        if verify:
            passed = gemm_pb2.VERIFY_OUTCOME_PASSED
            assert all(answer.verification.outcome == passed for answer in answers)
        before = counted
        counted = metrics_page.scrape(daemon).value(
            "gemmd_joined_products_total", device="cpu", how="stacked"
        )
        assert counted - before == sum(count > 1 for count in joined)


def test_products_that_want_the_same_bits_run_alone_on_cpu(shared_b):
    """Whatever other products come with them, they have the bits of a separate call."""
    _, products = shared_b()
    alone = [
        products.multiply(a, kernel=products.kernel, require_deterministic=True) for a in products.a
    ]
    for fields in ({"require_deterministic": True}, {"verify": DUPLICATE}):
        answers = products.together(**fields)
        products.check(answers)
        assert {answer.joined for answer in answers} == {1}
        assert [answer.d.data for answer in answers] == [answer.d.data for answer in alone]


def test_explain_tells_whether_bits_may_vary(shared_b):
    _, products = shared_b()
    a = products.a[0]
    assert products.may_vary(products.request(a))
    assert products.may_vary(products.request(a, verify=WHOLE))
    assert not products.may_vary(products.request(a, require_deterministic=True))
    assert not products.may_vary(products.request(a, verify=DUPLICATE))
    # No other product has a B that is sent with its request, and sums of integers are exact.
    inline = products.request(a)
    inline.b.CopyFrom(tensors_pb2.Operand(type=F32, data=products.b.tobytes()))
    assert not products.may_vary(inline)
    small = np.ones((1, 8, 8), np.int8)
    b = operand(by_handle(put_array(products.session, small, name="small")))
    sent = tensors_pb2.Operand(type=ELEMENTS["s8"].number, data=small.tobytes())
    assert not products.may_vary(product(8, 8, 8, sent, b))


def test_products_run_alone_where_the_server_joins_none(shared_b):
    _, products = shared_b(batch="1")
    assert {answer.joined for answer in products.together()} == {1}
    assert not products.may_vary(products.request(products.a[0]))
