# SPDX-License-Identifier: Apache-2.0
"""Triton with a model of NumPy: D is A of 1 x 384 times (30522 x 384)^T in f32, as "weights".

Triton collects waiting requests in batches. Prints the address of its gRPC service, and ends when its standard input
is closed. Needs nvidia-pytriton.
"""

import socket
import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

DEPTH, WORDS = 384, 30522
MAX_BATCH = 64


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    weights = np.random.default_rng(1).standard_normal((WORDS, DEPTH)).astype(np.float32)

    @batch
    def multiply(A):
        return {"D": A @ weights.T}

    grpc_port = free_port()
    config = TritonConfig(
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        http_address="127.0.0.1",
        http_port=free_port(),
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="weights",
            infer_func=multiply,
            inputs=[Tensor(name="A", dtype=np.float32, shape=(DEPTH,))],
            outputs=[Tensor(name="D", dtype=np.float32, shape=(WORDS,))],
            config=ModelConfig(max_batch_size=MAX_BATCH, batcher=DynamicBatcher()),
        )
        triton.run()
        print(f"127.0.0.1:{grpc_port}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
