# SPDX-License-Identifier: Apache-2.0
"""What a running daemon reports to Prometheus: after products, refusals and restarts, and during
shutdown."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import urllib.error

import grpc
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc, registry_pb2, registry_pb2_grpc
from metrics_page import address, promtool, scrape
from product import ENDLESS_FLAGS, Product, busy_product, check_bytes
from tensors import MIB, Session

DEADLINE_S = 60
LIST = pathlib.Path(__file__).resolve().parents[2] / "server/metrics/metrics.md"
STAGES = {"receive", "queue", "copy_in", "compute", "copy_out", "send_prepare"}


@pytest.fixture
def start(daemons, fake_worker, request, monkeypatch, tmp_path):
    """Starts a daemon with metrics, the fake GPU cuda:0 and the CPU."""
    nvml = os.path.realpath(request.config.getoption("--fake-nvml"))

    def start(*flags, devices="cuda:0,cpu", has_nvml=True, lame_duck="1ms"):
        folder = os.path.dirname(nvml)
        if not has_nvml:  # Hides the library of this machine too.
            folder = tmp_path
            (folder / "libnvidia-ml.so.1").touch()
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
        return daemons.start(
            f"--lame-duck={lame_duck}",
            "--metrics-listen=127.0.0.1:0",
            f"--devices={devices}",
            f"--worker-binary={fake_worker}",
            *flags,
        )

    return start


@pytest.fixture
def multiply():
    channels = []

    def multiply(daemon, device="cpu", type="f32", size=24, **keywords):
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels.append(grpc.insecure_channel(daemon.tcp, options=options))
        product = square_product(type, size)
        request = product.request()
        request.device = device
        for name, value in keywords.items():
            setattr(request, name, value)
        answer = gemm_pb2_grpc.GemmStub(channels[-1]).Multiply(request, timeout=DEADLINE_S)
        check_bytes(answer.d, product)
        return answer

    yield multiply
    for channel in channels:
        channel.close()


def square_product(type, size):
    ones = np.ones((1, size, size))
    return Product(a=2 * ones, b=ones, a_type=type, b_type=type)


def test_a_live_scrape_is_clean_and_adds_up(start, multiply):
    daemon = start()
    answers = [multiply(daemon, "cpu") for _ in range(5)]
    answers += [multiply(daemon, "cuda:0", "f16") for _ in range(3)]
    page = scrape(daemon)
    assert promtool(page) == (0, "")

    assert page.value("gemmd_admissions_total") == 8
    assert page.value("gemmd_products_total", device="cpu", code="OK") == 5
    assert page.value("gemmd_products_total", device="cuda:0", code="OK") == 3
    assert page.value("gemmd_admitted_requests") == 0
    assert page.value("gemmd_operations_total", device="cuda:0") == 3 * 2 * 24**3
    kernels = {answer.kernel for answer in answers}
    for name, label in (
        ("gemmd_product_duration_seconds", None),
        ("gemmd_product_stage_duration_seconds", "stage"),
    ):
        counts = page.with_labels(name + "_count")
        assert {labels["device_kind"] for labels, _ in counts} == {"cpu", "cuda"}
        if label:
            assert {labels["stage"] for labels, _ in counts} == STAGES
            assert sum(count for _, count in counts) == 8 * len(STAGES)
        else:
            assert sum(count for _, count in counts) == 8
    counts = page.with_labels("gemmd_kernel_products_total")
    assert {labels["kernel"] for labels, _ in counts} == kernels
    assert sum(count for _, count in counts) == 8
    # The same timing as in the answers.
    told = sum(answer.timing.total_ns for answer in answers) / 1e9
    sums = page.with_labels("gemmd_product_duration_seconds_sum")
    assert sum(value for _, value in sums) == pytest.approx(told, rel=1e-9)
    told = sum(answer.timing.compute_ns for answer in answers) / 1e9
    sums = page.with_labels("gemmd_product_stage_duration_seconds_sum")
    compute = sum(value for labels, value in sums if labels["stage"] == "compute")
    assert compute == pytest.approx(told, rel=1e-9)
    seconds = page.with_labels("gemmd_kernel_compute_seconds_total")
    assert sum(value for _, value in seconds) == pytest.approx(told, rel=1e-9)


def test_buckets_are_cumulative_and_end_with_the_count(start, multiply):
    daemon = start(devices="cpu")
    for _ in range(4):
        multiply(daemon)
    page = scrape(daemon)
    buckets = [
        (float(labels["le"]), value)
        for labels, value in page.with_labels("gemmd_product_duration_seconds_bucket")
    ]
    assert len(buckets) == 25
    assert [bound for bound, _ in buckets] == sorted(bound for bound, _ in buckets)
    assert [value for _, value in buckets] == sorted(value for _, value in buckets)
    assert buckets[-1] == (float("inf"), 4)


def test_a_gpus_own_figures(start):
    page = scrape(start())
    gpu = {"device": "cuda:0", "gpu_uuid": "GPU-0a"}
    assert page.value("gemmd_gpu_power_watts", **gpu) == 512.25
    assert page.value("gemmd_gpu_utilization_ratio", **gpu) == 0.75
    assert page.value("gemmd_gpu_clock_hertz", clock="sm", **gpu) == 1.755e9
    assert page.value("gemmd_gpu_memory_used_bytes", **gpu) == 1e11
    assert page.value("gemmd_gpu_ecc_errors_total", severity="uncorrected", **gpu) == 2
    assert not [labels for labels, _ in page.with_labels("gemmd_gpu_power_watts")][1:]
    assert promtool(page) == (0, "")


def test_without_nvml_the_rest_is_there(start):
    daemon = start(has_nvml=False)
    page = scrape(daemon)
    assert "gemmd_gpu_" not in page.text
    assert page.value("gemmd_device_ready", device="cuda:0") == 1
    [event] = daemon.awaited_events("gpu_readings_absent")
    assert "libnvidia-ml.so.1" in event["reason"]


def test_tritons_names(start, multiply):
    daemon = start()
    multiply(daemon)
    page = scrape(daemon, "/metrics/triton")
    model = {"model": "gemm", "version": "1"}
    assert page.value("nv_inference_request_success", **model) == 1
    assert page.value("nv_inference_request_duration_us", **model) > 0
    assert page.value("nv_gpu_utilization", gpu_uuid="GPU-0a") == 0.75
    assert page.types["nv_inference_request_success"] == "counter"
    assert all(name.startswith("nv_") for name in page.types)
    # The reason for their separate path; and promtool does detect faults.
    code, said = promtool(page)
    assert code != 0 and 'should have "_total" suffix' in said


def test_every_metric_is_in_the_table_and_every_row_is_served(start, multiply, tmp_path):
    rules = tmp_path / "rules.json"
    rules.write_text('{"identities": {"anonymous": {"may": ["multiply"]}}}')
    daemon = start(f"--rules={rules}")
    multiply(daemon, "cuda:0", "f16")
    served = {*scrape(daemon).types, *scrape(daemon, "/metrics/triton").types}
    table = re.findall(r"^\| `(\w+)` \| (\w+) \|", LIST.read_text(), re.MULTILINE)
    rows = {name: type for name, type in table if type in ("counter", "gauge", "histogram")}
    assert served == set(rows)
    types = {**scrape(daemon).types, **scrape(daemon, "/metrics/triton").types}
    assert types == rows


def test_callers_cannot_make_series(start, multiply):
    """Whatever callers send, label values come from the daemon's own lists."""

    def series(page):
        # The daemon itself calls ListDevices now and then to check that it answers.
        return {sample for sample in page.samples if ("method", "ListDevices") not in sample[1]}

    daemon = start(devices="cpu")
    multiply(daemon)
    before = series(scrape(daemon))
    for i in range(20):
        for bad in ({"kernel": f"kernel-{i}"}, {"device": f"device-{i}"}):
            with pytest.raises(grpc.RpcError):
                multiply(daemon, **bad)
        multiply(daemon, request_id=f"id-{i}")
    page = scrape(daemon)
    assert series(page) == before
    assert page.value("gemmd_refusals_total", reason="not_found") == 40


def test_series_are_some_hundreds_however_many_kernels_run(daemons, multiply):
    """Of the devices that a daemon without GPUs serves by default."""
    daemon = daemons.start("--lame-duck=1ms", "--metrics-listen=127.0.0.1:0", "--cpu-threads=1")
    assert len(scrape(daemon).samples) < 250
    types = ("f64", "f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "s4", "u4")
    kernels = {multiply(daemon, "cpu", type).kernel for type in types}
    # The kernels of a chip, each by its name.
    with grpc.insecure_channel(daemon.tcp) as channel:
        registry = registry_pb2_grpc.RegistryStub(channel)
        for type in types:
            request = registry_pb2.ExplainRequest(request=square_product(type, 24).request())
            request.request.device = "sim:sm_90"
            for candidate in registry.Explain(request, timeout=DEADLINE_S).candidates[:2]:
                multiply(daemon, "sim:sm_90", type, kernel=candidate.kernel)
                kernels.add(candidate.kernel)
    page = scrape(daemon)
    assert len(kernels) > 15
    named = {labels["kernel"] for labels, _ in page.with_labels("gemmd_kernel_products_total")}
    assert named == kernels
    assert len(page.samples) < 800


def test_what_is_too_large_for_a_gpu_is_refused_not_admitted(start, multiply):
    daemon = start("--gpu-memory-bytes=96KiB")
    with pytest.raises(grpc.RpcError) as error:
        multiply(daemon, "cuda:0", "f16", size=3000)  # 8 rows of A alone take 48 KB.
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    page = scrape(daemon)
    assert page.value("gemmd_refusals_total", reason="too_large") == 1
    assert page.value("gemmd_admissions_total") == 0
    assert page.value("gemmd_products_total", device="cuda:0", code="RESOURCE_EXHAUSTED") == 0


def test_gemmctl_top_tells_the_same(start, multiply, gemmctl):
    daemon = start()
    for _ in range(3):
        multiply(daemon, "cuda:0", "f16")
    command = [gemmctl, "--address", daemon.tcp, "top", "--once", "--interval=50ms"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert text.returncode == 0, text.stderr
    assert "cuda:0" in text.stdout and "512 of 700 W" in text.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=DEADLINE_S)
    statistics = json.loads(done.stdout)["statistics"]
    page = scrape(daemon)
    assert statistics["admissions"] == page.value("gemmd_admissions_total") == 3
    [gpu, cpu] = statistics["devices"]
    assert gpu["ends"] == [{"name": "OK", "count": 3}] and cpu["ends"] == []
    assert sum(gpu["total"]["counts"]) == 3
    assert len(gpu["total"]["counts"]) == len(gpu["total"]["bounds_ns"]) + 1
    assert gpu["gpu"]["power_watts"] == 512.25 and "gpu" not in cpu
    assert sum(gpu["launches_by_products"]) == gpu["launches"] == 3
    assert statistics["tensors"]["max_host_bytes"] == page.value("gemmd_tensor_bytes_limit")
    assert "tensors" not in text.stdout
    names = {labels["reason"] for labels, _ in page.with_labels("gemmd_refusals_total")}
    assert {count["name"] for count in statistics["refusals"]} == names


def test_gemmctl_top_tells_of_tensors(start, gemmctl):
    daemon = start(devices="cpu", has_nvml=False)
    with grpc.insecure_channel(daemon.tcp) as channel, Session(channel) as session:
        session.put(bytes(MIB), name="kept")
        command = [gemmctl, "--address", daemon.tcp, "top", "--once", "--interval=50ms"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert "tensors  1 of 1 sessions, 1.00 MiB of " in text.stdout, text.stdout + text.stderr
        done = subprocess.run([*command, "--json"], capture_output=True, text=True)
        [owner] = json.loads(done.stdout)["statistics"]["tensors"]["owners"]
        token = dict(session.metadata)["gemmd-session"]
        assert owner["name"] == hashlib.sha256(bytes.fromhex(token)).hexdigest()[:16]
        assert owner["tensors"] == 1
        assert MIB <= owner["host_bytes"] <= MIB + 4096  # Including the tensor's own overhead.
        assert owner["caller"] == "ipv4:127.0.0.1"
        assert re.search(f"{owner['name']} +1 +1.00 MiB +ipv4:127.0.0.1", text.stdout)
        assert token not in text.stdout + done.stdout


def test_restarts_and_canaries_of_workers(start, multiply):
    daemon = start()
    assert scrape(daemon).value("gemmd_worker_restarts_total", device="cuda:0") == 0
    # The worker's own and the server's.
    passed = {"device": "cuda:0", "result": "passed"}
    assert scrape(daemon).value("gemmd_canaries_total", **passed) == 2
    [worker] = daemon.gpu_workers()
    os.kill(worker, signal.SIGKILL)
    wait_until(
        lambda: scrape(daemon).value("gemmd_canaries_total", **passed) == 3, DEADLINE_S, "back"
    )
    assert scrape(daemon).value("gemmd_worker_restarts_total", device="cuda:0") == 1
    assert scrape(daemon).value("gemmd_device_staging_bytes", device="cuda:0") == 768 << 20


def test_the_endpoint_is_there_until_the_drain_is_over(start):
    """A running product keeps the drain, and so the endpoint, going."""
    daemon = start("--grace=3h", *ENDLESS_FLAGS[1:], devices="cpu")
    with grpc.insecure_channel(daemon.tcp) as channel:
        call = gemm_pb2_grpc.GemmStub(channel).Multiply.future(busy_product())
        wait_until(
            lambda: scrape(daemon).value("gemmd_admitted_requests") == 1, DEADLINE_S, "it is accepted"
        )
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: daemon.events("drain"), DEADLINE_S, "the drain")
        wait_until(lambda: scrape(daemon).value("gemmd_draining") == 1, DEADLINE_S, "closed")
        page = scrape(daemon)
        assert page.value("gemmd_admitted_requests") == 1
        assert sum(count for _, count in page.with_labels("gemmd_products_total")) == 0
        daemon.signal(signal.SIGTERM)  # The second signal gives the product no more time.
        assert call.code() == grpc.StatusCode.UNAVAILABLE
    assert daemon.wait() == 1
    with pytest.raises(urllib.error.URLError):
        scrape(daemon)


@pytest.mark.parametrize("value", ["8471", "localhost:8471", "127.0.0.1:99999", "unix:/x", ""])
def test_bad_addresses_are_told_before_anything_starts(gemmd, value):
    done = subprocess.run(
        [gemmd, f"--metrics-listen={value}", "--devices=cpu", "--listen=127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2
    assert "--metrics-listen" in done.stderr
    if value:
        assert f"got {value}, want an IP address and a port" in done.stderr


def test_an_address_in_use_is_told(gemmd, start):
    taken = address(start(devices="cpu"))
    done = subprocess.run(
        [gemmd, f"--metrics-listen={taken}", "--devices=cpu", "--listen=127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert f"metrics-listen: cannot listen on {taken}: Address already in use" in done.stderr
