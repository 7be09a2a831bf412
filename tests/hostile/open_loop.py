# SPDX-License-Identifier: Apache-2.0
"""Products that are sent as fast as they are answered, or at a fixed rate."""

import collections
import dataclasses
import os
import statistics
import threading
import time

import grpc
import metrics_page
import numpy as np
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from product import Product

OK = grpc.StatusCode.OK
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
# If clients, the daemon and other programs share two cores, a product that uses one core takes up
# to twice as long as alone, and that dominates the measurements.
HAS_ROOM = (os.cpu_count() or 1) >= 8


def open_channel(address):
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(address, options)


def one_matrix():
    """A product whose time the daemon predicts well."""
    return Product(a=np.ones((1, 64, 2048), np.float32), b=np.ones((1, 2048, 64), np.float32))


def product_of(stub, seconds):
    """The request of a product that takes about `seconds`: the same matrices many times."""
    request = one_matrix().request()
    request.a.batch_stride = request.b.batch_stride = 0
    request.batch = 50
    times_ns = [stub.Multiply(request, timeout=60).timing.compute_ns for _ in range(5)]
    request.batch = max(1, int(50 * seconds * 1e9 / statistics.median(times_ns)))
    return request


@dataclasses.dataclass
class Moment:
    """The state of the daemon's device at one moment."""

    at_s: float
    busy_s: float
    launches: float

    @staticmethod
    def of(daemon):
        page = metrics_page.scrape(daemon)
        [(_, busy_s)] = page.with_labels("gemmd_device_busy_seconds_total")
        launches = sum(count for _, count in page.with_labels("gemmd_launches_total"))
        return Moment(time.monotonic(), busy_s, launches)


@dataclasses.dataclass
class Served:
    """The results of a period. The share is that of the time for which the device worked for
    answers that came in time: if a machine is slow for a while, the rate changes, but not the
    share."""

    per_s: float
    share: float

    @staticmethod
    def between(before, after, answers):
        seconds = after.at_s - before.at_s
        wanted = min(1, answers / (after.launches - before.launches))
        return Served(answers / seconds, (after.busy_s - before.busy_s) / seconds * wanted)


def closed_loop(daemon, request, callers, seconds):
    """The throughput of `callers` callers that each wait for the last answer."""
    before = Moment.of(daemon)
    counts = []

    def call():
        with open_channel(daemon.tcp) as channel:
            stub = gemm_pb2_grpc.GemmStub(channel)
            count = 0
            while time.monotonic() < before.at_s + seconds:
                stub.Multiply(request, timeout=60)
                count += 1
            counts.append(count)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Served.between(before, Moment.of(daemon), sum(counts))


# Each has at most 100 calls at a time; more would wait in the client, unseen by the daemon.
CONNECTIONS = 4


class OpenLoop:
    """Calls at a fixed rate, whatever happens to them. Counts the answers of a period after the
    first deadline: at the beginning the queue is short, and at the end nobody adds to it. Requests
    are prepared as bytes, because otherwise this process would spend more time on them than the
    daemon."""

    def __init__(self, daemon, request, rate, seconds, deadline_s, connections=CONNECTIONS):
        self.answer_s = []
        self.compute_s = []
        self.refusal_s = []
        self.codes = collections.Counter()
        self.has_pushback = True
        self._ended_at_s = []
        self._left = threading.Semaphore(0)
        channels = [open_channel(daemon.tcp) for _ in range(connections)]
        methods = [channel.unary_unary("/gemmd.v1.Gemm/Multiply") for channel in channels]
        message = request.SerializeToString()
        start = time.monotonic()
        # The queue has its full length once the first deadlines have passed, or it is full.
        warm_up_s = min(deadline_s, seconds / 2)
        before = None
        count = int(rate * seconds)
        for i in range(count):
            if before is None and time.monotonic() > start + warm_up_s:
                before = Moment.of(daemon)
            time.sleep(max(0.0, start + i / rate - time.monotonic()))
            self._call(methods[i % connections], message, deadline_s)
        after = Moment.of(daemon)
        in_time = sum(before.at_s < ended < after.at_s for ended in list(self._ended_at_s))
        self.served = Served.between(before, after, in_time)
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
                self._ended_at_s.append(now)
                self.answer_s.append(now - asked)
                answer = gemm_pb2.MultiplyResponse.FromString(call.result())
                self.compute_s.append(answer.timing.compute_ns / 1e9)
            elif call.code() == DEADLINE_EXCEEDED:
                # The client itself reports the same code at the deadline.
                if call.details().startswith("product: predicted to take"):
                    self.refusal_s.append(now - asked)
            elif call.code() == RESOURCE_EXHAUSTED:
                self.refusal_s.append(now - asked)
                keys = [key for key, _ in call.trailing_metadata()]
                self.has_pushback &= "grpc-retry-pushback-ms" in keys
            self._left.release()

        call.add_done_callback(ended)


def p99(values):
    return sorted(values)[int(0.99 * (len(values) - 1))]
