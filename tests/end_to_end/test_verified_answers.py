# SPDX-License-Identifier: Apache-2.0
"""Answers that are checked before they are given, by workers that flip bits of D."""

import json
import subprocess

import grpc
import numpy as np
import pytest
from daemon import wait_until
from gemmd.v1 import (
    admin_pb2_grpc,
    gemm_pb2,
    gemm_pb2_grpc,
    incidents_pb2,
    registry_pb2,
    registry_pb2_grpc,
)
from product import Product, check_bytes

DEADLINE_S = 120
DATA_LOSS = grpc.StatusCode.DATA_LOSS
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
WHOLE = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_SAMPLED, rate=1)
CHECKSUM = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_CHECKSUM)
DUPLICATE = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_DUPLICATE)
PASSED = gemm_pb2.VERIFY_OUTCOME_PASSED


def some_product(size=24, element="f16"):
    values = np.arange(size * size).reshape(1, size, size) % 5
    return Product(a=values, b=values + 1, a_type=element, b_type=element)


class Server:
    """A daemon whose GPU's next launches do as the script says."""

    def __init__(self, daemon, tmp_path):
        self.daemon = daemon
        self.folder = tmp_path
        self.channel = grpc.insecure_channel(
            daemon.unix, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.gemm = gemm_pb2_grpc.GemmStub(self.channel)
        self.registry = registry_pb2_grpc.RegistryStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)

    def flip(self, *launches):
        (self.folder / "part").write_text("".join(f"Launch {n} flip\n" for n in launches))
        (self.folder / "part").rename(self.folder / "script")

    def multiply(self, verify=None, product=None, kernel="", device="cuda:0"):
        product = product or some_product()
        request = product.request()
        request.device = device
        request.kernel = kernel
        if verify is not None:
            request.verify.CopyFrom(verify)
        answer = self.gemm.Multiply(request, timeout=DEADLINE_S)
        check_bytes(answer.d, product)
        return answer

    def code_of(self, **keywords):
        with pytest.raises(grpc.RpcError) as caught:
            self.multiply(**keywords)
        return caught.value.code()

    def incidents(self):
        request = incidents_pb2.ListIncidentsRequest()
        return self.admin.ListIncidents(request, timeout=DEADLINE_S)


@pytest.fixture
def serve(daemons, fake_worker, tmp_path, monkeypatch):
    made = []

    def start(*flags, devices="cuda:0,cpu"):
        monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(tmp_path / "script"))
        daemon = daemons.start(
            "--lame-duck=1ms", f"--devices={devices}", f"--worker-binary={fake_worker}", *flags
        )
        made.append(Server(daemon, tmp_path))
        return made[-1]

    yield start
    for each in made:
        each.channel.close()


def test_a_right_answer_says_how_it_was_checked(serve):
    server = serve()
    for verify in (WHOLE, CHECKSUM, DUPLICATE):
        for element in ("f16", "s8"):
            answer = server.multiply(verify, some_product(element=element))
            checked = answer.verification
            assert (checked.mode, checked.outcome) == (verify.mode, PASSED)
            assert checked.elements_checked == 24 * 24
            assert checked.miss_probability == 0
            assert 0 < checked.cost
            assert 0 < checked.verify_ns < answer.timing.total_ns
            assert checked.wrong_answers == 0
    assert not server.multiply().HasField("verification")


@pytest.mark.parametrize("verify", [WHOLE, CHECKSUM, DUPLICATE])
def test_a_wrong_answer_is_not_given(serve, verify):
    server = serve()
    kernel = server.multiply().kernel
    server.flip(1)
    assert server.code_of(verify=verify) == DATA_LOSS
    listed = server.incidents()
    assert listed.found == 1
    [incident] = listed.incidents
    assert (incident.device, incident.kernel) == ("cuda:0", kernel)
    assert (incident.batch, incident.row, incident.column) == (0, 0, 0)
    assert incident.got_bits == incident.want_bits ^ (1 << 30)
    assert incident.mode == verify.mode
    assert len(incident.a_sha256) == 64
    assert incident.has_operands
    # The row is quarantined there, and another one computes the next product.
    request = registry_pb2.ExplainRequest(request=some_product().request())
    request.request.device = "cuda:0"
    refusals = server.registry.Explain(request, timeout=DEADLINE_S).refusals
    [refusal] = [each for each in refusals if each.kernel == kernel]
    assert "quarantined" in refusal.reason
    assert server.multiply(verify).kernel != kernel
    assert server.code_of(kernel=kernel) == grpc.StatusCode.UNIMPLEMENTED
    # The product is kept, and gives the right bits now.
    product = server.admin.GetIncidentProduct(
        incidents_pb2.GetIncidentProductRequest(id=incident.id), timeout=DEADLINE_S
    )
    product.request.kernel = ""
    check_bytes(server.gemm.Multiply(product.request, timeout=DEADLINE_S).d, some_product())


def test_gemmctl_lists_and_replays_it(serve, gemmctl):
    server = serve()

    def run(*arguments):
        return subprocess.run(
            [gemmctl, *arguments, f"--address={server.daemon.unix}"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    server.flip(1)
    assert server.code_of(verify=WHOLE) == DATA_LOSS
    [incident] = json.loads(run("incidents", "--json").stdout)["incidents"]
    assert (incident["id"], incident["device"]) == (1, "cuda:0")
    table = run("incidents").stdout
    assert incident["kernel"] in table and "1 wrong answers since the start" in table
    refused = run("replay", "1")
    assert refused.returncode == 1 and "quarantined" in refused.stderr
    other = server.multiply().kernel
    right = run("replay", "1", "--kernel", other)
    assert right.returncode == 0, right.stderr
    assert f"right this time: {other} on cuda:0, 576 elements checked" in right.stdout
    assert run("replay", "2").returncode == 1


def test_a_wrong_answer_is_computed_elsewhere_where_that_is_wanted(serve):
    server = serve("--verify=sampled:1", "--verify-retry")
    kernel = server.multiply().kernel
    server.flip(1)
    answer = server.multiply()
    assert answer.kernel != kernel
    assert answer.verification.wrong_answers == 1
    assert server.incidents().found == 1


def test_a_second_wrong_answer_takes_the_device_out_of_service(serve, tmp_path):
    file = tmp_path / "incidents"
    server = serve("--verify=checksum", f"--incidents={file}")
    server.flip(1)
    assert server.code_of() == DATA_LOSS
    # Canaries may follow still: whichever of them and the next products is wrong is the second.
    server.flip(*range(1, 1000))
    wait_until(lambda: server.code_of() == UNAVAILABLE, 60, "the device to be out of service")
    wait_until(lambda: server.daemon.events("device_not_ready"), 30, "health to know")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == list(range(1, len(lines) + 1))
    assert not lines[0]["took_out_device"]
    assert server.multiply(device="cpu").device == "cpu"


def test_joined_products_are_checked_one_by_one(serve):
    """Of products that run as one, the wrong one alone is refused."""
    server = serve("--verify=sampled:1", "--batch-window-us=300000")
    server.flip(1)
    product = some_product()
    calls = []
    for _ in range(6):
        request = product.request()
        request.device = "cuda:0"
        calls.append(server.gemm.Multiply.future(request, timeout=DEADLINE_S))
    codes = [call.code() for call in calls]
    assert codes.count(DATA_LOSS) == 1
    for call, code in zip(calls, codes):
        if code == grpc.StatusCode.OK:
            check_bytes(call.result().d, product)
            assert call.result().verification.outcome == PASSED


def test_bad_requests_are_refused(serve):
    server = serve(devices="cpu")
    sampled = gemm_pb2.VERIFY_MODE_SAMPLED
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    for verify in (
        gemm_pb2.Verify(mode=sampled, rate=-1),
        gemm_pb2.Verify(mode=sampled, rate=1.5),
        gemm_pb2.Verify(mode=sampled, rate=float("nan")),
        gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_CHECKSUM, rate=0.5),
        gemm_pb2.Verify(mode=77),
    ):
        assert server.code_of(verify=verify, device="cpu") == invalid
