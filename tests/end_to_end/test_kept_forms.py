# SPDX-License-Identifier: Apache-2.0
"""What kernels derive from resident tensors is kept for later products, without changing a bit, and
is dropped when its room is needed or the tensor is overwritten."""

import grpc
import numpy as np
import pytest
from elements import ELEMENTS, convert, store
from gemmd.v1 import gemm_pb2, resident_pb2
from tensors import MIB, Session, by_handle, by_name

GEMMD_FLAGS = ["--devices=cpu", "--tensor-bytes=64MiB:32MiB"]
M, N, K = 5, 300, 130


def put(session, values, element, **keep):
    data, _, _ = store(convert(values[None], element), element)
    rows, columns = values.shape
    spec = resident_pb2.TensorSpec(type=element.number, rows=rows, columns=columns)
    return session.put(data, spec=spec, **keep)


def integers(rng, element, rows, columns):
    low, high = max(element.low, -8), min(element.high, 8)
    values = [rng.randint(low, high) for _ in range(rows * columns)]
    return np.array(values).reshape(rows, columns)


def request_of(a, b, element):
    """A product of an A that is sent and a B that is resident and transposed."""
    request = gemm_pb2.MultiplyRequest(m=M, n=N, k=K)
    request.a.type = element.number
    request.a.data, _, _ = store(convert(a[None], element), element)
    request.b.tensor.tensor.handle = b.handle
    request.b.transpose = True
    return request


@pytest.mark.parametrize("kind", ["f32", "tf32", "f16", "e4m3", "e3m2", "e2m1", "s4", "u4", "b1"])
def test_products_have_the_same_bits(session, rng, kind):
    element = ELEMENTS[kind]
    a, b = integers(rng, element, M, K), integers(rng, element, N, K)
    tensor = put(session, b, element)
    request = request_of(a, tensor, element)
    answers = [session.multiply(request) for _ in range(4)]
    inline = request_of(a, tensor, element)
    inline.b.Clear()
    inline.b.type = element.number
    inline.b.data, _, _ = store(convert(b[None], element), element)
    inline.b.transpose = True
    want = session.multiply(inline)
    for answer in answers:
        assert (answer.d, answer.kernel) == (want.d, want.kernel)
    kept = session.describe(by_handle(tensor)).kept_bytes
    # f32 is read as it is; all other types are widened, to at least a byte per element.
    least = 0 if kind == "f32" else N * K
    assert kept - tensor.kept_bytes >= least
    assert kind != "f32" or kept == tensor.kept_bytes


def test_beside_a_gpu_the_bytes_are_copied_for_the_cpu_s_worker(daemons, fake_worker, rng):
    """Tensors are then in memory that the worker cannot see; a copy for it is dropped when they are
    overwritten."""
    element = ELEMENTS["f32"]
    daemon = daemons.start(
        "--devices=cuda:0,cpu", f"--worker-binary={fake_worker}", "--lame-duck=1ms"
    )
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        a = integers(rng, element, M, K)
        ones = put(session, np.eye(K), element)
        target = put(session, np.zeros((N, K)), element, hashed=False)
        for values in (integers(rng, element, N, K) for _ in range(2)):
            write = gemm_pb2.MultiplyRequest(m=N, n=K, k=K, device="cpu")
            write.a.type = element.number
            write.a.data, _, _ = store(convert(values[None], element), element)
            write.b.tensor.tensor.handle = ones.handle
            write.d.tensor.tensor.handle = target.handle
            session.multiply(write)
            request = request_of(a, target, element)
            request.device = "cpu"
            for _ in range(4):
                answer = session.multiply(request)
                assert answer.device == "cpu"
                assert answer.d.data == (a @ values.T).astype(np.float32).tobytes()
            kept = session.describe(by_handle(target)).kept_bytes
            assert kept - target.kept_bytes == 4 * N * K


def test_a_part_has_a_form_of_its_own(session, rng):
    element = ELEMENTS["s4"]
    whole = integers(rng, element, 2 * N, K)
    tensor = put(session, whole, element)
    a = integers(rng, element, M, K)
    answers = []
    for _ in range(3):
        for first in (0, N):
            request = request_of(a, tensor, element)
            request.b.tensor.first_row = first
            request.b.tensor.rows = N
            answers.append(session.multiply(request).d.data)
    assert answers[:2] * 2 == answers[2:]
    for part, first in zip(answers, (0, N)):
        want = (a @ whole[first : first + N].T).astype(np.int32)
        assert part == want.tobytes()


def test_what_is_overwritten_is_derived_anew(session, rng):
    """B is f16, made by a product."""
    element = ELEMENTS["f16"]
    a = integers(rng, element, M, K)
    ones = put(session, np.eye(K), element)
    first, second = (integers(rng, element, N, K) for _ in range(2))
    target = put(session, np.zeros((N, K)), element, hashed=False)
    for values in (first, second, first):
        write = gemm_pb2.MultiplyRequest(m=N, n=K, k=K)
        write.a.type = element.number
        write.a.data, _, _ = store(convert(values[None], element), element)
        write.b.tensor.tensor.handle = ones.handle
        write.d.tensor.tensor.handle = target.handle
        session.multiply(write)
        request = request_of(a, target, element)
        for _ in range(3):
            answer = session.multiply(request)
            assert answer.d.data == (a @ values.T).astype(np.float32).tobytes()


def test_forms_make_room_for_tensors(session, rng):
    element = ELEMENTS["e2m1"]
    rows = 16 * MIB // K
    values = np.zeros((rows, K))
    tensor = put(session, values, element)
    request = gemm_pb2.MultiplyRequest(m=1, n=rows, k=K)
    request.a.type = element.number
    request.a.data = bytes(K // 2)
    request.b.tensor.tensor.handle = tensor.handle
    request.b.transpose = True
    free = session.settled().free_bytes
    # Twice or four times the elements' bytes: a form without room is not kept, and the product
    # runs.
    for _ in range(3):
        session.multiply(request)
    assert session.list().free_bytes == free
    small = put(session, np.zeros((N, K)), element, name="small")
    request = request_of(np.zeros((M, K)), small, element)
    for _ in range(3):
        session.multiply(request)
    assert session.describe(by_name("small")).kept_bytes > small.kept_bytes
    free = session.settled().free_bytes
    # An upload takes 65 KiB in addition to its bytes.
    session.put(bytes(free - 66 * 1024), hashed=False)
    assert session.describe(by_name("small")).kept_bytes == small.kept_bytes
    assert session.multiply(request).d.rows == M
