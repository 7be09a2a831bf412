# SPDX-License-Identifier: Apache-2.0
"""Rows of data_plane_bench.py: the Python client beside tritonclient, the C++ client and Arrow Flight.

Each client is a process of its own, which makes the call that a line of its standard input names and answers with
the seconds and the page faults of it. They take turns, and of what was seen the median counts.
"""

import contextlib
import math
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SIZES = (64, 256, 1024)
MAX_SECONDS = 0.05  # Shorter calls are made several times for one answer.
UP, DOWN = (16, 1 << 20, 1), (4096, 1, 4096)  # m, k, n: 68 MiB of operands, and a D of 64 MiB, in f32.
LANES = 4
CHUNK_BYTES = 1 << 20  # Of Arrow Flight, the same as gemmd's.


def shape_of(name):
    m, k, n = {"up": UP, "down": DOWN}.get(name) or [int(name)] * 3
    return m, k, n


def operands(name):
    import numpy as np

    m, k, n = shape_of(name)
    rng = np.random.default_rng(1)
    return rng.random((m, k), np.float32), rng.random((k, n), np.float32)


class Gemmd:
    """The client of client/python; with `keep`, malloc keeps freed memory for it."""

    def __init__(self, address, get_mib, keep=""):
        import gemmd
        import numpy as np

        self.np = np
        if keep and not gemmd.keep_memory(2**31 - 1):
            sys.exit("keep_memory: got False, want True: the C library is not glibc")
        self.client = gemmd.Client(address, timeout=120)
        self.get_mib = int(get_mib)
        self.tensor = None

    def call(self, name):
        if name == "get":
            if self.tensor is None:
                self.tensor = self.client.put(self.np.ones((self.get_mib, 1 << 18), self.np.float32))
            return lambda: self.tensor.get(connections=LANES)
        a, b = operands(name)
        return lambda: self.client.matmul(a, b, device="cpu")


class Triton:
    """tritonclient over KServe's protocol, used as documented."""

    def __init__(self, address, *_):
        import tritonclient.grpc as triton

        self.triton = triton
        self.client = triton.InferenceServerClient(address)

    def call(self, name):
        a, b = operands(name)

        def infer():
            inputs = []
            for letter, array in (("A", a), ("B", b)):
                inputs.append(self.triton.InferInput(letter, list(array.shape), "FP32"))
                inputs[-1].set_data_from_numpy(array)
            return self.client.infer("gemm", inputs, client_timeout=120).as_numpy("D")

        return infer


class Flight:
    """Arrow Flight's client, with as many streams as gemmd's, each for a part of the table."""

    def __init__(self, address, *_):
        import pyarrow.flight as flight

        self.flight = flight
        self.clients = [flight.connect(f"grpc://{address}") for _ in range(LANES)]

    def call(self, name):
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(LANES)

        def fetch(lane):
            return self.clients[lane].do_get(self.flight.Ticket(str(lane).encode())).read_all()

        return lambda: list(pool.map(fetch, range(LANES)))


def serve_flight(get_mib):
    """Serves this many MiB of f32 in equal parts; prints its port."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.flight as flight

    column = pa.array(np.ones((int(get_mib) << 18) // LANES, np.float32))
    batches = pa.table({"x": column}).to_batches(max_chunksize=CHUNK_BYTES // 4)
    schema = batches[0].schema

    class Server(flight.FlightServerBase):
        def do_get(self, _, __):
            return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, batches))

    server = Server("grpc://127.0.0.1:0")
    print(server.port, flush=True)
    server.serve()


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def answer(client):
    """Makes the calls named on standard input."""
    calls = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in calls:
            call = client.call(name)
            call()
            began = time.perf_counter()
            call()
            calls[name] = call, max(1, math.ceil(MAX_SECONDS / (time.perf_counter() - began)))
        call, times = calls[name]
        faults, began = page_faults(), time.perf_counter()
        for _ in range(times):
            call()
        seconds = time.perf_counter() - began
        print(seconds / times, (page_faults() - faults) / times, flush=True)


class Peer:
    """One of those processes."""

    def __init__(self, command, package=None):
        environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, name):
        """Seconds and page faults."""
        print(name, file=self.process.stdin, flush=True)
        seconds, faults = map(float, self.process.stdout.readline().split())
        return seconds, faults

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def in_turns(peers, name, turns):
    """The medians of the seconds and of the page faults of each. Each turn begins with another
    one."""
    seen = [[] for _ in peers]
    for turn in range(turns):
        for at in range(turn, turn + len(peers)):
            seen[at % len(peers)].append(peers[at % len(peers)].ask(name))
    return [tuple(map(statistics.median, zip(*of_peer))) for of_peer in seen]


def row(what, unit, seen, measure, by, bounds, baseline):
    made = {"row": what, "unit": unit, "seen": seen, "measure": measure, "by": by, "ratio": seen / by, **bounds}
    if bounds:
        is_reached = made["ratio"] <= bounds["at_most"] if "at_most" in bounds else made["ratio"] >= bounds["at_least"]
        made["verdict"] = "reached" if is_reached else "missed"
    if baseline is not None:
        made["baseline"] = baseline
    return made


def package_of(generated, folder, target):
    """A folder from which to import a client: its sources and the generated messages."""
    import stubs

    shutil.copytree(generated, target)
    stubs.add_client(target, folder)
    return target


def measure(address, bench, folder, turns, get_mib, baseline=None):
    """Yields the rows. `bench` is data_plane_bench; `baseline` a folder as client/python."""
    import stubs

    with contextlib.ExitStack() as stack:
        generated = pathlib.Path(stubs.generate())
        stack.callback(shutil.rmtree, generated, ignore_errors=True)

        def start(command, package=None):
            peer = Peer([*map(str, command)], package)
            stack.callback(peer.end)
            return peer

        def client(role, *arguments, package=None):
            return start([sys.executable, "-B", __file__, role, *arguments], package)

        now = package_of(generated, ROOT / "client/python", folder / "python_now")
        ours = {"": client("gemmd", address, get_mib, package=now)}
        ours[", keep_memory"] = client("gemmd", address, get_mib, "keep", package=now)
        before = []
        if baseline is not None:
            package = package_of(generated, baseline, folder / "python_before")
            before = [client("gemmd", address, get_mib, package=package)]
        triton = client("triton", address)
        cplusplus = start([bench, f"--tcp={address}", "--answer"])

        def beside(name, what, peer, measure, bounds, unit="ms", convert=lambda seconds: 1e3 * seconds):
            seen = in_turns([*ours.values(), peer, *before], name, turns)
            (by, _), *older = seen[len(ours) :]
            for (how, _), (seconds, faults) in zip(ours.items(), seen):
                old_seconds, old_faults = older[0] if older else (None, None)
                old = None if old_seconds is None else convert(old_seconds)
                yield row(f"Python, {what}{how}", unit, convert(seconds), measure, convert(by), bounds, old)
                if peer is cplusplus:
                    faults_of = f"Python, {what}{how}, page faults of a call"
                    yield row(faults_of, "faults", faults, "one page fault", 1, {}, old_faults)

        texts = {"up": "68 MiB up", "down": "64 MiB down", **{str(size): f"{size}^3" for size in SIZES}}
        for name in [*map(str, SIZES), "up", "down"]:
            yield from beside(name, f"{texts[name]}, f32 inline, TCP", triton, "tritonclient", {"at_most": 1})
        for name in ("up", "down"):
            yield from beside(name, f"{texts[name]}, f32 inline, TCP", cplusplus, "the C++ client", {"at_most": 1.3})

        server = start([sys.executable, "-B", __file__, "flight-server", get_mib])
        flight = client("flight", f"127.0.0.1:{int(server.process.stdout.readline())}")
        what = f"Get of {get_mib} MiB over {LANES} connections"
        rate = {"unit": "GB/s", "convert": lambda seconds: get_mib * 1.048576e-3 / seconds}
        yield from beside("get", what, flight, "Arrow Flight", {"at_least": 1}, **rate)


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "flight-server":
        serve_flight(*arguments)
    else:
        answer({"gemmd": Gemmd, "triton": Triton, "flight": Flight}[role](*arguments))
