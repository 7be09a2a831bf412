# SPDX-License-Identifier: Apache-2.0
"""Two owners at work at once, each with its own bytes, in a daemon that fills all memory with a
known byte as soon as it is free (--poison-freed-memory, and glibc for the heap). No answer contains
that byte in place of a result, or the other owner's bytes, whatever path it took, even when
products fail, are cancelled or lose their worker."""

import contextlib
import os
import re
import signal
import threading

import grpc
import numpy as np
import pytest
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, tensors_pb2
from kserve.v2 import inference_pb2, inference_pb2_grpc
from product import Layout, Product
from streams import answers_in
from tensors import Session, by_name

DEADLINE_S = 300
ROUNDS = 2
LONG_ROUNDS = 100

# Memory that is freed and reused: by server/device/held_bytes.h; by glibc, which fills allocated
# memory with the complement; and the GPU's memory, by the tests' runtime.
POISON = [0xA5, 0x5A, 0xAB]
HEAP = {"GLIBC_TUNABLES": f"glibc.malloc.perturb={POISON[0]}"}
KILL_AFTER = 50  # This many answers.
RUN = 4  # A run of this many equal bytes can only come from a matrix.
# Two bytes of each are an f16 and four of them an f32; both are unchanged by a product with the
# identity.
MARKS = [0x3C, 0x40]

# The path of a large product: through the staging area at once; the same, but without room for its
# result there; through it in parts; in panels.
DAEMONS = {
    "at once": ["--gpu-staging-bytes=64MiB"],
    "without room": ["--gpu-staging-bytes=3MiB"],
    "in parts": ["--gpu-staging-bytes=1536KiB"],
    "in panels": ["--gpu-memory-bytes=768KiB"],
}
DEVICES = ["cuda:0", "cpu", "sim:sm_90"]
# m, n, k. From 1 MiB on, memory has another source; D of the third is larger than its operands.
SIZES = [(16, 16, 16), (64, 32, 32), (600, 1024, 64), (9216, 64, 64)]
LOST = {
    grpc.StatusCode.UNAVAILABLE,  # With its worker.
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.NOT_FOUND,
}


class Owner:
    """An owner with one mark, which looks for all others in each answer."""

    def __init__(self, daemon, mark):
        self.mark = mark
        self.value = float(np.frombuffer(bytes([mark] * 2), np.float16)[0])
        foreign = bytes(byte for byte in (*POISON, *MARKS) if byte != mark)
        self.foreign = re.compile(b"|".join(re.escape(bytes([byte] * RUN)) for byte in foreign), re.DOTALL)
        self.channel = grpc.insecure_channel(daemon.unix, [("grpc.use_local_subchannel_pool", 1)])
        self.session = Session(self.channel)
        self.gemm = gemm_pb2_grpc.GemmStub(self.channel)
        self.expected = {}
        self.looked_at = 0
        self.refused = 0

    def close(self):
        self.session.close()
        self.channel.close()

    def look_at(self, data, want=None):
        """Fails if the bytes are another owner's, or not the expected ones."""
        found = self.foreign.search(data)
        assert not found, f"{self.mark:#x}: got {data[found.start() - 8 : found.end() + 8].hex(' ')} at {found.start()}"
        if want is not None:
            assert data == want, f"{self.mark:#x}: not the product"
        self.looked_at += 1

    @contextlib.contextmanager
    def may_fail(self):
        try:
            yield
        except grpc.RpcError as error:
            assert error.code() in LOST, error
            self.look_at((error.details() or "").encode(errors="surrogateescape"))
            self.refused += 1

    def product(self, m, n, k, **layouts):
        a, b = np.full((1, m, k), self.value), np.tile(np.eye(k), n // k)[None]
        return Product(a=a, b=b, a_type="f16", b_type="f16", d_type="f16", layouts=layouts)

    def expected_bytes(self, product):
        """The same for each device."""
        key = (product.a.shape, product.b.shape, tuple(product.layouts))
        if key not in self.expected:
            self.expected[key] = product.expected_bytes()
        return self.expected[key]

    def request(self, product, device):
        request = product.request()
        request.device = device
        return request

    def inline(self, device):
        """Also with gaps after each line of D and between matrices."""
        gaps = Layout(padding=24, gap=64)
        for size in SIZES:
            for layouts in ({}, {"d": gaps}):
                product = self.product(*size, **layouts)
                with self.may_fail():
                    answer = self.session.multiply(self.request(product, device))
                    self.look_at(answer.SerializeToString())
                    self.look_at(answer.d.data, self.expected_bytes(product))

    def resident(self, device):
        """Resident weights and results, whole and in parts."""
        m, n, k = SIZES[-1]
        product = self.product(m, n, k)
        want = bytes([self.mark]) * (m * n * 2)
        request = self.request(product, device)
        request.d.new_tensor.name = "d"
        with self.may_fail():
            self.look_at(self.session.multiply(request).SerializeToString())
            self.look_at(self.session.get(by_name("d"))[1], want)
            self.look_at(self.session.get(by_name("d"), offset=1000, bytes=70000)[1], want[:70000])
            # Writes its own lines into the middle of existing ones, which are also an operand.
            few = self.request(self.product(16, n, k), device)
            few.d.tensor.tensor.name = "d"
            few.d.tensor.first_row, few.d.tensor.rows = 100, 16
            self.session.multiply(few)
            self.look_at(self.session.get(by_name("d"))[1], want)
            again = self.request(product, device)
            again.a.ClearField("data")
            again.a.tensor.tensor.name = "d"
            self.look_at(self.session.multiply(again).d.data, want)
        with self.may_fail():
            self.session.delete(by_name("d"))

    def joined(self, device):
        """Small ones that run as one."""
        product = self.product(*SIZES[0])
        requests = []
        for i in range(24):
            requests.append(self.request(product, device))
            requests[-1].request_id = str(i)
        with self.may_fail():
            stream = self.gemm.MultiplyStream(
                iter([gemm_pb2.MultiplyStreamRequest(requests=requests)]),
                metadata=self.session.metadata,
                timeout=DEADLINE_S,
            )
            for answer in answers_in(stream):
                self.look_at(answer.SerializeToString())
                if answer.HasField("response"):
                    self.look_at(answer.response.d.data, self.expected_bytes(product))

    def failed(self, device):
        """Refused products, and products cancelled while they run, also when they would overwrite a
        tensor."""
        m, n, k = SIZES[-1]
        want = bytes([self.mark]) * (m * n * 2)
        wrong = self.request(self.product(*SIZES[0]), device)
        wrong.a.data = wrong.a.data[:-1]
        with pytest.raises(grpc.RpcError) as refused:
            self.session.multiply(wrong)
        self.look_at(refused.value.details().encode())
        with self.may_fail():
            spec = tensors_pb2.NewTensor(name="c")
            request = self.request(self.product(m, n, k), device)
            request.d.new_tensor.CopyFrom(spec)
            self.session.multiply(request)
            over = self.request(self.product(m, n, k), device)
            over.d.tensor.tensor.name = "c"
            for timeout_s in (0.001, 0.01, 0.03):
                with contextlib.suppress(grpc.RpcError):
                    self.gemm.Multiply(over, metadata=self.session.metadata, timeout=timeout_s)
            call = self.gemm.Multiply.future(over, metadata=self.session.metadata, timeout=DEADLINE_S)
            call.cancel()
            self.look_at(self.session.get(by_name("c"))[1])
            self.session.multiply(over)
            self.look_at(self.session.get(by_name("c"))[1], want)
        with self.may_fail():
            self.session.delete(by_name("c"))

    def inferred(self, _device):
        """Over KServe's protocol, in f32."""
        rows, size = SIZES[-1][0] // 2, SIZES[-1][1]
        a = np.frombuffer(bytes([self.mark]) * (rows * size * 4), np.float32).reshape(rows, size)
        request = inference_pb2.ModelInferRequest(model_name="gemm")
        for name, matrix in (("A", a), ("B", np.eye(size, dtype=np.float32))):
            request.inputs.add(name=name, datatype="FP32", shape=matrix.shape)
            request.raw_input_contents.append(matrix.tobytes())
        with self.may_fail():
            models = inference_pb2_grpc.GRPCInferenceServiceStub(self.channel)
            answer = models.ModelInfer(request, timeout=DEADLINE_S)
            self.look_at(answer.SerializeToString())
            self.look_at(answer.raw_output_contents[0], a.tobytes())

    def work(self, rounds):
        ways = [self.inline, self.resident, self.joined, self.failed, self.inferred]
        for i in range(rounds):
            for device in DEVICES:
                for way in ways[i % 2 :] + ways[: i % 2]:
                    way(device)

    def work_a_little(self):
        """Each path once, unless it takes a simulator seconds."""
        for device in DEVICES[:2]:
            for way in (self.inline, self.resident, self.joined, self.failed):
                way(device)
        self.joined(DEVICES[2])
        self.inferred(DEVICES[0])


EACH_DAEMON = pytest.mark.parametrize("flags", DAEMONS.values(), ids=DAEMONS.keys())


@pytest.mark.own_device
@EACH_DAEMON
def test_nobody_reads_what_was_freed(daemons, battery, flags):
    hold_no_foreign_bytes(daemons, battery, flags, Owner.work_a_little)


@pytest.mark.exhaustive
@pytest.mark.own_device
@EACH_DAEMON
def test_nobody_reads_what_was_freed_anywhere(daemons, battery, flags):
    rounds = LONG_ROUNDS if battery.is_long else ROUNDS
    hold_no_foreign_bytes(daemons, battery, flags, lambda owner: owner.work(rounds))


def hold_no_foreign_bytes(daemons, battery, flags, deeds):
    """Looks for foreign bytes in all answers to two owners who work at once, while workers are
    lost."""
    daemon = daemons.start(
        "--lame-duck=1ms",
        f"--devices={','.join(DEVICES)}",
        "--poison-freed-memory=on",
        *flags,
        environment=HEAP,
    )
    owners = [Owner(daemon, mark) for mark in MARKS]
    failures = []

    def work(owner):
        try:
            deeds(owner)
        except Exception as error:  # noqa: BLE001: any error fails the test.
            failures.append(error)

    threads = [threading.Thread(target=work, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    killed = 0
    while any(thread.is_alive() for thread in threads):
        threads[killed % 2].join(0.1)
        looked_at = sum(owner.looked_at for owner in owners)
        # With more in a minute, the device would rest.
        if killed < 2 and looked_at >= KILL_AFTER * (killed + 1):
            killed += 1
            for worker in daemon.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
    for owner in owners:
        owner.close()
    assert not failures, failures[0]
    name = flags[0].removeprefix("--")
    print(name, [(owner.looked_at, owner.refused) for owner in owners])
    battery.holds(f"answers without a foreign byte ({name})", least=100, seen=sum(o.looked_at for o in owners))
