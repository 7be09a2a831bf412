# SPDX-License-Identifier: Apache-2.0
"""Clients that multiply without a pause, and count their answers."""

import collections
import struct
import threading
import time

import grpc
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, tensors_pb2

DEADLINE_S = 20
SIDE = 16
DEPTH = 100_000


def small():
    """A product of ones, and the bytes of its answer."""
    ones = b"\0\0\x80\x3f" * (SIDE * SIDE)
    made = gemm_pb2.MultiplyRequest(m=SIDE, n=SIDE, k=SIDE)
    for operand in (made.a, made.b):
        operand.type = tensors_pb2.ELEMENT_TYPE_F32
        operand.data = ones
    return made, struct.pack("<f", SIDE) * (SIDE * SIDE)


def long(batch):
    """The same dot product `batch` times: much to compute for few bytes."""
    made = gemm_pb2.MultiplyRequest(m=1, n=1, k=DEPTH, batch=batch)
    for operand in (made.a, made.b):
        operand.type = tensors_pb2.ELEMENT_TYPE_E2M1
        operand.data = b"\x22" * (DEPTH // 2)  # 1.0, twice a byte.
        operand.batch_stride = 0
    made.b.order = tensors_pb2.ORDER_COLUMN_MAJOR
    return made, struct.pack("<f", DEPTH) * batch


class Traffic:
    """Six threads on one channel and, with `slow_ms`, a seventh, whose products take at least that
    long on the device; `errors` holds every call that failed."""

    THREADS = 6

    def __init__(self, target, options=(), slow_ms=None):
        options = [("grpc.use_local_subchannel_pool", 1), *options]
        self._channel = grpc.insecure_channel(target, options=options)
        self._stub = gemm_pb2_grpc.GemmStub(self._channel)
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._slow_ns = (slow_ms or 0) * 1_000_000
        self.answers = 0
        self.slow_answers = 0
        self.errors = collections.Counter()
        self._threads = [threading.Thread(target=self._run_small) for _ in range(self.THREADS)]
        if slow_ms:
            self._threads.append(threading.Thread(target=self._run_slow))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _run_small(self):
        request, wanted = small()
        while not self._ends.is_set():
            self._ask(request, wanted)
            time.sleep(0.001)  # Many calls, but without using the whole machine.

    def _run_slow(self):
        batch = 100
        while not self._ends.is_set():
            took_ns = self._ask(*long(batch))
            if took_ns is not None and took_ns < self._slow_ns:
                batch *= 2
            else:
                time.sleep(0.2)

    def _ask(self, request, wanted):
        """The device's time, if there is an answer."""
        took_ns = None
        try:
            answer = self._stub.Multiply(request, timeout=DEADLINE_S)
            took_ns = answer.timing.compute_ns
            error = None if answer.d.data == wanted else "wrong"
        except grpc.RpcError as failure:
            error = f"{failure.code()}: {failure.details()}"
        with self._lock:
            self.answers += 1
            self.slow_answers += took_ns is not None and took_ns >= self._slow_ns > 0
            if error:
                self.errors[error] += 1
        return took_ns
