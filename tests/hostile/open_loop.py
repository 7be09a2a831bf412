# SPDX-License-Identifier: Apache-2.0
"""Products that come as fast as they are answered, or at a rate of their own."""

import collections
import dataclasses
import os
import statistics
import threading
import time

import grpc
import numpy as np
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from product import Product

OK = grpc.StatusCode.OK
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
# Where clients, the daemon and other programs take turns on two cores, a product of one core takes up
# to twice as long as alone, and what is measured is mostly that.
HAS_ROOM = (os.cpu_count() or 1) >= 8


def open_channel(address):
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(address, options)


def one_matrix():
    """A product that the daemon predicts well."""
    return Product(a=np.ones((1, 64, 2048), np.float32), b=np.ones((1, 2048, 64), np.float32))


def product_of(stub, seconds):
    """The request of a product that takes about so long: the same matrices many times."""
    request = one_matrix().request()
    request.a.batch_stride = request.b.batch_stride = 0
    request.batch = 50
    times_ns = [stub.Multiply(request, timeout=60).timing.compute_ns for _ in range(5)]
    request.batch = max(1, int(50 * seconds * 1e9 / statistics.median(times_ns)))
    return request


@dataclasses.dataclass
class Served:
    """What came of some time. The share is that of the time in which the device worked for answers in
    time: a machine that is slow for a while changes the rate, but not the share."""

    per_s: float
    share: float


class Answers:
    """Counts answers and what the device took for them; several threads add to it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._compute_ns = []

    def add(self, answer):
        with self._lock:
            self._compute_ns.append(answer.timing.compute_ns)

    def in_seconds(self, seconds):
        return Served(len(self._compute_ns) / seconds, sum(self._compute_ns) / 1e9 / seconds)

    def median_s(self):
        return statistics.median(self._compute_ns) / 1e9


def closed_loop(address, request, callers, seconds):
    """What so many callers are served that each wait for the last answer."""
    start = time.monotonic()
    answers = Answers()

    def call():
        with open_channel(address) as channel:
            stub = gemm_pb2_grpc.GemmStub(channel)
            while time.monotonic() < start + seconds:
                answers.add(stub.Multiply(request, timeout=60))

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers.in_seconds(time.monotonic() - start)


CONNECTIONS = 4


class OpenLoop:
    """Calls at a fixed rate, whatever becomes of them. Counts the answers of a while after the first
    deadline: at the beginning the queue is short, and at the end nobody adds to it. Requests are bytes
    here, because this process would otherwise take longer over them than the daemon does."""

    def __init__(self, address, request, rate, seconds, deadline_s):
        self.answer_s = []
        self.refusal_s = []
        self.codes = collections.Counter()
        self.has_pushback = True
        self.answers = Answers()
        self._left = threading.Semaphore(0)
        channels = [open_channel(address) for _ in range(CONNECTIONS)]
        methods = [channel.unary_unary("/gemmd.v1.Gemm/Multiply") for channel in channels]
        message = request.SerializeToString()
        start = time.monotonic()
        # The queue is as long as it gets once the first deadlines have passed, or it is full.
        warm_up_s = min(deadline_s, seconds / 2)
        self._counts_from = start + warm_up_s
        self._counts_until = float("inf")
        count = int(rate * seconds)
        for i in range(count):
            time.sleep(max(0.0, start + i / rate - time.monotonic()))
            self._call(methods[i % CONNECTIONS], message, deadline_s)
        self._counts_until = time.monotonic()
        self.served = self.answers.in_seconds(self._counts_until - self._counts_from)
        for _ in range(count):
            assert self._left.acquire(timeout=deadline_s + 30)
        for channel in channels:
            channel.close()

    def _call(self, method, message, deadline_s):
        asked = time.monotonic()
        call = method.future(message, timeout=deadline_s)

        def ended(call):
            now = time.monotonic()
            self.codes[call.code()] += 1
            if call.code() == OK:
                self.answer_s.append(now - asked)
                if self._counts_from < now < self._counts_until:
                    self.answers.add(gemm_pb2.MultiplyResponse.FromString(call.result()))
            elif call.code() == RESOURCE_EXHAUSTED:
                self.refusal_s.append(now - asked)
                keys = [key for key, _ in call.trailing_metadata()]
                self.has_pushback &= "grpc-retry-pushback-ms" in keys
            self._left.release()

        call.add_done_callback(ended)


def p99(values):
    return sorted(values)[int(0.99 * (len(values) - 1))]
