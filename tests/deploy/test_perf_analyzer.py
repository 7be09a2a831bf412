# SPDX-License-Identifier: Apache-2.0
"""The unmodified perf_analyzer, a load tester for servers of KServe's protocol, runs against
gemmd."""

import csv
import json
import pathlib
import re
import subprocess
import sys

import certificates
import grpc
import pytest
from daemon import Daemon
from gemmd.v1 import resident_pb2, tensors_pb2
from tensors import Session

import newer_debian
from image import run

REQUIREMENT = pathlib.Path(__file__).resolve().parent / "requirements_perf_analyzer.txt"
LIMIT_S = 120


@pytest.fixture(scope="module")
def perf_analyzer(programs):
    folder = programs / "perf_analyzer"
    if not (folder / "installed.txt").exists():
        run(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}"),
            *("--upgrade", "--only-binary=:all:", "--platform=manylinux_2_38_x86_64"),
            f"--requirement={REQUIREMENT}",
        )
        (folder / "installed.txt").touch()
    root = newer_debian.fetch(programs / "newer_debian")
    return newer_debian.command(root, folder / "perf_analyzer/bin/perf_analyzer")


@pytest.fixture
def daemon(tree, tmp_path):
    started = Daemon(tree / "bin/gemmd", tmp_path / "daemon", "--devices=cpu").wait_until_ready()
    yield started
    started.stop()


def analyze(perf_analyzer, address, *options):
    command = [*perf_analyzer, "-i", "grpc", "-u", address, "--measurement-interval=500"]
    # However much the rate scatters, since other tests share the machine.
    command += ["--stability-percentage=999", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def rate(perf_analyzer, address, report, *options):
    """Products per second as it reports them; every product must succeed."""
    done = analyze(perf_analyzer, address, *options, "-f", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (r"Successful request count: (\d+)", r"Inference count: (\d+)"):
        counts = [int(count) for count in re.findall(line, done.stdout)]
        assert counts and min(counts) > 0, done.stdout
    rows = list(csv.DictReader(report.read_text().splitlines()))
    return [float(row["Inferences/Second"]) for row in rows]


PRODUCT = ("-m", "gemm", "--shape", "A:32,64", "--shape", "B:64,16")


@pytest.mark.parametrize(
    "options",
    [
        ("--concurrency-range=1:4:3",),
        ("--concurrency-range=1:4:3", "--async"),
        ("--concurrency-range=1:4:3", "--async", "--streaming"),
        ("--request-rate-range=100:200:100", "--request-distribution=poisson"),
    ],
    ids=["unary", "async", "streaming", "rate"],
)
def test_every_way_of_calling(perf_analyzer, daemon, tmp_path, options):
    rates = rate(perf_analyzer, daemon.tcp, tmp_path / "report.csv", *PRODUCT, *options)
    assert len(rates) == 2 and min(rates) > 0


def test_weights_of_a_caller_with_a_certificate_are_models(perf_analyzer, tree, tmp_path):
    """Where it names no session, the connection identifies the owner of the weights."""
    authority = certificates.Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("client", ["client.test"])
    rules = tmp_path / "rules.json"
    allowed = {"may": ["multiply", "tensors", "registry", "statistics"]}
    rules.write_text(json.dumps({"identities": {"client.test": allowed}}))
    daemon = Daemon(
        *(tree / "bin/gemmd", tmp_path / "daemon", "--devices=cpu", f"--rules={rules}"),
        *(f"--tls-cert={server.cert_path}", f"--tls-key={server.key_path}"),
        f"--client-ca={authority.cert_path}",
        listen="mtls:127.0.0.1:0",
    ).wait_until_ready()
    (address,) = (one.removeprefix("mtls:") for one in daemon.addresses)
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem, client.key_pem(), client.cert_pem
    )
    spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F32, rows=64, columns=16)
    with grpc.secure_channel(address, credentials) as channel, Session(channel) as session:
        session.put(bytes(4 * 64 * 16), spec=spec, name="layer")
    # It makes its own connections, and each shows the certificate.
    shown = (
        "--ssl-grpc-use-ssl",
        f"--ssl-grpc-root-certifications-file={authority.cert_path}",
        f"--ssl-grpc-certificate-chain-file={client.cert_path}",
        f"--ssl-grpc-private-key-file={client.key_path}",
    )
    options = ("-m", "layer", "--shape", "A:32,64")
    report = tmp_path / "report.csv"
    assert min(rate(perf_analyzer, address, report, *options, *shown)) > 0
    daemon.stop()


@pytest.mark.parametrize("options", [(), ("--async", "--streaming")], ids=["unary", "streaming"])
def test_weights_of_a_session_are_models(perf_analyzer, daemon, tmp_path, options):
    """Its headers go with every call, as gRPC's metadata."""
    spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F32, rows=64, columns=16)
    product = ("-m", "layer", "--shape", "A:32,64", *options)
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        session.put(bytes(4 * 64 * 16), spec=spec, name="layer")
        ((key, token),) = session.metadata
        report = tmp_path / "report.csv"
        assert min(rate(perf_analyzer, daemon.tcp, report, *product, "-H", f"{key}:{token}")) > 0
        refused = analyze(perf_analyzer, daemon.tcp, *product)
    assert refused.returncode != 0
    assert "model: got a name or version that there is not" in refused.stdout + refused.stderr


def test_it_shows_why_a_product_is_refused(perf_analyzer, daemon):
    done = analyze(perf_analyzer, daemon.tcp, "-m", "gemm", "--shape", "A:32,64", "--shape", "B:63,16")
    assert done.returncode != 0
    assert "inputs[1].shape: got [63, 16], want K = 64, as of A" in done.stdout + done.stderr
    done = analyze(perf_analyzer, daemon.tcp, *PRODUCT, "--shared-memory=system")
    assert done.returncode != 0
    assert "shared memory: got a call, want none" in done.stdout + done.stderr
