# SPDX-License-Identifier: Apache-2.0
"""Tensors that only a GPU has, whose worker simulates it: parts that are read from there, and
uploads that leave the host."""

import concurrent.futures
import hashlib
import os
import signal

import grpc
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2
from metrics_page import scrape
from tensors import Session, by_name, bytes_spec, refusal

DEADLINE_S = 60
F16 = tensors_pb2.ELEMENT_TYPE_F16  # Whole numbers up to 2048 are exact.


@pytest.fixture
def gpu(daemons, fake_worker):
    def start(*flags):
        worker = f"--worker-binary={fake_worker}"
        return daemons.start("--lame-duck=1ms", "--devices=cuda:0,cpu", worker, *flags)

    return start


@pytest.fixture
def session_of():
    opened = []

    def start(daemon):
        channel = grpc.insecure_channel(daemon.unix)
        opened.append((Session(channel), channel))
        return opened[-1][0]

    yield start
    for session, channel in opened:
        session.close()
        channel.close()


def multiply(session, a, b, name, into=None):
    """D = A B, which becomes a tensor on the GPU, or a part of one."""

    def operand(matrix):
        return tensors_pb2.Operand(type=F16, data=matrix.astype(np.float16).tobytes())

    d = tensors_pb2.OutputSpec(type=F16)
    if into is None:
        d.new_tensor.name = name
    else:
        d.tensor.CopyFrom(tensors_pb2.TensorPart(tensor=by_name(name), **into))
    request = gemm_pb2.MultiplyRequest(
        m=a.shape[0],
        n=b.shape[1],
        k=a.shape[1],
        a=operand(a),
        b=operand(b),
        d=d,
        device="cuda:0",
    )
    session.multiply(request)


def sum_of(name, rows=1, columns=1024, device="cpu"):
    """A request for the sums of the first columns of a tensor of u8."""
    u8 = tensors_pb2.ELEMENT_TYPE_U8
    part = tensors_pb2.TensorPart(tensor=by_name(name), columns=columns)
    return gemm_pb2.MultiplyRequest(
        m=rows,
        n=1,
        k=columns,
        a=tensors_pb2.Operand(type=u8, tensor=part),
        b=tensors_pb2.Operand(type=u8, data=bytes([1]) * columns),
        d=tensors_pb2.OutputSpec(type=tensors_pb2.ELEMENT_TYPE_S32),
        device=device,
    )


def places(session, name):
    return {place.device for place in session.describe(by_name(name)).places}


def kill_workers(daemon):
    for worker in daemon.gpu_workers():
        os.kill(worker, signal.SIGKILL)


def test_a_range_is_read_where_it_lies(gpu, session_of):
    """Rows of a result are copied from the GPU in more than one window; the rest stays there, and
    the account is as before."""
    rows, columns = 6, 1 << 19
    session = session_of(gpu())
    a = np.arange(1, rows + 1).reshape(rows, 1)
    b = (np.arange(columns) % 64).reshape(1, columns)
    want = (a * b).astype(np.float16).tobytes()
    spec = resident_pb2.TensorSpec(type=F16, rows=rows, columns=columns)
    session.put(bytes(len(want)), spec=spec, name="d", hashed=False)
    # In parts, none of which takes nearly the two seconds after which the watchdog would end it.
    part = columns // 16
    for first in range(0, columns, part):
        into = {"first_column": first, "columns": part}
        multiply(session, a, b[:, first : first + part], "d", into)
    held = session.settled().session_bytes
    line = 2 * columns
    for offset, count in ((0, 1), (line // 2, 5 * line), (len(want) - 7, 7), (line, 0)):
        _, data = session.get(by_name("d"), offset=offset, bytes=count)
        assert data == want[offset : offset + count], (offset, count)
        assert places(session, "d") == {"cuda:0"}
    wait_until(lambda: session.list().session_bytes == held, DEADLINE_S, "windows are given back")
    _, data = session.get(by_name("d"))
    assert data == want
    assert places(session, "d") == {"cuda:0", "host"}, "all of it stays here, too"


def test_uploads_leave_the_host(gpu, session_of, is_timed, timed):
    """With --host-copies=none: their host memory is free once they are on a GPU. They return to the
    host when they are read as a whole, if there is room, and are lost with the worker."""
    size = 20 << 20  # The GPU has room for two of them, the host for one.
    daemon = gpu("--host-copies=none", "--tensor-bytes=30MiB:30MiB")
    session = session_of(daemon)
    data = os.urandom(size)
    before = daemon.anonymous_bytes()

    def upload(name):
        session.put(data, name=name, device="cuda:0", hashed=False)
        wait_until(lambda: places(session, name) == {"cuda:0"}, DEADLINE_S, "it has left the host")
        wait_until(lambda: session.list().session_bytes < 1 << 20, DEADLINE_S, "its room is free")

    upload("one")
    upload("two")
    told = session.describe(by_name("two"))
    assert told.kept_bytes < 1 << 20 and not told.lost
    if is_timed:
        most = 1.5 * size
        wait_until(lambda: daemon.anonymous_bytes() - before <= most, DEADLINE_S, "the pages of both are free")
        grown = daemon.anonymous_bytes() - before
        timed("grown by two uploads that left the host", most=most / 2**20, seen=grown / 2**20, unit="MiB")
    for name in ("one", "two"):
        _, part = session.get(by_name(name), offset=5 << 20, bytes=6 << 20)
        assert part == data[5 << 20 : 11 << 20]
    assert session.get(by_name("one"))[1] == data
    assert places(session, "one") == {"cuda:0", "host"}
    assert session.list().session_bytes >= size
    with pytest.raises(grpc.RpcError) as raised:
        session.multiply(sum_of("two"))
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "quota" in raised.value.details()
    assert session.get(by_name("two"))[1] == data, "a window at a time"
    assert places(session, "two") == {"cuda:0"}, "the host has no room for all of it"
    kill_workers(daemon)
    wait_until(lambda: session.describe(by_name("two")).lost, DEADLINE_S, "it is lost")
    assert session.get(by_name("one"))[1] == data


def test_a_tensor_larger_than_the_room_of_the_host(gpu, session_of):
    """With --host-copies=none an upload to a GPU passes through a window: from two streams, of which one breaks, in any
    order, with its hash. Products and downloads find it there; it is lost with the worker, and so is half an upload."""
    size = 24 << 20
    chunk = 1 << 20
    daemon = gpu("--host-copies=none", "--tensor-bytes=9MiB:9MiB", "--gpu-memory-bytes=64MiB")
    session = session_of(daemon)
    data = os.urandom(size)
    sha256 = hashlib.sha256(data).digest()

    def send(stream, begin, end):
        for offset in range(begin, end, chunk):
            stream.chunk(offset, data[offset : min(end, offset + chunk)])

    first = session.put_stream()
    rows = 4
    spec = resident_pb2.TensorSpec(
        type=tensors_pb2.ELEMENT_TYPE_U8, rows=rows, columns=size // rows
    )
    upload = first.begin(spec, name="w", sha256=sha256, device="cuda:0").upload
    send(first, size // 2, size)

    def missing():
        stream = session.put_stream()
        state = stream.join(upload)
        stream.break_off()
        return sum(one.bytes for one in state.missing)

    wait_until(lambda: missing() == size // 2, DEADLINE_S, "half of it is on the GPU")
    first.break_off()
    assert session.list().session_bytes < (8 << 20) + (256 << 10), "a window, and some overhead"
    second = session.put_stream()
    state = second.join(upload)
    assert [(one.offset, one.bytes) for one in state.missing] == [(0, size // 2)]
    send(second, 0, size // 2)
    second.close()
    told = second.tensor()
    assert [place.device for place in told.places] == ["cuda:0"]
    assert session.settled().session_bytes < 1 << 20
    assert session.get(by_name("w"))[1] == data
    assert session.get(by_name("w"), offset=chunk - 3, bytes=7)[1] == data[chunk - 3 : chunk + 4]

    def part(number):
        return session.get(by_name("w"), offset=number * size // 8, bytes=size // 8)[1]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert b"".join(pool.map(part, range(8))) == data, "each has windows"
    session.put(bytes(8 << 20), name="filler", hashed=False)
    assert session.get(by_name("w"))[1] == data, "in windows as small as what is left of the room"
    session.delete(by_name("filler"))
    assert places(session, "w") == {"cuda:0"}
    product = sum_of("w", rows=rows, device="cuda:0")
    want = np.frombuffer(data, np.uint8).reshape(rows, -1)[:, :1024].sum(axis=1, dtype=np.int32)
    assert session.multiply(product).d.data == want.tobytes()

    third = session.put_stream()
    upload = third.begin(bytes_spec(size), name="half", device="cuda:0").upload
    send(third, 0, size // 2)
    wait_until(lambda: missing() == size // 2, DEADLINE_S, "half of it is on the GPU")
    kill_workers(daemon)
    wait_until(lambda: session.describe(by_name("w")).lost, DEADLINE_S, "it is lost")
    send(third, size // 2, size)
    code, details = third.error()
    assert code == grpc.StatusCode.ABORTED and "begin a new one" in details
    with pytest.raises(grpc.RpcError) as raised:
        session.get(by_name("w"))
    assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION

    def answer():
        """That of a product, once the worker is back."""
        code, details = refusal(session.multiply, product)
        return None if code == grpc.StatusCode.UNAVAILABLE else (code, details)

    code, details = wait_until(answer, DEADLINE_S, "the worker is back")
    assert code == grpc.StatusCode.FAILED_PRECONDITION and "tensor lost" in details
    session.delete(by_name("w"))
    assert session.settled().session_bytes == 0


def test_results_take_no_room_of_the_host(gpu, session_of):
    """With --host-copies=none: the tensors of a chain count only against the GPU, so all of them
    together can exceed the host's quota; they are lost with the worker."""
    rows, columns = 6, 1 << 19  # 6 MiB; the host has room for one.
    daemon = gpu("--host-copies=none", "--tensor-bytes=10MiB:10MiB")
    session = session_of(daemon)
    a = np.arange(1, rows + 1).reshape(rows, 1)
    ones = np.ones((1, columns))
    for name in ("one", "two", "three"):
        multiply(session, a, ones, name)
        wait_until(lambda: session.list().session_bytes < 1 << 20, DEADLINE_S, "its room is free")
        assert places(session, name) == {"cuda:0"}
    large = np.arange(1, 2 * rows + 1).reshape(2 * rows, 1)  # Its D is larger than all of it.
    multiply(session, large, ones, "large")
    assert places(session, "large") == {"cuda:0"}
    assert session.get(by_name("large"))[1] == np.repeat(large, columns, axis=1).astype(np.float16).tobytes()
    session.delete(by_name("large"))
    want = np.repeat(a.astype(np.float16), columns, axis=1)
    for name in ("one", "three"):
        _, row = session.get(by_name(name), offset=2 * columns, bytes=2 * columns)
        assert row == want[1].tobytes()
    assert session.get(by_name("two"))[1] == want.tobytes()
    assert places(session, "two") == {"cuda:0", "host"}
    kill_workers(daemon)
    wait_until(lambda: session.describe(by_name("three")).lost, DEADLINE_S, "it is lost")
    assert session.describe(by_name("one")).lost
    assert session.get(by_name("two"))[1] == want.tobytes()


def test_a_range_of_a_lost_tensor(gpu, session_of):
    daemon = gpu()
    session = session_of(daemon)
    multiply(session, np.ones((2, 1)), np.ones((1, 8)), "d")
    kill_workers(daemon)
    wait_until(lambda: session.describe(by_name("d")).lost, DEADLINE_S, "it is lost")
    for count in (0, 8):
        with pytest.raises(grpc.RpcError) as raised:
            session.get(by_name("d"), offset=2, bytes=count)
        assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "tensor lost" in raised.value.details()


def test_what_a_kernel_packs_is_kept_with_its_tensor(gpu, session_of):
    """A row-major B whose lines are no whole chunks, which kernels of GPUs pack, has a form on the
    GPU from the third product on. It is made again when the tensor changes, and evicted for other
    tensors."""
    daemon = gpu("--gpu-memory-bytes=10MiB", "--metrics-listen=127.0.0.1:0")
    session = session_of(daemon)
    rows, depth, columns = 4, 64, 1028
    random = np.random.default_rng()
    spec = resident_pb2.TensorSpec(type=F16, rows=depth, columns=columns)

    def put(name):
        values = random.integers(-8, 8, (depth, columns)).astype(np.float16)
        session.put(values.tobytes(), spec=spec, name=name, hashed=False)
        return values

    def product(name, values):
        a = random.integers(-8, 8, (rows, depth)).astype(np.float16)
        request = gemm_pb2.MultiplyRequest(
            m=rows,
            n=columns,
            k=depth,
            a=tensors_pb2.Operand(type=F16, data=a.tobytes()),
            b=tensors_pb2.Operand(type=F16, tensor=tensors_pb2.TensorPart(tensor=by_name(name))),
            d=tensors_pb2.OutputSpec(type=tensors_pb2.ELEMENT_TYPE_F32),
            device="cuda:0",
        )
        d = np.frombuffer(session.multiply(request).d.data, np.float32).reshape(rows, columns)
        np.testing.assert_array_equal(d, a.astype(np.float32) @ values.astype(np.float32))

    def on_gpu():
        return scrape(daemon).value("gemmd_tensor_bytes", place="cuda:0")

    b = put("b")
    product("b", b)
    alone = on_gpu()
    assert alone == b.nbytes
    for _ in range(4):
        product("b", b)
    assert on_gpu() == 2 * alone, "as many bytes again, with lines of whole chunks"

    # A product doubles B in place, on the GPU, where its form is.
    double = gemm_pb2.MultiplyRequest(
        m=depth,
        n=columns,
        k=depth,
        a=tensors_pb2.Operand(type=F16, data=np.eye(depth, dtype=np.float16).tobytes()),
        b=tensors_pb2.Operand(type=F16, data=(2 * b).tobytes()),
        d=tensors_pb2.OutputSpec(type=F16, tensor=tensors_pb2.TensorPart(tensor=by_name("b"))),
        device="cuda:0",
    )
    session.multiply(double)
    for _ in range(3):
        product("b", 2 * b)
    assert on_gpu() == 2 * alone

    # Another tensor gets the room when it needs it. In column-major order, a kernel reads it in
    # place; packed, it would need as much of the fifth of the memory that is for products.
    other_columns = 32
    other_rows = ((8 << 20) - int(alone)) // (2 * other_columns)
    other = resident_pb2.TensorSpec(
        type=F16, order=tensors_pb2.ORDER_COLUMN_MAJOR, rows=other_rows, columns=other_columns
    )
    session.put(bytes(2 * other_rows * other_columns), spec=other, name="other", hashed=False)
    request = gemm_pb2.MultiplyRequest(
        m=1,
        n=other_columns,
        k=other_rows,
        a=tensors_pb2.Operand(type=F16, data=bytes(2 * other_rows)),
        b=tensors_pb2.Operand(type=F16, tensor=tensors_pb2.TensorPart(tensor=by_name("other"))),
        d=tensors_pb2.OutputSpec(type=tensors_pb2.ELEMENT_TYPE_F32),
        device="cuda:0",
    )
    session.multiply(request)
    assert on_gpu() == 8 << 20
    product("b", 2 * b)
