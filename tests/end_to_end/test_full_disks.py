# SPDX-License-Identifier: Apache-2.0
"""Disks without room for the files that the daemon writes: products go on, what is lost is counted, and the log says
so once. A limit on the size of files takes the place of a disk that is full, and room again when it is lifted.
tests/end_to_end/test_caller_files.py has the audit log, tests/server/system/ready_file_test.cc the ready file."""

import contextlib
import json
import resource
import signal

import grpc
import numpy as np
from bystander import DEADLINE_S
from daemon import PATIENCE_S, wait_until
from gemmd.v1 import gemm_pb2_grpc
from metrics_page import scrape
from product import Product, check_bytes

COUNT = 20
FLAGS = ["--devices=cpu", "--lame-duck=1ms", "--metrics-listen=127.0.0.1:0"]


def multiply(daemon, count=COUNT):
    """Products whose operands are copied to the worker, so that they need no file."""
    product = Product(a=np.ones((1, 8, 8)), b=np.ones((1, 8, 8)))
    with grpc.insecure_channel(daemon.tcp) as channel:
        for _ in range(count):
            check_bytes(gemm_pb2_grpc.GemmStub(channel).Multiply(product.request(), timeout=DEADLINE_S).d, product)


@contextlib.contextmanager
def files_limited_to(daemon, size):
    before = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    yield
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, before)


def spans(daemon, outcome):
    return scrape(daemon).value("gemmd_trace_spans_total", outcome=outcome)


def test_a_disk_of_spans_that_is_full_for_a_while(daemons, tmp_path):
    path = tmp_path / "traces"
    daemon = daemons.start(*FLAGS, f"--traces={path}:1")
    multiply(daemon)
    for turn in range(2):
        wait_until(lambda: spans(daemon, "written") > 0, PATIENCE_S, "the first are written")
        # Room for a part of a line.
        with files_limited_to(daemon, path.stat().st_size + 100):
            before = spans(daemon, "lost")
            multiply(daemon)
            wait_until(lambda lost=before: spans(daemon, "lost") >= lost + COUNT, PATIENCE_S, "all are counted")
        before = spans(daemon, "written")
        multiply(daemon)
        wait_until(lambda written=before: spans(daemon, "written") >= written + COUNT, PATIENCE_S, "room again")
        wait_until(lambda n=turn: len(daemon.events("lines_lost")) == n + 1, PATIENCE_S, "told once for each time")
    daemon.stop()
    assert {event["reason"] for event in daemon.events("lines_lost")} == {"File too large"}
    lines = path.read_text().splitlines()
    assert all(json.loads(line)["resourceSpans"] for line in lines), "no line is in part"


def lost_lines(daemon):
    return scrape(daemon).value("gemmd_log_lines_lost_total")


def test_a_log_without_room(daemons):
    with open("/dev/full", "wb") as full:
        daemon = daemons.start(*FLAGS[:-1], "--log-level=debug", stderr=full)
        multiply(daemon)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0


def test_a_log_whose_disk_is_full_for_a_while(daemons):
    daemon = daemons.start(*FLAGS, "--log-level=debug")
    multiply(daemon)
    wait_until(lambda: len(daemon.events("request")) == COUNT, PATIENCE_S, "the lines of the first")

    def events(name):
        """One line has no event: the part of a line for which there was room."""
        return [line for line in daemon.log() if line.get("event") == name]

    with files_limited_to(daemon, daemon.stderr_path.stat().st_size + len("time=2026-11-29T10:00:00.000000")):
        multiply(daemon)
        wait_until(lambda: lost_lines(daemon) >= COUNT, PATIENCE_S, "all are counted")
    # The daemon may report the loss before its next line, or with it.
    wait_until(lambda: multiply(daemon, 1) or events("log_lines_lost"), PATIENCE_S, "the loss in the log")
    daemon.stop()
    told = sum(int(event["lines"]) for event in events("log_lines_lost"))
    assert told >= COUNT
    assert len(events("request")) > COUNT
    assert len([line for line in daemon.log() if "event" not in line]) == 1
