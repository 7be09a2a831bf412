# SPDX-License-Identifier: Apache-2.0
"""A closed loop in a few lines that share no code with gemmload; the two must measure the same.

By hand, beside `gemmload --shape 64,64,64 --concurrency 4 --count 4000 --warmup 0`:
python load_generator.py 127.0.0.1:8470 --shape 64,64,64 --concurrency 4 --count 4000"""

import argparse
import pathlib
import statistics
import sys
import threading
import time

import grpc


def closed_loop(address, request, concurrency, count):
    """Calls per second, and the sorted latencies of all calls in seconds."""
    from gemmd.v1 import gemm_pb2_grpc

    latencies = []
    left = iter(range(count))
    lock = threading.Lock()

    def take_turns(stub):
        while True:
            with lock:
                if next(left, None) is None:
                    return
            start = time.perf_counter()
            stub.Multiply(request, timeout=60)
            latencies.append(time.perf_counter() - start)

    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(60)
        stub = gemm_pb2_grpc.GemmStub(channel)
        threads = [threading.Thread(target=take_turns, args=(stub,)) for _ in range(concurrency)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
    assert len(latencies) == count
    return count / seconds, sorted(latencies)


def f32_request(m, n, k):
    from gemmd.v1 import gemm_pb2, tensors_pb2

    def operand(elements):
        return tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_F32, data=b"\0\0\x80\x3f" * elements)

    return gemm_pb2.MultiplyRequest(m=m, n=n, k=k, a=operand(m * k), b=operand(k * n))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--shape", default="64,64,64")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    flags = parser.parse_args()
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import stubs

    sys.path.insert(0, stubs.generate())
    request = f32_request(*map(int, flags.shape.split(",")))
    rate, latencies = closed_loop(flags.address, request, flags.concurrency, flags.count)
    p50 = statistics.median(latencies)
    p99 = latencies[int(0.99 * len(latencies))]
    print(f"{rate:.1f}/s  p50 {p50 * 1e6:.0f} us  p99 {p99 * 1e6:.0f} us")


if __name__ == "__main__":
    main()
