# SPDX-License-Identifier: Apache-2.0
"""What must hold during and after every attack: other clients are served, and the daemon keeps
nothing of the attack."""

import os
import random

import grpc
from daemon import PATIENCE_S, wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, registry_pb2, registry_pb2_grpc
from product import Product, check_bytes, small_integers

DEADLINE_S = PATIENCE_S

# Threads that gRPC may start under load and keep for later: its executors grow to twice the number
# of cores each, its pools for completion queues and events by a few. All are limited, and few
# compared to the hundreds of calls and connections of any attack here.
KEPT_THREADS = 2 * 2 * os.cpu_count() + 8


class Bystander:
    """A client that connected before the attack, and the resources that the daemon held then."""

    def __init__(self, daemon):
        self.daemon = daemon
        rng = random.Random(1)
        a = small_integers(rng, ELEMENTS["f32"], 1, 31, 17)
        b = small_integers(rng, ELEMENTS["f32"], 1, 17, 23)
        self._product = Product(a=a, b=b)
        self._channel = self._open()
        self._gemm = gemm_pb2_grpc.GemmStub(self._channel)
        self._registry = registry_pb2_grpc.RegistryStub(self._channel)
        self._check_product(self._gemm)
        request = registry_pb2.GetServerInfoRequest()
        limits = self._registry.GetServerInfo(request, timeout=DEADLINE_S).limits
        self.capacity = limits.max_queued_bytes
        assert self.capacity < limits.max_message_bytes - 4096, "see _takes_all"
        self.open_files = daemon.open_files()
        self.threads = daemon.threads()
        self.check()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()

    def _open(self):
        # A separate connection, for answers of any length.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        return grpc.insecure_channel(self.daemon.tcp, options=options)

    def _check_product(self, stub):
        answer = stub.Multiply(self._product.request(), timeout=DEADLINE_S)
        check_bytes(answer.d, self._product)

    def check_served(self):
        """Checks that its product is right, on the old connection and on a new one."""
        assert self.daemon.process.poll() is None, self.daemon.stderr()[-4000:]
        self._check_product(self._gemm)
        with self._open() as channel:
            self._check_product(gemm_pb2_grpc.GemmStub(channel))

    def is_served(self):
        """The same when gRPC may have closed connections, after which a retry is safe."""
        try:
            self.check_served()
        except grpc.RpcError as failure:
            assert failure.code() == grpc.StatusCode.UNAVAILABLE, failure
            return False
        return True

    def is_served_with_room(self):
        """The same when others may have filled the queue, or the memory, for now."""
        return self._takes_any() and self.is_served()

    def is_idle(self):
        """Whether no product waits, and none holds a part of the daemon's capacity."""
        request = registry_pb2.ListDevicesRequest()
        device = self._registry.ListDevices(request, timeout=DEADLINE_S).devices[0]
        return (device.queued_requests, device.queued_bytes) == (0, 0) and self._takes_all()

    def _takes_all(self):
        """Whether a product whose message and result take all of --max-queued-bytes is accepted.
        That is only the case if no other message, however small, is still held."""
        zeros = gemm_pb2.MultiplyRequest(m=1, n=self.capacity, k=0)
        zeros.a.type = zeros.b.type = zeros.d.type = ELEMENTS["s8"].number
        zeros.n -= zeros.ByteSize()
        try:
            answer = self._gemm.Multiply(zeros, timeout=DEADLINE_S)
        except grpc.RpcError as refused:
            assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused
            return False
        assert answer.d.data == bytes(zeros.n)
        return True

    def _takes_any(self):
        try:
            self._check_product(self._gemm)
        except grpc.RpcError as refused:
            assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused
            return False
        return True

    def check_nothing_kept(self, limit_s=PATIENCE_S):
        """Files, threads, queue and capacity are as before, within the limit."""
        wait_until(lambda: self.daemon.open_files() <= self.open_files, limit_s, "files closed")
        wait_until(self.is_idle, limit_s, "all requests let go of")
        # The product that took all of it is released a moment after its answer.
        wait_until(self._takes_any, limit_s, "the last request let go of")
        assert self.daemon.threads() <= self.threads + KEPT_THREADS

    def check(self):
        self.check_served()
        self.check_nothing_kept()
