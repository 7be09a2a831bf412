# SPDX-License-Identifier: Apache-2.0
"""Clients that multiply without a pause, and count what they were answered."""

import collections
import threading
import time

import grpc
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, tensors_pb2

DEADLINE_S = 20
SIDE = 16


def request():
    """Ones times ones."""
    ones = b"\0\0\x80\x3f" * (SIDE * SIDE)
    made = gemm_pb2.MultiplyRequest(m=SIDE, n=SIDE, k=SIDE)
    for operand in (made.a, made.b):
        operand.type = tensors_pb2.ELEMENT_TYPE_F32
        operand.data = ones
    return made


class Traffic:
    """Four threads on one channel; `errors` holds every call that did not end well."""

    THREADS = 4

    def __init__(self, target, options=()):
        options = [("grpc.use_local_subchannel_pool", 1), *options]
        self._channel = grpc.insecure_channel(target, options=options)
        self._stub = gemm_pb2_grpc.GemmStub(self._channel)
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self.answers = 0
        self.errors = collections.Counter()
        self._threads = [threading.Thread(target=self._run) for _ in range(self.THREADS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _run(self):
        wanted = b"\0\0\x80\x41" * (SIDE * SIDE)  # 16.0
        asked = request()
        while not self._ends.is_set():
            try:
                answer = self._stub.Multiply(asked, timeout=DEADLINE_S)
                error = None if answer.d.data == wanted else "wrong"
            except grpc.RpcError as failure:
                error = f"{failure.code()}: {failure.details()}"
            with self._lock:
                self.answers += 1
                if error:
                    self.errors[error] += 1
            time.sleep(0.002)  # Many calls, not a full machine.
