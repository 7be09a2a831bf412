# SPDX-License-Identifier: Apache-2.0
"""A daemon whose answers are checked, with workers that flip bits of D."""

import grpc
import numpy as np
import pytest
from gemmd.v1 import admin_pb2_grpc, gemm_pb2, gemm_pb2_grpc, incidents_pb2, registry_pb2_grpc
from product import Product, check_bytes

DEADLINE_S = 120
DATA_LOSS = grpc.StatusCode.DATA_LOSS
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
WHOLE = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_SAMPLED, rate=1)
CHECKSUM = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_CHECKSUM)
DUPLICATE = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_DUPLICATE)
NOT_VERIFIED = gemm_pb2.VERIFY_OUTCOME_NOT_VERIFIED
PASSED = gemm_pb2.VERIFY_OUTCOME_PASSED


def some_product(size=24, element="f16"):
    values = np.arange(size * size).reshape(1, size, size) % 5
    return Product(a=values, b=values + 1, a_type=element, b_type=element)


class Server:
    """A daemon whose GPU's next launches follow the script."""

    def __init__(self, daemon, tmp_path):
        self.daemon = daemon
        self.folder = tmp_path
        self.channel = grpc.insecure_channel(
            daemon.unix, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.gemm = gemm_pb2_grpc.GemmStub(self.channel)
        self.registry = registry_pb2_grpc.RegistryStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)

    def flip(self, *launches):
        (self.folder / "part").write_text("".join(f"Launch {n} flip\n" for n in launches))
        (self.folder / "part").rename(self.folder / "script")

    def multiply(self, verify=None, product=None, kernel="", device="cuda:0"):
        product = product or some_product()
        request = product.request()
        request.device = device
        request.kernel = kernel
        if verify is not None:
            request.verify.CopyFrom(verify)
        answer = self.gemm.Multiply(request, timeout=DEADLINE_S)
        check_bytes(answer.d, product)
        return answer

    def code_of(self, **keywords):
        with pytest.raises(grpc.RpcError) as caught:
            self.multiply(**keywords)
        return caught.value.code()

    def incidents(self):
        request = incidents_pb2.ListIncidentsRequest()
        return self.admin.ListIncidents(request, timeout=DEADLINE_S)


@pytest.fixture
def serve(daemons, fake_worker, tmp_path, monkeypatch):
    made = []

    def start(*flags, devices="cuda:0,cpu"):
        monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(tmp_path / "script"))
        daemon = daemons.start(
            "--lame-duck=1ms", f"--devices={devices}", f"--worker-binary={fake_worker}", *flags
        )
        made.append(Server(daemon, tmp_path))
        return made[-1]

    yield start
    for each in made:
        each.channel.close()


