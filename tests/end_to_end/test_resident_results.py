# SPDX-License-Identifier: Apache-2.0
"""Results that stay in a GPU's memory, whose worker simulates it: chains of products, copies to
other devices that read them, and what is lost with a worker."""

import os
import signal
import threading

import grpc
import metrics_page
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2
from tensors import Session, by_handle, by_name, bytes_spec

DEADLINE_S = 60
ABORTED = grpc.StatusCode.ABORTED
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SIZE = 16
F16 = tensors_pb2.ELEMENT_TYPE_F16  # Whole numbers up to 2048 are exact.
IDENTITY = np.eye(SIZE, dtype=np.float16)


@pytest.fixture
def gpus(daemons, fake_worker):
    def start(*flags, devices="cuda:0,cpu"):
        return daemons.start(
            "--lame-duck=1ms",
            f"--devices={devices}",
            f"--worker-binary={fake_worker}",
            "--metrics-listen=127.0.0.1:0",
            *flags,
        )

    return start


@pytest.fixture
def open_session():
    opened = []

    def start(daemon):
        channel = grpc.insecure_channel(daemon.unix)
        session = Session(channel)
        opened.append((session, channel))
        return session

    yield start
    for session, channel in opened:
        session.close()
        channel.close()


def put(session, array, name):
    spec = resident_pb2.TensorSpec(type=F16, rows=SIZE, columns=SIZE)
    return session.put(array.tobytes(), spec=spec, name=name, hashed=False)


def plus_identity(session, of, to, device, overwrite=False, **keep):
    """D = the tensor + the identity, which is sent as C; D becomes a new tensor, or overwrites
    one."""
    d = tensors_pb2.OutputSpec(type=F16)
    if overwrite:
        d.tensor.tensor.name = to
    else:
        d.new_tensor.CopyFrom(tensors_pb2.NewTensor(name=to, **keep))
    return session.multiply(
        gemm_pb2.MultiplyRequest(
            m=SIZE,
            n=SIZE,
            k=SIZE,
            a=tensors_pb2.Operand(type=F16, data=IDENTITY.tobytes()),
            b=tensors_pb2.Operand(tensor=tensors_pb2.TensorPart(tensor=by_name(of))),
            c=tensors_pb2.Operand(type=F16, data=IDENTITY.tobytes()),
            beta=1,
            d=d,
            device=device,
        )
    )


def places(session, name):
    return {place.device for place in session.describe(by_name(name)).places}


def download(session, name):
    _, data = session.get(by_name(name))
    return np.frombuffer(data, np.float16).reshape(SIZE, SIZE)


def kill_workers(daemon):
    for worker in daemon.gpu_workers():
        os.kill(worker, signal.SIGKILL)


def code_of(call, *arguments, **fields):
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **fields)
    return raised.value.code(), raised.value.details()


def wait_for_worker(session):
    def works():
        try:
            plus_identity(session, "x", "works", "cuda:0")
            return True
        except grpc.RpcError as error:
            assert error.code() in (UNAVAILABLE, ABORTED), error
            return False

    wait_until(works, DEADLINE_S, "there is a new worker")


def test_a_chain_stays_on_the_gpu(gpus, open_session):
    daemon = gpus()
    session = open_session(daemon)
    x = np.arange(SIZE * SIZE, dtype=np.float16).reshape(SIZE, SIZE)
    put(session, x, "x")
    for i in range(8):
        answer = plus_identity(session, "x" if i == 0 else f"y{i - 1}", f"y{i}", "cuda:0")
        assert {place.device for place in answer.tensor.places} == {"cuda:0"}
    for _ in range(3):
        plus_identity(session, "y0", "y7", "cuda:0", overwrite=True)
    assert places(session, "y7") == {"cuda:0"}
    assert (download(session, "y6") == x + 7 * IDENTITY).all()
    assert places(session, "y6") == {"host", "cuda:0"}
    # To another device and back.
    plus_identity(session, "y7", "z", "cpu")
    plus_identity(session, "z", "y5", "cpu", overwrite=True)
    assert places(session, "y5") == {"host"}
    plus_identity(session, "y5", "y5b", "cuda:0")
    assert (download(session, "y5b") == x + 5 * IDENTITY).all()


def test_results_that_find_no_room_are_written_back(gpus, open_session):
    daemon = gpus("--gpu-memory-bytes=40KiB")  # Tensors may take 32 KiB of it: 64 of them.
    session = open_session(daemon)
    x = np.ones((SIZE, SIZE), np.float16)
    put(session, x, "y0")
    for i in range(72):
        plus_identity(session, f"y{i}", f"y{i + 1}", "cuda:0")
    assert (
        metrics_page.scrape(daemon).value(
            "gemmd_tensor_copies_total", device="cuda:0", event="written_back"
        )
        >= 8
    )
    for i in range(73):
        assert (download(session, f"y{i}") == x + i * IDENTITY).all()


def test_a_lost_worker_takes_what_it_alone_had(gpus, open_session):
    daemon = gpus()
    session = open_session(daemon)
    x = np.ones((SIZE, SIZE), np.float16)
    put(session, x, "x")
    plus_identity(session, "x", "read", "cuda:0")
    assert (download(session, "read") == x + IDENTITY).all()
    plus_identity(session, "x", "pinned", "cuda:0", pinned=True)
    wait_until(lambda: "host" in places(session, "pinned"), DEADLINE_S, "it has a copy")
    plus_identity(session, "x", "only", "cuda:0")
    kill_workers(daemon)
    wait_for_worker(session)
    only = session.describe(by_name("only"))
    assert only.lost and not only.places
    assert [t.name for t in session.list().tensors if t.lost] == ["only"]
    lost = [
        code_of(session.get, by_name("only")),
        code_of(plus_identity, session, "only", "next", "cuda:0"),
        code_of(plus_identity, session, "only", "next", "cpu"),
        code_of(plus_identity, session, "x", "only", "cpu", overwrite=True),
    ]
    for code, details in lost:
        assert code == FAILED_PRECONDITION
        assert "tensor lost" in details and only.handle.hex() in details
    wait_until(
        lambda: metrics_page.scrape(daemon).value("gemmd_tensors_lost_total") == 1,
        DEADLINE_S,
        "the loss is counted",
    )
    for name in ("read", "pinned"):
        plus_identity(session, name, "next", "cuda:0")
        assert (download(session, "next") == x + 2 * IDENTITY).all()
    plus_identity(session, "x", "only", "cuda:0")
    assert (download(session, "only") == x + IDENTITY).all()
    session.delete(by_name("only"))


def test_all_results_get_a_copy_where_that_is_asked_for(gpus, open_session):
    daemon = gpus("--host-copies=all")
    session = open_session(daemon)
    x = np.ones((SIZE, SIZE), np.float16)
    put(session, x, "x")
    plus_identity(session, "x", "y", "cuda:0")
    wait_until(lambda: "host" in places(session, "y"), DEADLINE_S, "it has a copy")
    kill_workers(daemon)
    wait_for_worker(session)
    assert (download(session, "y") == x + IDENTITY).all()


def test_an_upload_goes_where_it_will_be_needed(gpus, open_session):
    daemon = gpus()
    session = open_session(daemon)

    def begin(device):
        stream = session.put_stream()
        spec = bytes_spec(4096)
        return stream.send(begin=resident_pb2.PutBegin(spec=spec, device=device))

    stream = begin("cuda:0")
    stream.state()
    handle = by_handle(stream.chunk(0, bytes(4096)).tensor())
    wait_until(
        lambda: "cuda:0" in {place.device for place in session.describe(handle).places},
        DEADLINE_S,
        "it is brought there",
    )
    assert begin("cuda:7").error()[0] == NOT_FOUND
    assert begin("x" * 129).error()[0] == INVALID_ARGUMENT


def test_a_result_on_the_gpu_is_compressed(gpus, open_session):
    daemon = gpus()
    session = open_session(daemon)
    x = np.arange(SIZE * SIZE, dtype=np.float16).reshape(SIZE, SIZE)
    put(session, x, "x")
    plus_identity(session, "x", "y", "cuda:0")
    put(session, x + IDENTITY, "uploaded")

    def compressed(name, device):
        request = resident_pb2.CompressRequest(tensor=by_name(name))
        info = session.stub.Compress(request, metadata=session.metadata, timeout=DEADLINE_S)
        assert {place.device for place in info.places} == {device}
        return session.get(by_handle(info))[1]

    assert compressed("y", "cuda:0") == compressed("uploaded", "host")


def put_matrix(session, array, name):
    rows, columns = array.shape
    spec = resident_pb2.TensorSpec(type=F16, rows=rows, columns=columns)
    return session.put(array.tobytes(), spec=spec, name=name, hashed=False)


def test_tensors_larger_than_the_gpu_are_multiplied_there(gpus, open_session):
    """The product is computed in panels, whose parts of the tensors come from host memory."""
    daemon = gpus("--gpu-memory-bytes=128KiB")
    session = open_session(daemon)
    x = (np.arange(150 * 256) % 7).reshape(150, 256).astype(np.float16)
    w = (np.arange(256 * 256) % 5 - 2).reshape(256, 256).astype(np.float16)
    put_matrix(session, x, "x")  # 75 KiB, which fits into the part for tensors.
    put_matrix(session, w, "w")  # 128 KiB.
    want = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float16)
    part = tensors_pb2.Operand(tensor=tensors_pb2.TensorPart(tensor=by_name("w")))
    for a in (
        tensors_pb2.Operand(type=F16, data=x.tobytes()),
        tensors_pb2.Operand(tensor=tensors_pb2.TensorPart(tensor=by_name("x"))),
    ):
        request = gemm_pb2.MultiplyRequest(m=150, n=256, k=256, a=a, b=part, device="cuda:0")
        request.d.type = F16
        answer = session.multiply(request)
        assert answer.device == "cuda:0"
        assert (np.frombuffer(answer.d.data, np.float16).reshape(150, 256) == want).all()
        request.d.new_tensor.name = "d"
        session.multiply(request)
        _, data = session.get(by_name("d"))
        assert (np.frombuffer(data, np.float16).reshape(150, 256) == want).all()


def test_the_deadline_holds_between_panels(gpus, open_session):
    daemon = gpus("--gpu-memory-bytes=128KiB")
    session = open_session(daemon)
    put_matrix(session, np.ones((2000, 256), np.float16), "x")
    put_matrix(session, np.ones((256, 2000), np.float16), "w")
    request = gemm_pb2.MultiplyRequest(m=2000, n=2000, k=256, device="cuda:0")
    request.a.tensor.tensor.name = "x"
    request.b.tensor.tensor.name = "w"
    request.d.type = F16
    with pytest.raises(grpc.RpcError) as error:
        session.gemm.Multiply(request, metadata=session.metadata, timeout=0.1)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    def all_given_back():
        return metrics_page.scrape(daemon).value("gemmd_admitted_bytes") == 0

    wait_until(all_given_back, DEADLINE_S, "the product's bytes are given back")
    page = metrics_page.scrape(daemon)
    assert page.value("gemmd_device_staging_used_bytes", device="cuda:0") == 0
    assert page.value("gemmd_worker_restarts_total", device="cuda:0") == 0
    put(session, IDENTITY, "y")
    plus_identity(session, "y", "z", "cuda:0")


def test_products_go_where_their_tensors_are(gpus, open_session):
    daemon = gpus(devices="cuda:0,cuda:1,cpu")
    session = open_session(daemon)
    x = np.ones((SIZE, SIZE), np.float16)
    put(session, x, "x")
    assert plus_identity(session, "x", "first", "").device == "cuda:0"
    assert plus_identity(session, "x", "other", "cuda:1").device == "cuda:1"
    for _ in range(3):
        assert plus_identity(session, "other", "other", "").device == "cuda:1"
        assert plus_identity(session, "first", "first", "").device == "cuda:0"
    assert (download(session, "other") == x + 4 * IDENTITY).all()


def test_workers_die_under_chains_of_products(gpus, open_session):
    """Each product is answered once: with D, with an error that allows a retry, or with the name of
    what is lost; and every tensor that can be read was written by some product."""
    daemon = gpus("--gpu-memory-bytes=80KiB", devices="cuda:0,cuda:1,cpu")
    x = np.ones((SIZE, SIZE), np.float16)
    is_over = threading.Event()
    ended = {"ok": 0, "lost": 0, "again": 0}
    wrong = []

    def chain(number):
        session = open_session(daemon)
        devices = ["cuda:0", "cuda:0", "cuda:1", "cpu"]
        put(session, x, "y")
        depth = 0
        step = number
        while not is_over.is_set():
            step += 1
            try:
                plus_identity(session, "y", "y", devices[step % len(devices)])
                depth += 1
                ended["ok"] += 1
                if step % 8 == 0 and not (download(session, "y") == x + depth * IDENTITY).all():
                    wrong.append((number, step))
            except grpc.RpcError as error:
                if error.code() == FAILED_PRECONDITION and "tensor lost" in error.details():
                    ended["lost"] += 1
                    put(session, x, "y")
                    depth = 0
                elif error.code() in (UNAVAILABLE, ABORTED):
                    ended["again"] += 1
                else:
                    wrong.append((number, step, error.code(), error.details()))

    threads = [threading.Thread(target=chain, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        done = ended["ok"]
        wait_until(lambda done=done: ended["ok"] > done + 100, DEADLINE_S, "products go on")
        kill_workers(daemon)
    done = ended["ok"]
    wait_until(lambda: ended["ok"] > done + 100, DEADLINE_S, "products go on")
    is_over.set()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert not wrong
    assert ended["lost"] > 0
