# SPDX-License-Identifier: Apache-2.0
"""An owner of tensors that is killed in the middle of something.

    python doomed_owner.py ADDRESS DEVICE upload|holding|product ENGINE FOLDER...

The engine is what computes on the device: host, simulated (by the tests' worker) or gpu. The folders are those
of the modules that it needs. It goes as far as it is told, prints a line and waits to be killed.
"""

import sys
import threading

sys.path[:0] = sys.argv[5:]
import grpc  # noqa: E402
from daemon import wait_until  # noqa: E402
from gemmd.v1 import (  # noqa: E402
    gemm_pb2,
    registry_pb2,
    registry_pb2_grpc,
    resident_pb2,
    tensors_pb2,
)
from tensors import MIB, Session, bytes_spec  # noqa: E402

LIFE_LIMIT_S = 120
F16 = tensors_pb2.ELEMENT_TYPE_F16
# Sizes and kernels of products that take long enough to be seen waiting. Hopper has no m8n8k4 for
# f16 and emulates it with multiply-adds, which are slow.
SQUARES = {"host": (2048, ""), "simulated": (512, ""), "gpu": (4096, "mma.m8n8k4.row.row.f32.f16.f16.f32")}


def upload(session, device, _):
    """Two streams of one upload, each with a chunk in transit."""
    begin = resident_pb2.PutBegin(spec=bytes_spec(24 * MIB), device=device)
    streams = [session.put_stream() for _ in range(2)]
    streams[0].send(begin=begin)
    streams[1].join(streams[0].state().upload)
    for i in range(10):
        streams[i % 2].chunk(i * MIB, bytes(MIB))


def squares(session, device, n, kernel=""):
    """A product of a tensor with itself, whose result stays on the device."""
    spec = resident_pb2.TensorSpec(type=F16, rows=n, columns=n)
    tensor = session.put(bytes(2 * n * n), spec=spec)
    request = gemm_pb2.MultiplyRequest(m=n, n=n, k=n, device=device, kernel=kernel)
    for operand in (request.a, request.b):
        operand.tensor.tensor.handle = tensor.handle
    request.d.new_tensor.SetInParent()
    return request


def holding(session, device, _):
    """Tensors in host memory, and in the device's memory if it has any."""
    for i in range(4):
        session.put(bytes(4 * MIB), name=str(i), hashed=False)
    session.multiply(squares(session, device, 32))


def product(session, device, engine):
    """Products, some of which wait for the first."""
    request = squares(session, device, *SQUARES[engine])
    calls = [session.gemm.Multiply.future(request, metadata=session.metadata) for _ in range(12)]
    registry = registry_pb2_grpc.RegistryStub(session.channel)

    def some_wait():
        if all(call.done() for call in calls):
            return True
        devices = registry.ListDevices(registry_pb2.ListDevicesRequest()).devices
        return any(device.queued_requests > 1 for device in devices)

    wait_until(some_wait, LIFE_LIMIT_S, "products wait")
    return calls


def main():
    address, device, what, engine = sys.argv[1:5]
    session = Session(grpc.insecure_channel(address))
    kept = {"upload": upload, "holding": holding, "product": product}[what](session, device, engine)
    print("ready", flush=True)
    threading.Event().wait(LIFE_LIMIT_S)
    del kept


if __name__ == "__main__":
    main()
