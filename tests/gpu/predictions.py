#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted times beside those that products take, on any device of a running daemon.

    tests/gpu/predictions.py --gemmctl build/bin/gemmctl --address 127.0.0.1:8470 --device cuda:0

For each kernel and shape: what the daemon predicts for the kernel alone (gemmctl explain), the
shortest compute time of some products, and their ratio. Exit status 1 where a ratio is over
--most. Idle machines only: other work makes products slower, not predictions.
"""

import argparse
import json
import subprocess
import sys

TYPES = ["f16", "bf16", "tf32", "f64", "e4m3", "s8"]
# m,n,k and how many of them.
SHAPES = [
    ("1,1,1", 1),
    ("1,1,1", 1000),
    ("1000,1000,0", 1),
    ("4096,4096,0", 1),
    ("16,16,16", 1000),
    ("64,64,64", 100),
    ("1,4096,4096", 1),
    ("16,4096,4096", 1),
    ("4096,1,4096", 1),
    ("1000,37,129", 1),
    ("512,512,512", 1),
    ("512,512,8192", 1),
    ("1023,1025,1021", 1),
    ("2048,2048,2048", 1),
]


class Client:
    def __init__(self, gemmctl, address):
        self.start = [gemmctl, "--address", address, "--json"]

    def ask(self, *words):
        done = subprocess.run(self.start + list(words), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return None, done.stderr.strip()
        return [json.loads(line) for line in done.stdout.splitlines() if line], ""


def product(shape, batch, kind, device):
    words = ["--random", shape, "--type", kind, "--device", device]
    return words + (["--batch", str(batch)] if batch > 1 else [])


def shortest_compute_us(answer):
    return int(answer[0]["stages"]["compute"]["min_ns"]) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gemmctl", default="gemmctl")
    parser.add_argument("--address", default="127.0.0.1:8470")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--types", nargs="*", default=TYPES)
    parser.add_argument("--kernels", type=int, default=3, help="how many candidates of each product")
    parser.add_argument("--most", type=float, default=2.0)
    options = parser.parse_args()
    client = Client(options.gemmctl, options.address)
    worst = 1.0
    print(f"{'kernel':60} {'shape':18} {'batch':>6} {'predicted us':>13} {'taken us':>11} {'ratio':>7}")
    for kind in options.types:
        for shape, batch in SHAPES:
            words = product(shape, batch, kind, options.device)
            explained, why = client.ask("explain", *words)
            if explained is None:
                print(f"{kind} {shape}: {why}", file=sys.stderr)
                continue
            for candidate in explained[0].get("candidates", [])[: options.kernels]:
                calls = ["--repeat", "20", "--warmup", "3", "--kernel", candidate["kernel"]]
                answer, why = client.ask("multiply", *words, *calls)
                if answer is None:
                    print(f"{candidate['kernel']} {shape}: {why}", file=sys.stderr)
                    continue
                predicted = int(candidate["predicted_ns"]) / 1e3
                taken = shortest_compute_us(answer)
                ratio = predicted / max(taken, 1e-3)
                worst = max(worst, ratio, 1 / max(ratio, 1e-9))
                mark = "" if 1 / options.most <= ratio <= options.most else "  <--"
                print(
                    f"{candidate['kernel']:60} {shape:18} {batch:6} {predicted:13.1f} {taken:11.1f} "
                    f"{ratio:7.2f}{mark}"
                )
    print(f"worst: {worst:.2f} times")
    return 0 if worst <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
