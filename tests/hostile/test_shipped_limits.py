# SPDX-License-Identifier: Apache-2.0
"""The memory limits that deploy ships, and all attacks on a daemon's memory at once within its
limit."""

import concurrent.futures
import contextlib
import pathlib
import re
import threading
import time

import grpc
import metrics_page
import pytest
from bystander import Bystander
from daemon import wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2
from half_sent import STREAMS, hold_half_sent_messages
from http2_peer import message, open_with_closed_windows
from tensors import Session

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
GEMMD_FLAGS = ("--devices=cpu",)
MIB = 1 << 20
GIB = 1 << 30


def constant(file, name):
    """A number of bytes in the sources: `name = int64_t{768} << 20`."""
    found = re.search(rf"\b{name} = int64_t{{(\d+)}} << (\d+)", (ROOT / "server" / file).read_text())
    return int(found.group(1)) << int(found.group(2))


STAGING = constant("device/devices.h", "gpu_staging_bytes")
INCIDENTS = constant("product/verification.h", "max_kept_bytes")
WARM = constant("device/held_bytes.h", "kKeptBytes")  # Of each device.
# A process with a CUDA context on an H200 has 121 MB resident, of which 91 MB belong to files;
# twice that, for the modules of kernels.
WORKER = 256 * MIB
# An idle daemon, which the timed run checks.
ITSELF = 128 * MIB
# Stacks of threads and arenas of malloc under load, which an idle daemon does not have.
THREADS = 256 * MIB
COMPOSE = r"mem_limit: \S+:-(\d+)g}"
SYSTEMD = r"MemoryMax=(\d+)G"
POD_LIMIT = r"limits:\s+cpu: \S+\s+memory: (\d+)Gi"
HELM_LIMIT = r"limits: .*memory: (\d+)Gi"


@pytest.mark.parametrize(
    "limits,limit,arguments,gpus",
    [
        ("compose.yaml", COMPOSE, "compose.yaml", 0),
        ("compose.gpu.yaml", COMPOSE, "compose.yaml", 4),
        ("systemd/gemmd.service", SYSTEMD, "systemd/gemmd.conf", 0),
        ("systemd/gemmd.service.d/gpu.conf", SYSTEMD, "systemd/gemmd.conf", 4),
        ("kubernetes/overlays/cpu/deployment.yaml", POD_LIMIT, "kubernetes/overlays/cpu/arguments.yaml", 0),
        ("kubernetes/overlays/gpu/deployment.yaml", POD_LIMIT, "kubernetes/overlays/gpu/arguments.yaml", 1),
        ("helm/gemmd/values.yaml", HELM_LIMIT, "helm/gemmd/values.yaml", 0),
        ("helm/gemmd/values_gpu.yaml", HELM_LIMIT, "helm/gemmd/values_gpu.yaml", 1),
    ],
)
def test_shipped_limits_have_a_margin(battery, limits, limit, arguments, gpus):
    """The admitted bytes, a quarter of the limit for gRPC's buffers, an eighth for resident
    tensors, operands of incidents, the memory that each device keeps, staging memory and worker of
    each GPU, and the daemon itself together fit into nine tenths of the limit. The other tests show
    that what is held is within a tenth of that."""
    limit_bytes = int(re.search(limit, (DEPLOY / limits).read_text()).group(1)) * GIB
    text = (DEPLOY / arguments).read_text()
    for name in ("tensor-bytes", "memory-quota-bytes", "gpu-staging-bytes"):
        assert name not in text, "they are not the defaults"
    queued_bytes = int(re.search(r"max(?:-q|Q)ueued(?:-b|B)ytes(?:=|: )(\d+)gb", text).group(1)) * GIB
    itself = ITSELF + THREADS
    devices = WARM + gpus * (STAGING + WARM + WORKER)
    most = queued_bytes + limit_bytes / 4 + limit_bytes / 8 + INCIDENTS + devices + itself
    battery.holds(f"deploy/{limits}", most=0.9 * limit_bytes / GIB, seen=most / GIB, unit="GiB")


@pytest.mark.timed
@pytest.mark.resident_memory
def test_an_idle_daemon_is_small(daemon, battery):
    battery.timed("an idle daemon", most=ITSELF / MIB, seen=daemon.rss_bytes() / MIB, unit="MiB resident")


def zeros_request(count):
    """A few bytes that ask for an answer of this size."""
    zeros = gemm_pb2.MultiplyRequest(m=1, n=count, k=0)
    zeros.a.type = zeros.b.type = zeros.d.type = ELEMENTS["s8"].number
    return zeros.SerializeToString()


def upload_products(daemon, is_over, size):
    """Long products one after the other, each on its own connection; returns how many were
    served."""
    request = gemm_pb2.MultiplyRequest(m=1, n=16, k=size // 4)
    # Every processor uses it unconverted: one without VNNI would widen s8 to eight times its bytes.
    request.a.type = request.b.type = ELEMENTS["f32"].number
    request.a.data, request.b.data = bytes(size), bytes(16 * size)
    body = request.SerializeToString()
    served = 0
    while not is_over.is_set():
        with grpc.insecure_channel(daemon.tcp, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            with contextlib.suppress(grpc.RpcError):
                channel.unary_unary("/gemmd.v1.Gemm/Multiply")(body, timeout=60)
                served += 1
    return served


def put_tensors(daemon, is_over, size):
    """Tensors until there is no room, in one session after the other; returns how many there
    were."""
    count = 0
    with grpc.insecure_channel(daemon.tcp, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        while not is_over.is_set():
            with contextlib.suppress(grpc.RpcError), Session(channel) as session:
                while not is_over.is_set():
                    session.put(bytes(size), hashed=False)
                    count += 1
    return count


def used(daemon):
    """The largest used fractions of the limits on admitted bytes and on tensors."""
    page = metrics_page.scrape(daemon)
    admitted = page.value("gemmd_admitted_bytes") / page.value("gemmd_admitted_bytes_limit")
    tensors = sum(value for _, value in page.with_labels("gemmd_tensor_bytes"))
    return admitted, tensors / page.value("gemmd_tensor_bytes_limit")


@pytest.mark.own_device  # A GPU's staging memory is resident, too.
@pytest.mark.resident_memory
def test_all_attacks_at_once(daemons, battery, is_timed):
    """With the default shares of 1 GiB, or of 256 MiB in a short run: long products, tensors,
    half-sent messages and unread answers, from many connections. None of the shares is exceeded,
    and resident memory never exceeds the limit."""
    part = 1 if is_timed else 4
    limit, answer = GIB // part, 32 * MIB // part
    seconds = 60 if battery.is_long else 8 if is_timed else 0
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu", f"--memory-limit-bytes={limit}")
    is_over = threading.Event()
    most = [(0, 0)]
    with Bystander(daemon) as bystander:
        daemon.forget_peak()
        with concurrent.futures.ThreadPoolExecutor(8) as pool, contextlib.ExitStack() as stack:
            stack.callback(is_over.set)
            products = [pool.submit(upload_products, daemon, is_over, 3 * MIB // part) for _ in range(4)]
            tensors = [pool.submit(put_tensors, daemon, is_over, 8 * MIB // part) for _ in range(2)]
            until = time.monotonic() + seconds
            # A slow machine takes several turns to fill as much as is demanded below.
            last = until + 300 if is_timed else until
            while (
                len(most) == 1
                or time.monotonic() < until
                or (time.monotonic() < last and daemon.peak_rss_bytes() < limit / 2)
            ):
                with contextlib.ExitStack() as turn:
                    hosts = [f"127.0.0.{i + 2}" for i in range(4)]  # One may have half of the room.
                    peers = [turn.enter_context(open_with_closed_windows(daemon.tcp, host)) for host in hosts]
                    for peer in peers:
                        for _ in range(3):
                            peer.send(peer.start(), message(zeros_request(answer)), end=True)
                    hold_half_sent_messages(daemon, turn, streams=STREAMS if is_timed else 1)
                    most.append(used(daemon))
            is_over.set()
            served = sum(attack.result() for attack in products)
            put = sum(attack.result() for attack in tensors)
        peak = daemon.peak_rss_bytes()
        attack = f"all at once, {served} products and {put} tensors served"
        for share, parts in zip(("admission", "tensors"), zip(*most)):
            battery.holds(f"{attack}: {share}", most=1, seen=max(parts), unit="of its share")
        battery.timed(attack, least=0.5 * limit / MIB, seen=peak / MIB, unit="MiB resident")
        battery.timed(attack, most=limit / MIB, seen=peak / MIB, unit="MiB resident")
        wait_until(bystander.is_served_with_room, 60, "others served")
        bystander.check()
