# SPDX-License-Identifier: Apache-2.0
"""More work than the daemon can do: those whose answers can come in time get them, the rest is told at
once."""

import statistics

import pytest
from gemmd.v1 import gemm_pb2_grpc
from http2_peer import MULTIPLY
from open_loop import (
    HAS_ROOM,
    OK,
    RESOURCE_EXHAUSTED,
    OpenLoop,
    closed_loop,
    open_channel,
    p99,
    product_of,
)

MIB = 1 << 20
FLAGS = ["--lame-duck=1ms", "--devices=cpu", "--cpu-threads=1"]


def pytest_generate_tests(metafunc):
    # With deadlines of a minute --max-backlog decides, and it takes a minute to come to that.
    if "deadline_s" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("--long")
        metafunc.parametrize("deadline_s", [0.3, 1, 60] if is_long else [0.3, 1])


def check_goodput(battery, name, loop, peak, is_sanitized):
    """A daemon that looks at nothing but the deadline has 0.13 and less left."""
    # On two cores the calls themselves take from what computes, and from what hands it the next.
    least = 0.95 if HAS_ROOM and not is_sanitized else 0.75 if is_sanitized else 0.9
    share = loop.served.share / peak.share
    battery.holds(f"{name}: time for answers", least=least, seen=share, unit="of the peak")
    if HAS_ROOM and not is_sanitized:
        rate = loop.served.per_s / peak.per_s
        battery.holds(f"{name}: goodput", least=least, seen=rate, unit="of the peak")


def test_goodput_under_overload(daemons, battery, is_sanitized, deadline_s):
    """The daemon works for callers who get their answers before their deadlines."""
    daemon = daemons.start(*FLAGS)
    with open_channel(daemon.tcp) as channel:
        request = product_of(gemm_pb2_grpc.GemmStub(channel), seconds=0.04)
    seconds = max(20, deadline_s) if battery.is_long else 3
    peak = closed_loop(daemon.tcp, request, callers=3, seconds=3)
    for times in (1.2, 2, 10) if battery.is_long else (5,):
        loop = OpenLoop(daemon.tcp, request, times * peak.per_s, seconds, deadline_s)
        name = f"{times}x the load, deadlines of {deadline_s} s"
        check_goodput(battery, name, loop, peak, is_sanitized)
        assert loop.has_pushback
        if not loop.refusal_s:
            # A minute's deadline leaves room for what comes too much in a minute, but ten times as much.
            has_time = times == 1.2 or (deadline_s == 60 and times == 2)
            assert has_time or not HAS_ROOM, "nobody was refused"
            continue
        # At twenty times what is wanted of an idle machine; without refusals it is the deadline.
        most = 5 if HAS_ROOM and not is_sanitized else 100
        seen = (p99(loop.refusal_s) if HAS_ROOM else statistics.median(loop.refusal_s)) * 1e3
        battery.holds(f"{name}: a refusal", most=most, seen=seen, unit="ms")


@pytest.mark.resident_memory
def test_overload_by_bytes(daemons, battery):
    """Three times the load, from callers with all the time in the world, of whose products few fit into
    what may be admitted: those wait for few others, and the rest takes no memory."""
    queued, quota = 16 * MIB, 64 * MIB
    limits = [f"--max-queued-bytes={queued}", f"--memory-quota-bytes={quota}", "--max-backlog=1h"]
    daemon = daemons.start(*FLAGS, *limits)
    with open_channel(daemon.tcp) as channel:
        request = product_of(gemm_pb2_grpc.GemmStub(channel), seconds=0.04)
        d_bytes = len(channel.unary_unary(MULTIPLY)(request.SerializeToString(), timeout=60))
    peak = closed_loop(daemon.tcp, request, callers=3, seconds=3)
    before = daemon.peak_rss_bytes()
    loop = OpenLoop(daemon.tcp, request, 3 * peak.per_s, 60 if battery.is_long else 6, deadline_s=300)
    name = "3x the load in bytes"
    check_goodput(battery, name, loop, peak, is_sanitized=False)
    places = queued // (request.ByteSize() + d_bytes)
    most = 3 * (places + 1) * loop.answers.median_s()
    battery.holds(f"{name}: p99 of the admitted", most=most, seen=p99(loop.answer_s), unit="s")
    grown = (daemon.peak_rss_bytes() - before) / MIB
    battery.holds(f"{name}: memory", most=1.1 * (queued + quota) / MIB, seen=grown, unit="MiB")
    assert set(loop.codes) == {OK, RESOURCE_EXHAUSTED} and loop.has_pushback
