# SPDX-License-Identifier: Apache-2.0
"""A reader of the log, or a missing one, neither ends nor blocks the daemon, and the log lines that
peers can cause are limited."""

import collections
import json
import os
import signal
import subprocess
import threading
import time

import grpc
import numpy as np
import pytest
from daemon import PATIENCE_S, parse_log_line, wait_until
from gemmd.v1 import gemm_pb2_grpc
from http2_peer import MULTIPLY, Http2Peer, message
from product import Product
from small_product import SMALL, multiply

DEADLINE_S = PATIENCE_S


def multiply_many(address, count):
    """Each leaves about 900 bytes in a log of level debug. Returns the longest time of one."""
    slowest = 0
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)
        for number in range(count):
            request = SMALL.request()
            request.request_id = f"{number}" + 120 * "\x01"
            start = time.monotonic()
            stub.Multiply(request, timeout=DEADLINE_S)
            slowest = max(slowest, time.monotonic() - start)
    return slowest


@pytest.fixture
def piped(gemmd, tmp_path):
    """A daemon whose standard error is a pipe that the test may read."""
    started = []

    def start(*flags):
        ready = tmp_path / "ready"
        process = subprocess.Popen(
            [gemmd, "--listen=127.0.0.1:0", f"--ready-file={ready}", "--lame-duck=1ms", *flags],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        wait_until(lambda: ready.exists() or process.poll() is not None, DEADLINE_S, "gemmd ready")
        assert process.poll() is None
        return process, ready.read_text().strip()

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.stderr.close()
        process.wait()


def test_the_reader_of_the_log_goes_away(piped, battery):
    process, address = piped("--log-level=debug")
    process.stderr.close()
    for _ in range(20):
        multiply(address)
    process.send_signal(signal.SIGTERM)
    battery.holds("reader of the log gone: exit code", most=0, seen=abs(process.wait(DEADLINE_S)))


def test_the_reader_of_the_log_stands_still(piped, battery, is_sanitized):
    """A pipe buffers 64 KiB. At its end the daemon waits a second for the reader."""
    process, address = piped("--log-level=debug")
    slowest = multiply_many(address, 300)
    # A call takes milliseconds; one that waited for the reader would take until its deadline.
    battery.timed("reader of the log stands still: slowest call", most=20, seen=slowest, unit="s")
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait(DEADLINE_S)
    battery.holds("reader of the log stands still: exit code", most=0, seen=abs(code))
    battery.timed(
        "reader of the log stands still: exit", most=30 if is_sanitized else 15, seen=time.monotonic() - start, unit="s"
    )
    whole = process.stderr.read().decode().rsplit("\n", 1)[0]
    for line in whole.splitlines():
        parse_log_line(line)


def test_the_reader_of_the_log_comes_back(piped, battery):
    """It learns how many lines it missed. The daemon buffers 1 MiB for it."""
    process, address = piped("--log-level=debug")
    multiply_many(address, 2000)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(process.stderr))
    reader.start()
    wait_until(lambda: len(lines) > 50, DEADLINE_S, "lines that were kept")
    multiply(address, request_id="after")
    # The daemon's end does not wait long for a reader.
    wait_until(lambda: any(b"id=after" in line for line in lines[-10:]), DEADLINE_S, "the last line")
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    reader.join(DEADLINE_S)
    parsed = [parse_log_line(line.decode().rstrip("\n")) for line in lines]
    requests = [line for line in parsed if line["event"] == "request"]
    [lost] = [line for line in parsed if line["event"] == "log_lines_lost"]
    assert int(lost["lines"]) > 0
    missed = abs(2001 - len(requests) - int(lost["lines"]))
    battery.holds("reader of the log comes back: lines missed and not counted", most=0, seen=missed)
    assert requests[-1]["id"] == "after"
    parsed.remove(lost)
    assert parsed[-1]["event"] == "stop"


def test_protobuf_writes_into_the_log(daemons, battery):
    """A string that is not UTF-8 makes protobuf complain, with the name of the field."""
    daemon = daemons.start("--lame-duck=1ms")
    request = SMALL.request()
    request.request_id = "@@@@"
    broken = request.SerializeToString().replace(b"@@@@", b"\xff\xfe\n\xff")
    with Http2Peer(daemon.tcp) as peer:
        stream = peer.start(MULTIPLY)
        peer.send(stream, message(broken), end=True)
        assert peer.wait(stream).status not in (None, 0)
    daemon.stop()
    complaints = daemon.events("protobuf")  # Which parses every line.
    battery.holds("text that is no UTF-8: protobuf's lines in the log", least=1, seen=len(complaints))
    assert {line["level"] for line in complaints} == {"warning"}
    assert "request_id" in complaints[0]["message"]


def test_the_log_as_json(daemons, battery):
    daemon = daemons.start("--lame-duck=1ms", "--log-level=debug", "--log-format=json")
    multiply(daemon.tcp, request_id='12 "\n\u00e4')
    multiply(daemon.tcp, request_id="12")
    daemon.stop()
    lines = [json.loads(line) for line in daemon.stderr().splitlines()]
    poor = sum(not {"time", "level", "event"} <= line.keys() for line in lines)
    battery.holds("log as JSON: lines without time, level or event", most=0, seen=poor)
    [start] = [line for line in lines if line["event"] == "start"]
    assert isinstance(start["pid"], int) and start["pid"] == daemon.pid
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["id"] for line in requests] == ['12 "\n\u00e4', "12"]
    assert all(isinstance(line["total_ns"], int) for line in requests)
    assert requests[0]["status"] == "OK"


def stop_worker(daemon):
    """The daemon's watchdog kills it after two seconds."""
    [worker] = wait_until(daemon.gpu_workers, DEADLINE_S, "a worker")
    os.kill(worker, signal.SIGSTOP)


def test_failures_that_repeat_are_logged_at_a_limited_rate(daemons, battery):
    """A worker is lost while many products wait for it, each of which fails for the same reason."""
    daemon = daemons.start(
        "--lame-duck=1ms",
        "--devices=cuda:0,cpu",
        "--max-queued-requests=4096",
        "--max-concurrent-streams=4096",
    )
    product = Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)), a_type="f16", b_type="f16")
    request = product.request()
    request.device = "cuda:0"
    failed = 0
    with grpc.insecure_channel(daemon.tcp, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = gemm_pb2_grpc.GemmStub(channel)

        def have_failed():
            nonlocal failed
            stop_worker(daemon)
            calls = [stub.Multiply.future(request, timeout=DEADLINE_S) for _ in range(1000)]
            failed += sum(call.code() != grpc.StatusCode.OK for call in calls)
            return failed > 300

        # If the worker is replaced before this process has sent most of them, the new one serves
        # the rest.
        wait_until(have_failed, 10 * DEADLINE_S, "many products fail")
    daemon.stop()
    lines = [line for line in daemon.log() if line["level"] in ("warning", "error")]
    # The first ten of each kind in each second, and the summaries.
    seconds = collections.Counter(line["time"][: len("2024-01-01T00:00:00")] for line in lines)
    battery.holds("failures that repeat: lines of warnings in one second", most=100, seen=max(seconds.values()))
    told = sum(int(line["suppressed"]) for line in lines if line["event"] == "lines_suppressed")
    written = sum(line["event"] == "request" for line in lines)
    battery.holds("failures that repeat: told of without a line of their own", least=1, seen=told)
    assert written + told <= failed
