# SPDX-License-Identifier: Apache-2.0
"""Triton with two models of NumPy in f32: D is A of 1 x 384 times (30522 x 384)^T, as "weights", or A times B, as
"gemm".

Triton collects waiting requests for "weights" in batches, and has an instance of "gemm" for each processor. Prints the address of its gRPC service, and ends when its standard input
is closed. Needs nvidia-pytriton.
"""

import os
import socket
import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

DEPTH, WORDS = 384, 30522
MAX_BATCH = 64
ACCESS_TOKEN = "benchmark"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    weights = np.random.default_rng(1).standard_normal((WORDS, DEPTH)).astype(np.float32)

    @batch
    def multiply(A):
        return {"D": A @ weights.T}

    def gemm(requests):
        return [{"D": request["A"] @ request["B"]} for request in requests]

    grpc_port = free_port()
    config = TritonConfig(
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        http_address="127.0.0.1",
        http_port=free_port(),
        allow_metrics=False,
    )
    # perf_analyzer asks for statistics, which pytriton otherwise keeps to itself.
    security = TritonSecurityConfig(access_token=ACCESS_TOKEN)
    with Triton(config=config, security_config=security) as triton:
        triton.bind(
            model_name="weights",
            infer_func=multiply,
            inputs=[Tensor(name="A", dtype=np.float32, shape=(DEPTH,))],
            outputs=[Tensor(name="D", dtype=np.float32, shape=(WORDS,))],
            config=ModelConfig(max_batch_size=MAX_BATCH, batcher=DynamicBatcher()),
        )
        triton.bind(
            model_name="gemm",
            infer_func=[gemm] * os.cpu_count(),
            inputs=[Tensor(name=name, dtype=np.float32, shape=(-1, -1)) for name in "AB"],
            outputs=[Tensor(name="D", dtype=np.float32, shape=(-1, -1))],
            config=ModelConfig(batching=False),
        )
        triton.run()
        print(f"127.0.0.1:{grpc_port}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
