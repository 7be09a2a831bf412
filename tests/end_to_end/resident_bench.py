# SPDX-License-Identifier: Apache-2.0
"""How long products take whose B, a weight, stays on the server: 8 x 384 times (30522 x 384)
transposed, over a unix socket, beside the same product by NumPy in this process. Daemons, kinds and
NumPy take turns, so that all see the same machine.

usage: resident_bench.py GEMMD... [--kinds f32,bf16,...] [--rounds 40]     (several: before, after)
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import stubs

sys.path.insert(0, stubs.generate())

import grpc  # noqa: E402
import numpy as np  # noqa: E402
from daemon import Daemon  # noqa: E402
from elements import ELEMENTS, convert, store  # noqa: E402
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2  # noqa: E402
from tensors import Session  # noqa: E402

M, N, K = 8, 30522, 384
# NumPy only has these; other types are compared with its product of f32.
NUMPY = {"f32": np.float32, "f64": np.float64}


class Weights:
    """W of one kind on one daemon, and a product with it."""

    def __init__(self, session, kind, x, w):
        element = ELEMENTS[kind]
        scaled = 8 if element.is_integer else 1
        data, _, _ = store(convert(w[None] * scaled, element), element)
        spec = resident_pb2.TensorSpec(type=element.number, rows=N, columns=K)
        self.session = session
        tensor = session.put(data, spec=spec, hashed=False)
        self.request = gemm_pb2.MultiplyRequest(m=M, n=N, k=K, device="cpu")
        self.request.a.type = element.number
        self.request.a.data, _, _ = store(convert(x[None] * scaled, element), element)
        self.request.b.tensor.tensor.handle = tensor.handle
        self.request.b.transpose = True
        self.compute_ms = []
        self.seconds = []

    def multiply(self):
        began = time.perf_counter()
        answer = self.session.multiply(self.request)
        self.seconds.append(time.perf_counter() - began)
        self.compute_ms.append(answer.timing.compute_ns * 1e-6)
        return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gemmd", nargs="+", type=pathlib.Path)
    parser.add_argument("--kinds", default="f32,bf16,f16,s8,e4m3,tf32,s4")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((M, K)), rng.standard_normal((N, K))
    daemons, weights, local = [], {}, {}
    for i, binary in enumerate(options.gemmd):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="gemmd-bench-"))
        flags = ["--devices=cpu", "--tensor-bytes=2GiB:2GiB"]
        daemons.append(Daemon(binary.resolve(), folder, *flags).wait_until_ready())
        channel = grpc.insecure_channel(
            daemons[-1].unix, options=[("grpc.max_receive_message_length", -1)]
        )
        session = Session(channel)
        for kind in options.kinds.split(","):
            weights[i, kind] = Weights(session, kind, x, w)
            dtype = NUMPY.get(kind, np.float32)
            local[kind] = (x.astype(dtype), w.astype(dtype), [])
    answers = {}
    for turn in range(options.rounds + 3):
        for (i, kind), product in weights.items():
            answer = product.multiply()
            same = answers.setdefault(kind, answer.d.data)
            assert answer.d.data == same, f"{kind}: {options.gemmd[i]} gives other bits"
            if turn < 3:
                product.seconds.clear()
                product.compute_ms.clear()
        for kind, (left, right, seconds) in local.items():
            began = time.perf_counter()
            _ = left @ right.T
            if turn >= 3:
                seconds.append(time.perf_counter() - began)
    print(f"{M}x{N}x{K}, medians of {options.rounds}, in ms")
    for kind, (_, _, seconds) in local.items():
        numpy_ms = 1e3 * statistics.median(seconds)
        dtype = NUMPY.get(kind, np.float32).__name__
        for i, binary in enumerate(options.gemmd):
            product = weights[i, kind]
            whole = 1e3 * statistics.median(product.seconds)
            compute = statistics.median(product.compute_ms)
            print(
                f"{kind:5} {binary}: round trip {whole:.2f}, kernel {compute:.2f}, "
                f"NumPy ({dtype}) {numpy_ms:.2f}, round trip over NumPy {whole / numpy_ms:.2f}"
            )
        if len(options.gemmd) == 2:
            before, after = (
                statistics.median(weights[i, kind].compute_ms) for i in range(2)
            )
            print(f"{kind:5} kernel of the first over that of the second: {before / after:.2f}")
    for daemon in daemons:
        daemon.stop()


if __name__ == "__main__":
    main()
