# SPDX-License-Identifier: Apache-2.0
"""Peers that try to use up the daemon's memory: how much they get is limited, and they are told so.
Resident memory is measured in the timed run, with more of everything; bytes that the daemon holds
or admits are counted in both."""

import concurrent.futures
import contextlib
import gzip
import math
import re
import resource
import threading
import time

import grpc
import metrics_page
import numpy as np
import pytest
from bystander import Bystander
from daemon import PATIENCE_S, wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from half_sent import CONNECTIONS, MESSAGE_BYTES, SENT_BYTES, STREAMS, hold_half_sent_messages
from http2_peer import Http2Peer, message
from product import Product
from small_product import multiply
from tensors import Session, bytes_spec, refusal

MIB = 1 << 20
# Such a small capacity that the bystander's probe of it does not matter for the measurement.
FLAGS = ["--lame-duck=1ms", "--max-queued-bytes=1000000"]

INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
UNAVAILABLE = 14

# The memory that malloc keeps in addition, and that of a bystander's requests.
MALLOC_SLACK = 24 * MIB


def admitted_bytes(daemon):
    return metrics_page.scrape(daemon).value("gemmd_admitted_bytes")


@pytest.mark.resident_memory
def test_half_sent_messages_with_a_quota(daemons, battery, is_timed):
    """At most the quota is kept for them, plus one message per connection, since a read that has
    begun continues. A peer that sends more loses calls and learns why; others are served, though
    gRPC may make them reconnect."""
    quota, streams = (384 * MIB, STREAMS) if is_timed else (96 * MIB, 6)
    daemon = daemons.start(*FLAGS, f"--memory-quota-bytes={quota}")
    with Bystander(daemon) as bystander:
        before = daemon.forget_peak()
        with contextlib.ExitStack() as stack:
            calls, taken = hold_half_sent_messages(daemon, stack, streams)
            # Later releases of gRPC refuse calls while their buffers are full, and close connections of
            # those that fill them.
            is_later = daemon.grpc_version() >= (1, 65)
            may_be_told = {grpc.StatusCode.UNAVAILABLE, *([grpc.StatusCode.RESOURCE_EXHAUSTED] * is_later)}

            def is_served():
                try:
                    bystander.check_served()
                except grpc.RpcError as refused:
                    assert refused.code() in may_be_told, refused
                    return False
                return True

            wait_until(is_served, PATIENCE_S, "others served")
            grown = daemon.peak_rss_bytes() - before

            def lost():
                # A call that took longer may have room for more.
                calls.extend(hold_half_sent_messages(daemon, stack, streams=1)[0])
                for peer, _ in calls:
                    peer.receive(0)
                return [peer.answers[stream] for peer, stream in calls if peer.is_over(stream)]

            attack = f"{taken >> 20} MiB of half-sent messages"
            answers = wait_until(lost, PATIENCE_S, "calls lost")
        most = 1.1 * (quota + CONNECTIONS * MESSAGE_BYTES)
        battery.timed(attack, most=most / MIB, seen=grown / MIB, unit="MiB kept")
        battery.holds(attack, least=1, seen=len(answers), unit="calls lost")
        assert {answer.status for answer in answers} <= {RESOURCE_EXHAUSTED, None, *([UNAVAILABLE] * is_later)}
        bystander.check()


@pytest.mark.resident_memory
def test_half_sent_messages_without_a_quota(daemons, battery, is_timed):
    """The control: without the quota, everything that was sent is taken and kept."""
    daemon = daemons.start(*FLAGS, "--memory-quota-bytes=64GiB")
    with Bystander(daemon) as bystander:
        before = daemon.forget_peak()
        with contextlib.ExitStack() as stack:
            calls, taken = hold_half_sent_messages(daemon, stack, STREAMS if is_timed else 6, limit_s=PATIENCE_S)
            grown = daemon.peak_rss_bytes() - before
        attack = f"{taken >> 20} MiB of half-sent messages, without a quota"
        sent = len(calls) * (SENT_BYTES + 5)
        battery.holds(attack, least=sent / MIB, seen=taken / MIB, unit="MiB taken")
        battery.timed(attack, least=0.9 * taken / MIB, seen=grown / MIB, unit="MiB kept")
        bystander.check()


def test_gzip_bomb(daemons, battery, is_sanitized):
    """A message of 64 MiB compressed to 64 KB is refused before it is decompressed."""
    bomb = gzip.compress(bytes(64 * MIB))
    assert len(bomb) < MIB // 8
    daemon = daemons.start(*FLAGS)
    with Bystander(daemon) as bystander:
        before = daemon.forget_peak()
        refused = 0
        with Http2Peer(daemon.tcp) as peer:
            for name in ("gzip", "deflate", "identity", "nonsense"):
                stream = peer.start(headers=[("grpc-encoding", name)])
                peer.send(stream, message(bomb, flags=1), end=True)
                # The last two are not decompressed, and are not valid messages either. Later releases of
                # gRPC reset a stream whose encoding has no name that they know.
                answer = peer.wait(stream)
                is_reset = answer.status is None and answer.reset is not None
                refused += answer.status in (UNIMPLEMENTED, INVALID_ARGUMENT) or is_reset
        bystander.check()
        grown = daemon.peak_rss_bytes() - before
    most = math.inf if is_sanitized else MALLOC_SLACK
    battery.holds("64 MiB in 64 KB, by four names of an encoding: refused", least=4, seen=refused)
    battery.timed("64 MiB in 64 KB of gzip", most=most / MIB, seen=grown / MIB, unit="MiB at the peak")


def test_messages_over_the_limit(daemons, battery):
    daemon = daemons.start(
        "--lame-duck=1ms", "--max-message-bytes=1MiB", "--max-queued-bytes=1000000"
    )
    with Bystander(daemon) as bystander:
        before = daemon.forget_peak()
        refused = 0
        with Http2Peer(daemon.tcp) as peer:
            for size in (MIB + 1, 8 * MIB):
                stream = peer.start()
                peer.send(stream, message(bytes(size)), end=True)
                refused += peer.wait(stream).status == RESOURCE_EXHAUSTED
            # At the maximum length: refused for its contents, not for its length.
            stream = peer.start()
            peer.send(stream, message(b"\x0a\x01" * (MIB // 2)), end=True)
            assert peer.wait(stream).status != RESOURCE_EXHAUSTED
        bystander.check()
        grown = daemon.peak_rss_bytes() - before
    battery.holds("messages of 1 and 8 MiB where 1 MiB may be: refused", least=2, seen=refused)
    # Twice the message, plus a bystander's requests.
    battery.timed("a message of 8 MiB where 1 MiB may be", most=16, seen=grown / MIB, unit="MiB at the peak")


@pytest.mark.resident_memory
def test_a_message_declared_far_over_the_limit(daemons, battery, is_timed):
    """gRPC checks a length only once it has the whole message; until then the quota limits it."""
    quota, size = (256 * MIB, 800 * MIB) if is_timed else (64 * MIB, 200 * MIB)
    flags = [
        "--max-message-bytes=1MiB",
        "--max-queued-bytes=1000000",
        f"--memory-quota-bytes={quota}",
    ]
    daemon = daemons.start("--lame-duck=1ms", *flags)
    with Bystander(daemon) as bystander:
        before = daemon.forget_peak()
        with Http2Peer(daemon.tcp) as peer:
            stream = peer.start()
            taken = peer.send(stream, message(bytes(size), declared=3 << 30), limit_s=0.5)
            wait_until(bystander.is_served, PATIENCE_S, "others served")
        grown = daemon.peak_rss_bytes() - before
        attack = f"{size >> 20} MiB of a message declared as 3 GiB"
        # Plus what is in the buffers of the system.
        battery.holds(attack, most=(1.1 * quota + 16 * MIB) / MIB, seen=taken / MIB, unit="MiB taken")
        battery.timed(attack, most=1.1 * quota / MIB, seen=grown / MIB, unit="MiB at the peak")
        bystander.check()


@pytest.mark.resident_memory
def test_attacks_again_and_again_keep_nothing(daemons, battery, is_timed):
    """After some rounds to warm up, further rounds of the same attacks keep nothing. Each moves
    about 200 MB through the daemon in 100 calls that are broken off; of the 500 between those
    compared, one kept in forty would show. (The sanitizer finds smaller leaks.)"""
    daemon = daemons.start("--lame-duck=1ms", "--max-queued-bytes=32MiB")
    body = Product(a=np.ones((1, 500, 500)), b=np.ones((1, 500, 500))).request()
    sent = message(body.SerializeToString())
    with Bystander(daemon) as bystander:

        def attack():
            for _ in range(4):
                with contextlib.ExitStack() as stack:
                    peers = [stack.enter_context(Http2Peer(daemon.tcp)) for _ in range(20)]
                    for turn, peer in enumerate(peers):
                        part = sent if turn % 2 else sent[:-1]
                        peer.send(peer.start(), part, end=part == sent)
            with grpc.insecure_channel(daemon.tcp) as channel:
                stub = gemm_pb2_grpc.GemmStub(channel)
                for call in [stub.Multiply.future(body, timeout=PATIENCE_S) for _ in range(20)]:
                    call.cancel()
            bystander.check()

        sizes = []
        for _ in range(8 if is_timed else 2):
            attack()
            sizes.append(daemon.rss_bytes())
        print([size >> 20 for size in sizes])
        growth = min(sizes[-3:]) - max(sizes[:3])
        attack = "messages broken off, again and again"
        # A product is released a moment after its answer.
        wait_until(lambda: admitted_bytes(daemon) == 0, PATIENCE_S, "nothing is admitted")
        battery.holds(attack, most=0, seen=admitted_bytes(daemon), unit="bytes admitted")
        battery.timed(attack, most=MALLOC_SLACK / MIB, seen=growth / MIB, unit="MiB kept in five rounds")


@contextlib.contextmanager
def max_admitted_bytes(daemon):
    """A list of one number: the maximum that the daemon reported meanwhile."""
    most, is_over = [0], threading.Event()

    def look():
        while not is_over.wait(0.01):
            most[0] = max(most[0], admitted_bytes(daemon))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()


@pytest.mark.resident_memory
@pytest.mark.own_device  # A GPU's staging memory is resident, too.
def test_long_uploads_at_once(daemons, battery, is_timed):
    """Their peak is within the limit for admitted bytes and messages in transit, and nothing of it
    stays."""
    queued, quota, count, unit = (384 * MIB, 128 * MIB, 64, MIB) if is_timed else (96 * MIB, 32 * MIB, 16, MIB // 4)
    flags = [f"--max-queued-bytes={queued}", f"--memory-quota-bytes={quota}"]
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu", "--max-queued-requests=64", *flags)
    # Of f32, which every processor uses unconverted.
    request = gemm_pb2.MultiplyRequest(m=1, n=16, k=3 * unit // 4)
    request.a.type = request.b.type = ELEMENTS["f32"].number
    request.a.data, request.b.data = bytes(3 * unit), bytes(48 * unit)
    body = request.SerializeToString()
    options = [("grpc.use_local_subchannel_pool", 1)]
    before = daemon.forget_peak()
    with contextlib.ExitStack() as stack:
        admitted = stack.enter_context(max_admitted_bytes(daemon))
        channels = [grpc.insecure_channel(daemon.tcp, options=options) for _ in range(count)]
        methods = [
            stack.enter_context(channel).unary_unary("/gemmd.v1.Gemm/Multiply")
            for channel in channels
        ]
        codes = [call.code() for call in [method.future(body, timeout=600) for method in methods]]
    grown = daemon.peak_rss_bytes() - before
    # All of which may be retried. gRPC closes connections when its quota is used up.
    refusals = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    assert set(codes) <= {grpc.StatusCode.OK} | refusals
    attack = f"{count} uploads of {len(body) // MIB} MiB at once"
    battery.holds(attack, least=1, seen=codes.count(grpc.StatusCode.OK), unit="served")
    battery.holds(attack, most=queued / MIB, seen=admitted[0] / MIB, unit="MiB admitted")
    bound = queued + quota
    battery.timed(attack, most=1.1 * bound / MIB, seen=grown / MIB, unit="MiB")
    wait_until(lambda: admitted_bytes(daemon) == 0, PATIENCE_S, "nothing is admitted")
    if is_timed:
        # Each 250 ms it checks what it can give back; gRPC takes a while to notice that peers have
        # gone.
        end = time.monotonic() + 15
        while daemon.rss_bytes() - before > 0.1 * bound and time.monotonic() < end:
            time.sleep(0.25)
        kept_bytes = daemon.rss_bytes() - before
        battery.timed(f"{attack}, afterwards", most=0.1 * bound / MIB, seen=kept_bytes / MIB, unit="MiB kept")


# The memory that the daemon may use beyond what it has when it is ready: for threads and gRPC's own
# messages.
SHORT_ROOM = 320 * MIB
SHORT_RESULT = 208 * MIB  # There is room for one of these.
SHORT_FLAGS = [
    "--lame-duck=1ms",
    "--devices=cpu,sim:sm_90",
    "--max-queued-bytes=64GiB",
    "--tensor-bytes=64GiB",
    "--memory-limit-bytes=256GiB",
    "--memory-quota-bytes=128MiB",
]


def large_result(device, bytes_wanted):
    """A few bytes that ask for a D of this size."""
    request = gemm_pb2.MultiplyRequest(m=1, n=bytes_wanted // 4, k=0, device=device)
    request.a.type = request.b.type = ELEMENTS["f16"].number
    request.accumulation_type = request.d.type = ELEMENTS["f32"].number
    return request


def code_of(call, *arguments):
    try:
        call(*arguments)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.resident_memory
def test_a_daemon_without_more_memory(daemons, battery, is_timed):
    """The system gives it no memory, although its account has room: all requests are refused, and
    it survives."""
    # If addresses are limited, memory that workers share counts, too.
    daemon = daemons.start(*SHORT_FLAGS, address_space=1536 * MIB)
    multiply(daemon.tcp)
    with open(f"/proc/{daemon.pid}/status") as status:
        size = int(re.search(r"VmSize:\s+(\d+) kB", status.read()).group(1)) << 10
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (size + SHORT_ROOM, size + SHORT_ROOM))
    options = [("grpc.max_receive_message_length", -1)]
    codes = []
    with grpc.insecure_channel(daemon.tcp, options) as channel, concurrent.futures.ThreadPoolExecutor(16) as pool:
        stub = gemm_pb2_grpc.GemmStub(channel)

        def product(device):
            return code_of(lambda: stub.Multiply(large_result(device, SHORT_RESULT), timeout=600))

        def stream(device):
            requests = gemm_pb2.MultiplyStreamRequest(requests=[large_result(device, SHORT_RESULT)] * 4)
            answers = [one for joint in stub.MultiplyStream(iter([requests]), timeout=600) for one in joint.answers]
            assert len(answers) == 4
            return [grpc.StatusCode.RESOURCE_EXHAUSTED for one in answers if one.error.code == 8]

        devices = ["cpu", "sim:sm_90"] * (6 if is_timed else 3)
        codes += pool.map(product, devices)
        for refusals in pool.map(stream, devices[: 4 if is_timed else 2]):
            codes += refusals
        with Session(channel) as session:
            upload = session.put_stream()
            begun = refusal(upload.begin, bytes_spec(8 << 30))
            codes.append(begun[0])
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
    refused = codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
    battery.holds("products and uploads without memory", least=3, seen=refused, unit="refused")
    begun_s = time.monotonic()
    multiply(daemon.tcp)
    battery.timed("a small product afterwards", most=10, seen=time.monotonic() - begun_s, unit="s")
