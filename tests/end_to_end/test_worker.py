# SPDX-License-Identifier: Apache-2.0
"""The daemon with simulated GPUs, whose workers use host memory and the simulator."""

import os
import pathlib
import resource
import signal
import subprocess
import threading
import time

import grpc
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2_grpc, registry_pb2, registry_pb2_grpc, tensors_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from metrics_page import scrape
from product import Product, check_bytes

DEADLINE_S = 60
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def gpus(daemons, fake_worker, tmp_path, monkeypatch):
    """Starts a daemon with the devices cuda:0 and cpu, whose worker follows `script`."""

    def start(*flags, devices="cuda:0,cpu"):
        monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(tmp_path / "script"))
        return daemons.start(
            "--lame-duck=1ms", f"--devices={devices}", f"--worker-binary={fake_worker}", *flags
        )

    return start


def workers_of(daemon):
    """The processes of its GPUs, and the state of each."""
    pids = [str(pid) for pid in sorted(daemon.gpu_workers())]
    states = subprocess.run(
        ["ps", "-o", "pid=,stat=", "-p", ",".join(pids)], capture_output=True, text=True
    ).stdout
    return [(int(pid), stat) for pid, stat in (line.split() for line in states.splitlines())]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def f16_product(size=24):
    return Product(
        a=np.ones((1, size, size)) * 2, b=np.ones((1, size, size)), a_type="f16", b_type="f16"
    )


class Explanation:
    def __init__(self, answer):
        self.candidates = [each.kernel for each in answer.candidates]
        self.refusals = {each.kernel: each.reason for each in answer.refusals}

    def refusal_of(self, kernel):
        assert kernel not in self.candidates
        return self.refusals[kernel]


class Client:
    """Stubs for one daemon."""

    def __init__(self, daemon):
        self.channel = grpc.insecure_channel(
            daemon.tcp, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.gemm = gemm_pb2_grpc.GemmStub(self.channel)
        self.registry = registry_pb2_grpc.RegistryStub(self.channel)
        self.health_stub = health_pb2_grpc.HealthStub(self.channel)

    def multiply(self, device="", kernel="", product=None):
        product = product or f16_product()
        request = product.request()
        request.device = device
        request.kernel = kernel
        answer = self.gemm.Multiply(request, timeout=DEADLINE_S)
        check_bytes(answer.d, product)
        return answer

    def code_of(self, **keywords):
        try:
            self.multiply(**keywords)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def explain(self, device="", product=None):
        request = registry_pb2.ExplainRequest(request=(product or f16_product()).request())
        request.request.device = device
        return Explanation(self.registry.Explain(request, timeout=DEADLINE_S))

    def health(self, service=""):
        request = health_pb2.HealthCheckRequest(service=service)
        return self.health_stub.Check(request, timeout=DEADLINE_S).status

    def devices(self):
        request = registry_pb2.ListDevicesRequest()
        return self.registry.ListDevices(request, timeout=DEADLINE_S).devices

    def device(self, name):
        [device] = [device for device in self.devices() if device.name == name]
        return device


@pytest.fixture
def client(request):
    made = []

    def make(daemon):
        made.append(Client(daemon))
        return made[-1]

    yield make
    for each in made:
        each.channel.close()


def write_script(tmp_path, text):
    (tmp_path / "part").write_text(text + "\n")
    (tmp_path / "part").rename(tmp_path / "script")


def status_of(pid):
    """The fields of /proc/PID/status, each split into words."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: words.split() for key, words in (line.split(":", 1) for line in lines)}


def test_neither_the_daemon_nor_its_worker_gains_privileges(gpus, client):
    daemon = gpus()
    client(daemon).multiply("cuda:0")
    ((worker, _),) = workers_of(daemon)
    assert status_of(daemon.pid)["NoNewPrivs"] == ["1"]
    assert status_of(worker)["NoNewPrivs"] == ["1"]
    assert status_of(daemon.pid)["Seccomp"] == status_of(os.getpid())["Seccomp"]
    assert status_of(worker)["Seccomp"] == ["2"], "no filter"
    for device in ("cuda:0", "cpu"):
        (confined,) = [
            told for told in daemon.awaited_events("worker_confined") if told["device"] == device
        ]
        assert "seccomp" in confined["by"]


def test_a_worker_that_may_be_debugged(gpus, client):
    daemon = gpus("--worker-sandbox=off")
    client(daemon).multiply("cuda:0")
    ((worker, _),) = workers_of(daemon)
    own = status_of(os.getpid())
    for pid in (daemon.pid, worker):
        assert status_of(pid)["NoNewPrivs"] == own["NoNewPrivs"]
        assert status_of(pid)["Seccomp"] == own["Seccomp"]
    assert not daemon.events("worker_confined")


def test_products_run_on_the_gpu_that_is_the_default(gpus, client, gemmctl):
    daemon = gpus(devices="cuda:0,cuda:1,cpu")
    both = client(daemon)
    gpu, *others = both.devices()
    assert (gpu.name, gpu.ready) == ("cuda:0", True)
    assert [(device.name, device.ready) for device in others] == [("cuda:1", True), ("cpu", True)]
    assert (gpu.chip, gpu.description, gpu.multiprocessors) == ("sm_90", "fake GPU", 7)
    assert (gpu.cuda_driver_version, gpu.cuda_runtime_version) == ("13.1", "12.8")
    assert gpu.memory_limit_bytes < gpu.memory_bytes and gpu.clock_khz > 0 < gpu.memory_clock_khz
    assert both.multiply().timing.copy_out_ns == 0, "a small D is written where it is sent from"
    answer = both.multiply(product=f16_product(144))
    assert answer.device == "cuda:0"
    assert answer.kernel.startswith(("mma.", "wmma.", "wgmma."))
    timing = answer.timing
    assert min(timing.copy_in_ns, timing.compute_ns, timing.copy_out_ns) > 0
    stages = timing.receive_ns + timing.queue_ns + timing.copy_in_ns + timing.compute_ns
    assert stages + timing.copy_out_ns + timing.send_prepare_ns <= timing.total_ns
    instruction = "mma.m16n8k16.f32.f16.f16.f32"
    by_name = both.multiply(device="cuda:1", kernel=instruction)
    assert by_name.device == "cuda:1"
    assert by_name.kernel.startswith(instruction + "_")
    command = [gemmctl, "--address", daemon.unix, "multiply", "--random=33,34,35"]
    done = subprocess.run(
        [*command, "--type=f16", f"--kernel={by_name.kernel}", "--verify"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [gemmctl, "--address", daemon.unix, "devices"], capture_output=True, text=True
    ).stdout
    assert "fake GPU" in listed and "7 SMs, 1.98 GHz" in listed


class InGroups(Product):
    """A has factors of f32, all 1."""

    def request(self):
        request = super().request()
        blocks = request.a.scale.blocks
        blocks.type = tensors_pb2.FACTOR_TYPE_F32
        blocks.rows_per_block, blocks.k_per_block = 1, self.a.shape[2]
        blocks.factors = np.ones(self.a.shape[1], np.float32).tobytes()
        return request


def test_a_product_without_a_device_runs_on_the_first_that_has_a_kernel(gpus, client):
    """No Hopper multiplies e2m3 with factors of f32: such products must not fail because a GPU comes first."""
    server = client(gpus(devices="cuda:0,cpu,sim:sm_90"))
    ones = np.ones((1, 8, 8))
    narrow = InGroups(a=ones, b=ones, a_type="e2m3", b_type="e2m3")
    assert server.multiply(product=narrow).device == "cpu"
    plain = Product(a=ones, b=ones, a_type="e2m3", b_type="e2m3")
    assert server.multiply(product=plain).device == "cuda:0"
    f32 = Product(a=ones, b=ones, a_type="f32", b_type="f32")
    assert server.multiply(product=f32).device == "cuda:0"
    assert server.multiply().device == "cuda:0"
    assert server.multiply(kernel="onednn.f32.f16.f16.via_f32").device == "cpu"
    assert server.multiply(kernel="mma.m16n8k16.f32.f16.f16.f32").device == "cuda:0"
    assert server.code_of(device="cuda:0", product=narrow) == grpc.StatusCode.UNIMPLEMENTED
    request = registry_pb2.ExplainRequest(request=narrow.request())
    assert server.registry.Explain(request, timeout=DEADLINE_S).device == "cpu"
    # If no device has one, a device of the kernel's kind gives the reason.
    with pytest.raises(grpc.RpcError) as refused:
        server.multiply(kernel="onednn.f32.f32.f32")
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert server.code_of(kernel="onednn.f32.f32.f32", device="cpu") == refused.value.code()
    assert "a.type: got f16, want f32" in refused.value.details()


def test_a_kernel_of_a_gpu_on_the_simulator_has_the_same_bits(gpus, client):
    both = client(gpus(devices="cuda:0,sim:sm_90"))
    on_gpu = both.multiply(kernel="mma.m16n8k16.f32.f16.f16.f32")
    on_sim = both.multiply(device="sim:sm_90", kernel=on_gpu.kernel)
    assert on_sim.kernel == "mma.m16n8k16.f32.f16.f16.f32"
    assert on_sim.d.data == on_gpu.d.data


def test_a_killed_worker_is_back_and_the_others_go_on(gpus, client):
    daemon = gpus()
    one = client(daemon)
    [(pid, _)] = workers_of(daemon)
    os.kill(pid, signal.SIGKILL)
    [loss] = wait_until(
        lambda: daemon.events("device_not_ready"), DEADLINE_S, "the loss is known"
    )
    assert loss["device"] == "cuda:0"
    assert "signal 9" in loss["reason"]
    assert one.code_of(device="cpu", product=Product(a=np.ones((1, 4, 4)), b=np.ones((1, 4, 4)))) \
        == grpc.StatusCode.OK
    wait_until(lambda: one.code_of() == grpc.StatusCode.OK, DEADLINE_S, "the GPU is back")
    [(new_pid, _)] = workers_of(daemon)
    assert new_pid != pid
    assert one.health() == SERVING


def test_a_product_that_hangs_is_aborted_by_the_watchdog(gpus, client, tmp_path):
    daemon = gpus()
    one = client(daemon)
    write_script(tmp_path, "Launch 1 hang")
    with pytest.raises(grpc.RpcError) as error:
        one.multiply()
    assert error.value.code() == grpc.StatusCode.ABORTED
    assert "cuda:0 was lost while the product ran" in error.value.details()
    wait_until(lambda: one.code_of() == grpc.StatusCode.OK, DEADLINE_S, "the GPU is back")


def test_after_five_restarts_health_says_so(gpus, client):
    daemon = gpus()
    one = client(daemon)
    killed = set()

    def is_out_of_service():
        # At once, since only restarts within one minute count.
        for pid in {pid for pid, _ in workers_of(daemon)} - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return "out of service" in one.device("cuda:0").not_ready_reason

    wait_until(is_out_of_service, DEADLINE_S, "out of service")
    assert len(killed) == 6, "the first one and five restarts"
    assert [one.health(name) for name in ("", "gemmd.v1.Gemm", "cuda:0")] == 3 * [NOT_SERVING]
    assert [one.health(name) for name in ("gemmd.v1.Registry", "cpu")] == 2 * [SERVING]
    gpu, cpu = one.devices()
    assert (gpu.name, cpu.name, cpu.ready) == ("cuda:0", "cpu", True)
    assert not gpu.ready and "out of service" in gpu.not_ready_reason
    with pytest.raises(grpc.RpcError) as error:
        one.multiply()
    assert error.value.code() == UNAVAILABLE
    assert "device: cuda:0 is out of service" in error.value.details()
    # The device is lost as soon as that is known; its worker may take a while to end.
    wait_until(lambda: workers_of(daemon) == [], DEADLINE_S, "no worker is left")


def test_draining_finishes_what_the_gpu_has(gpus, client):
    """Most of them wait when the signal comes; all are answered, and no worker is left."""
    limit_s = 600
    daemon = gpus(f"--grace={limit_s}s", "--metrics-listen=127.0.0.1:0")
    one = client(daemon)
    [(pid, _)] = workers_of(daemon)
    # None takes nearly the two seconds after which the watchdog would end it.
    product = f16_product(size=120)
    calls = [one.gemm.Multiply.future(product.request(), timeout=limit_s) for _ in range(100)]
    wait_until(
        lambda: scrape(daemon).value("gemmd_admissions_total") == 100, DEADLINE_S, "all are accepted"
    )
    daemon.signal(signal.SIGTERM)
    for call in calls:
        check_bytes(call.result().d, product)
    assert daemon.wait() == 0
    assert not is_alive(pid)


def test_draining_while_the_gpu_hangs_ends_with_the_watchdog(gpus, client, tmp_path):
    daemon = gpus("--grace=50s")
    one = client(daemon)
    [(pid, _)] = workers_of(daemon)
    write_script(tmp_path, "Launch 1 hang")
    call = one.gemm.Multiply.future(f16_product().request(), timeout=DEADLINE_S)
    wait_until(lambda: not (tmp_path / "script").exists(), DEADLINE_S, "it hangs")
    daemon.signal(signal.SIGTERM)
    assert call.code() == grpc.StatusCode.ABORTED
    assert daemon.wait() == 0
    assert not is_alive(pid)


def test_workers_die_with_a_killed_daemon(gpus):
    daemon = gpus(devices="cuda:0,cuda:1,cpu")
    pids = [pid for pid, _ in workers_of(daemon)]
    assert len(pids) == 2
    daemon.was_awaited = True
    daemon.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), DEADLINE_S, "the workers' end")


def test_no_zombies_and_no_lost_files(gpus, client):
    daemon = gpus()
    one = client(daemon)
    one.multiply()
    files = daemon.open_files()
    for _ in range(3):
        [(pid, _)] = workers_of(daemon)
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: [p for p, _ in workers_of(daemon)] not in ([], [pid])
            and one.code_of() == grpc.StatusCode.OK,
            DEADLINE_S,
            "the GPU is back",
        )
    assert len(workers_of(daemon)) == 1
    # No more than before, once everything that ends with the old workers and calls has ended.
    wait_until(lambda: daemon.open_files() <= files, DEADLINE_S, "no file is lost")


def test_without_a_worker_the_daemon_says_so(gemmd):
    done = subprocess.run(
        [gemmd, "--listen=127.0.0.1:0", "--devices=cuda:0", "--worker-binary=/no/worker"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert "device: cuda:0 does not start: worker-binary: got /no/worker" in done.stderr


def test_a_gpu_that_there_is_not(gemmd, fake_worker):
    done = subprocess.run(
        [gemmd, "--listen=127.0.0.1:0", "--devices=cuda:7", f"--worker-binary={fake_worker}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert "device: cuda:7 does not start: GPU: got 7, want less than 2" in done.stderr


def test_products_larger_than_the_staging_area_go_through_it_in_parts(gpus, client):
    one = client(gpus("--gpu-staging-bytes=64KiB"))
    assert one.code_of(product=f16_product(size=128)) == grpc.StatusCode.OK


def test_products_larger_than_the_memory_of_the_gpu_are_made_in_panels(gpus, client):
    one = client(gpus("--gpu-memory-bytes=96KiB"))
    for size in (32, 128, 200, 32):
        assert one.code_of(product=f16_product(size=size)) == grpc.StatusCode.OK


def test_products_of_which_no_panel_fits_are_refused(gpus, client):
    one = client(gpus("--gpu-memory-bytes=96KiB"))
    deep = Product(
        a=np.ones((1, 16, 10000)), b=np.ones((1, 10000, 16)), a_type="f16", b_type="f16"
    )
    with pytest.raises(grpc.RpcError) as error:
        one.multiply(product=deep)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--gpu-memory-bytes" in error.value.details()
    assert "for the smallest panel of D" in error.value.details()
    assert one.code_of(product=f16_product(size=32)) == grpc.StatusCode.OK


def test_many_clients_at_once_while_workers_die(gpus, client, tmp_path):
    """Every call ends with the right product, or with an error that allows a retry."""
    daemon = gpus()
    one = client(daemon)
    codes = []

    def call():
        for _ in range(50):
            codes.append(one.code_of())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    killed = set()
    for restart in range(3):
        wait_until(lambda: len(codes) > 30 * (restart + 1), DEADLINE_S, "calls")
        # The last one may be visible for a while after its end.
        [pid] = wait_until(
            lambda: {pid for pid, _ in workers_of(daemon)} - killed, DEADLINE_S, "another worker"
        )
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(codes) == 200
    assert set(codes) <= {grpc.StatusCode.OK, UNAVAILABLE, grpc.StatusCode.ABORTED}
    wait_until(lambda: one.code_of() == grpc.StatusCode.OK, DEADLINE_S, "the GPU is back")


def refused(client, **keywords):
    with pytest.raises(grpc.RpcError) as error:
        client.multiply(**keywords)
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    return error.value.details()


def restart_device(gemmctl, daemon, device):
    command = [gemmctl, "--address", daemon.unix, "restart-device", device]
    subprocess.run(command, check=True, timeout=DEADLINE_S)


def test_a_kernel_of_which_two_workers_died_is_refused(gpus, client, tmp_path, gemmctl):
    daemon = gpus()
    one = client(daemon)
    kernel = one.multiply().kernel
    for death in ("abort", "hang"):
        write_script(tmp_path, f"Launch 1 {death}")
        assert one.code_of() == grpc.StatusCode.ABORTED
        wait_until(lambda: one.device("cuda:0").ready, DEADLINE_S, "the GPU is back")
    details = refused(one, device="cuda:0", kernel=kernel)
    assert kernel in details and "small products on cuda:0" in details
    assert "gemmctl restart-device cuda:0" in details
    [event] = daemon.awaited_events("kernel_refused")
    assert (event["device"], event["kernel"], event["class"]) == ("cuda:0", kernel, "small")
    assert one.explain(device="cuda:0").refusal_of(kernel) in details
    other = one.multiply()
    assert (other.device, other.kernel != kernel) == ("cuda:0", True)
    assert one.code_of(kernel=kernel, product=f16_product(96)) == grpc.StatusCode.OK, "another class"
    restart_device(gemmctl, daemon, "cuda:0")
    wait_until(lambda: one.code_of(kernel=kernel) == grpc.StatusCode.OK, DEADLINE_S, "it is cleared")
    assert len(daemon.events("kernel_refused")) == 1


# The devices of the host.


def ticks_of(pid):
    """The processor time that a process has used."""
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(words[11]) + int(words[12])


def test_a_kernel_of_which_two_host_workers_died_is_refused(daemons, client, gemmctl):
    """As if the processor lacked an instruction: the worker gets SIGILL while the product runs."""
    daemon = daemons.start("--devices=sim:sm_90", "--lame-duck=1ms")
    one = client(daemon)
    product = f16_product(96)
    kernel = one.multiply(product=product).kernel
    longer = f16_product(2048).request()  # Of the same class.
    longer.kernel = kernel
    for _ in range(2):
        [pid] = daemon.host_workers()
        before = ticks_of(pid)
        call = one.gemm.Multiply.future(longer, timeout=DEADLINE_S)
        wait_until(lambda: ticks_of(pid) > before + 5, DEADLINE_S, "the product runs")
        os.kill(pid, signal.SIGILL)
        assert call.code() == grpc.StatusCode.ABORTED
        # Its successor starts without another product.
        wait_until(lambda: daemon.host_workers() - {pid}, DEADLINE_S, "another worker")
    details = refused(one, kernel=kernel, product=product)
    assert kernel in details and "large products on sim:sm_90" in details
    assert one.explain(product=product).refusal_of(kernel) in details
    assert one.multiply(product=product).kernel != kernel
    assert one.multiply(kernel=kernel).kernel == kernel, "small products"
    assert len(daemon.awaited_events("kernel_refused")) == 1
    restart_device(gemmctl, daemon, "sim:sm_90")
    assert one.multiply(kernel=kernel, product=product).kernel == kernel
    # The log has each loss and each new worker.
    wait_until(lambda: len(daemon.events("device_ready")) == 4, DEADLINE_S, "the log")
    lost = [event["reason"] for event in daemon.events("device_not_ready")]
    assert ["signal 4" in reason for reason in lost] == [True, True, False]
    assert "an operator wants another worker" in lost[2]
    assert [event["device"] for event in daemon.events("device_ready")] == 4 * ["sim:sm_90"]



@pytest.mark.parametrize("signal_number", [signal.SIGILL, signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_host_worker_costs_no_more_than_what_it_runs(daemons, timed, signal_number):
    """Callers of `cpu` and `sim:sm_90` continue while the workers of both are lost three times: less than 2 s after
    each, as the timed run shows."""
    daemon = daemons.start(
        "--devices=cpu,sim:sm_90", "--lame-duck=1ms", "--metrics-listen=127.0.0.1:0"
    )
    codes = {"cpu": [], "sim:sm_90": []}
    pauses = []
    is_over = threading.Event()

    def call(device):
        client = Client(daemon)
        product = f16_product(96)
        while not is_over.is_set():
            codes[device].append(client.code_of(device=device, product=product))

    callers = [threading.Thread(target=call, args=(device,)) for device in codes for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(3):
            lost = daemon.host_workers()
            assert len(lost) == 2
            before = {device: len(codes[device]) for device in codes}
            began = time.monotonic()
            for pid in lost:
                os.kill(pid, signal_number)
            # Both have another worker, and the callers get answers again.
            wait_until(
                lambda: all(len(codes[device]) >= before[device] + 10 for device in codes),
                DEADLINE_S,
                "answers of new workers",
            )
            pauses.append(time.monotonic() - began)
            now = daemon.host_workers()
            assert len(now) == 2 and not now & lost
    finally:
        is_over.set()
        for caller in callers:
            caller.join()
    page = scrape(daemon)
    for device, told in codes.items():
        assert page.value("gemmd_worker_restarts_total", device=device) == 3
        failed = [code for code in told if code != grpc.StatusCode.OK]
        assert len(failed) <= 3 and set(failed) <= {grpc.StatusCode.ABORTED}
    name = signal.Signals(signal_number).name
    timed(f"{name} of host workers: until ten answers of new ones", most=2, seen=max(pauses), unit="s")
    assert Client(daemon).health() == SERVING


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
def test_a_host_worker_without_memory_costs_no_more_than_its_products(daemons, client, is_sanitized, device):
    """The worker gets no more addresses. It refuses what needs scratch memory; if the library dies without memory, the
    next worker has enough."""
    daemon = daemons.start(f"--devices={device}", "--lame-duck=1ms")
    callers = [client(daemon) for _ in range(2)]
    products = [f16_product(700), f16_product(96)]
    [pid] = daemon.host_workers()
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, hard))
    codes = [caller.code_of(product=product) for product in products for caller in callers]
    lost = codes.count(grpc.StatusCode.ABORTED)
    assert lost <= 1 and set(codes) <= {grpc.StatusCode.OK, RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED}
    # Some processors need no scratch memory, and a sanitizer's own memory may be the first that is missing.
    if device != "cpu" and not is_sanitized:
        assert codes[:2] == 2 * [RESOURCE_EXHAUSTED]
    if lost == 0:
        assert daemon.host_workers() == {pid}
        resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
    for product in products:
        callers[0].multiply(product=product)
    assert callers[0].health() == SERVING


def test_host_workers_are_confined_and_end_with_the_daemon(daemons):
    daemon = daemons.start("--devices=cpu,sim:sm_90", "--lame-duck=1ms")
    workers = daemon.host_workers()
    assert len(workers) == 2
    for pid in workers:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        assert "Seccomp:\t2" in status
        # Standard streams, the socket and the shared memory.
        assert len(os.listdir(f"/proc/{pid}/fd")) == 6
    daemon.kill()
    daemon.wait()
    for pid in workers:
        wait_until(lambda: not is_alive(pid), DEADLINE_S, "the end of a worker")
