# SPDX-License-Identifier: Apache-2.0
"""Messages of a stream that contain many products: full messages keep no thread of gRPC's from
others, and take no more memory than as many separate messages."""

import contextlib
import time

import metrics_page
import numpy as np
import pytest
from bystander import Bystander
from daemon import PATIENCE_S, wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from http2_peer import (
    MULTIPLY_STREAM,
    Http2Peer,
    joint_bytes,
    message,
    open_with_closed_windows,
)
from kserve.v2 import inference_pb2
from product import Product
from streams import answers_in, joint

MIB = 1 << 20
DEADLINE_S = PATIENCE_S
GEMMD_FLAGS = [
    "--devices=cpu",
    "--metrics-listen=127.0.0.1:0",
    "--max-queued-bytes=64MiB",
]
PRODUCTS = 256  # The most in one message.
# At most so many on a stream whose client does not read: 4 KiB of refusals, then one batch of 64.
MOST_REFUSED = 96
LONGEST_NAME = 128
# A handler's clock also runs while its thread waits for a processor on a busy machine, so each
# message is tried this often, and the smallest of the longest times counts.
ROUNDS = 5
INVALID_ARGUMENT = 3


def full_messages():
    """Description and message, with the maximum number of products."""
    small = Product(a=np.ones((1, 2, 2)), b=np.ones((1, 2, 2))).request()
    unknown = gemm_pb2.MultiplyRequest()
    unknown.CopyFrom(small)
    unknown.kernel = "x" * LONGEST_NAME
    yield "small products", [small] * PRODUCTS
    yield "unknown kernels", [unknown] * PRODUCTS
    # 15 KiB each, which are copied.
    large = Product(a=np.ones((1, 40, 40)), b=np.ones((1, 40, 40))).request()
    yield "copied operands", [large] * PRODUCTS
    yield "unreadable products", [gemm_pb2.MultiplyRequest(m=-1)] * PRODUCTS


def test_no_message_of_products_holds_a_thread_for_long(attacked, channel, battery, is_sanitized, is_timed):
    gemm = gemm_pb2_grpc.GemmStub(channel)
    longest = {}
    answered = []
    for name, requests in full_messages():
        seen = []
        for _ in range(ROUNDS if is_timed else 1):
            before = metrics_page.scrape(attacked.daemon)
            answers = answers_in(gemm.MultiplyStream(joint(requests, PRODUCTS), timeout=DEADLINE_S))
            answered.append(len(list(answers)))
            # A handler is timed once it has ended, which may be after its answers.
            times = wait_until(
                lambda before=before: metrics_page.longest_handler_ms(
                    metrics_page.scrape(attacked.daemon), before
                ),
                PATIENCE_S,
                f"{name} timed",
            )
            seen.append(times["MultiplyStream"])
            if seen[-1] <= 5:
                break
        longest[name] = min(seen)
    print(longest)
    slowest = max(longest, key=longest.get)
    most = 20 if is_sanitized else 5
    battery.holds(f"messages of {PRODUCTS} products: answers to each", least=PRODUCTS, seen=min(answered))
    battery.timed(f"a message of {PRODUCTS} {slowest}", most=most, seen=longest[slowest], unit="ms")


def test_messages_beyond_the_bounds_end_their_stream(attacked):
    small = gemm_pb2.MultiplyRequest(m=-1).SerializeToString()
    large = gemm_pb2.MultiplyRequest(a={"data": bytes(5 * MIB)}).SerializeToString()
    for body in (
        joint_bytes(*[small] * (PRODUCTS + 1)),
        joint_bytes(large, small),
        joint_bytes(small) + b"\xfa\x01\xff\xff\x03" + bytes(65535),  # An unknown field.
        joint_bytes(small)[:-1],
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff" * 100,
    ):
        with Http2Peer(attacked.daemon.tcp) as peer:
            stream = peer.start(MULTIPLY_STREAM)
            peer.send(stream, message(body))
            assert peer.wait(stream).status == INVALID_ARGUMENT
    attacked.check_served()


def refusals(daemon):
    return sum(v for _, v in metrics_page.scrape(daemon).with_labels("gemmd_refusals_total"))


def test_refusals_that_nobody_reads_take_little(daemons, battery, is_timed):
    """Refused products, in messages that are as full as possible: no more are refused while 4 KiB
    of refusals wait. In the timed run, two hundred thousand of them."""
    daemon = daemons.start("--lame-duck=1ms", *GEMMD_FLAGS)
    body = message(joint_bytes(*[b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] * PRODUCTS))
    streams = 80 if is_timed else 10
    with Bystander(daemon) as bystander:
        before, refused_before = daemon.rss_bytes(), refusals(daemon)
        with open_with_closed_windows(daemon.tcp) as peer:
            calls = [peer.start(MULTIPLY_STREAM) for _ in range(streams)]
            for _ in range(10):
                for call in calls:
                    peer.send(call, body, limit_s=0.2)
            wait_until(lambda: refusals(daemon) - refused_before >= MOST_REFUSED // 3 * streams, PATIENCE_S, "as many read")
            wait_until(bystander.is_served, PATIENCE_S, "others served")
            kept = daemon.rss_bytes() - before
            refused = refusals(daemon) - refused_before
        attack = f"refusals on {streams} streams that nobody reads"
        battery.holds(attack, most=MOST_REFUSED, seen=refused / streams, unit="of 2560 on each")
        # Each keeps its refusals, of 120 bytes each, in addition to what a call takes.
        most = streams * (MOST_REFUSED * 256 + (64 << 10)) + 24 * MIB
        battery.timed(attack, most=most / MIB, seen=kept / MIB, unit="MiB")
        bystander.check()


def infer_refused():
    """A message of KServe's stream that is refused."""
    return message(inference_pb2.ModelInferRequest(model_name="none", id="i" * LONGEST_NAME).SerializeToString())


def joint_refused():
    refused = gemm_pb2.MultiplyRequest(m=-1, request_id="i" * LONGEST_NAME).SerializeToString()
    return message(joint_bytes(*[refused] * PRODUCTS))


@pytest.mark.parametrize(
    "path,body,count",
    [
        (MULTIPLY_STREAM, joint_refused(), 20),
        (MULTIPLY_STREAM, message(joint_bytes(b"\x08\xff")), 2000),
        ("/inference.GRPCInferenceService/ModelStreamInfer", infer_refused(), 2000),
    ],
)
def test_a_stream_that_nobody_reads_is_read_no_further(daemons, battery, path, body, count):
    """Thousands of refused products: while 4 KiB of refusals wait, nothing is started, and what was
    begun together until then is at most 64 products."""
    daemon = daemons.start("--lame-duck=1ms", "--send-timeout=10m", *GEMMD_FLAGS)
    with open_with_closed_windows(daemon.tcp) as peer:
        peer.send(peer.start(path), count * body, limit_s=1)
        wait_until(lambda: refusals(daemon) >= MOST_REFUSED // 8, DEADLINE_S, "read until answers wait")
        seen, before = refusals(daemon), 0
        while before < seen <= MOST_REFUSED:
            time.sleep(1)
            seen, before = refusals(daemon), seen
        battery.holds(f"unread refusals of products in messages of {len(body)} bytes", most=MOST_REFUSED, seen=seen)


@pytest.mark.timed
@pytest.mark.resident_memory
@pytest.mark.own_device  # A GPU's staging memory is resident, too.
def test_products_that_have_not_begun(daemons, battery):
    """Messages of many products that arrive at once: until the products begin, their bytes are what
    gRPC has received, for which there is a quota."""
    quota = 64 * MIB
    flags = ["--max-queued-bytes=1000000", f"--memory-quota-bytes={quota}"]
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu", *flags)
    product = gemm_pb2.MultiplyRequest(m=1, n=1, k=4000)
    product.a.type = product.b.type = ELEMENTS["s8"].number
    product.a.data = product.b.data = bytes(4000)
    body = message(joint_bytes(*[product.SerializeToString()] * PRODUCTS))
    with Bystander(daemon) as bystander, contextlib.ExitStack() as stack:
        before = daemon.peak_rss_bytes()
        peers = [stack.enter_context(Http2Peer(daemon.tcp)) for _ in range(20)]
        calls = [(peer, peer.start(MULTIPLY_STREAM)) for peer in peers for _ in range(10)]
        # All but the end of each, and then all ends.
        for peer, stream in calls:
            peer.send(stream, body[:-100], limit_s=0.2)
        for peer, stream in calls:
            peer.send(stream, body[-100:], limit_s=0.2)
        wait_until(bystander.is_served_with_room, PATIENCE_S, "others served")
        grown = daemon.peak_rss_bytes() - before
    most = quota + len(peers) * len(body) + 24 * MIB
    battery.timed("400 MiB of joint messages at once", most=most / MIB, seen=grown / MIB, unit="MiB")
