# SPDX-License-Identifier: Apache-2.0
"""Answers that are checked before they are sent, with workers that flip bits of D."""

import json
import subprocess

import grpc
import numpy as np
import pytest
from callers import Trust, bearer
from checked_server import (
    CHECKSUM,
    DATA_LOSS,
    DEADLINE_S,
    DUPLICATE,
    PASSED,
    UNAVAILABLE,
    WHOLE,
    serve,  # noqa: F401
    some_product,
)
from daemon import wait_until
from gemmd.v1 import gemm_pb2, incidents_pb2, registry_pb2
from metrics_page import scrape
from product import check_bytes
from tensors import refusal


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


def test_metrics_add_up_what_checks_may_miss_and_cost(serve):
    """The values of the answers, for each kind of check."""
    server = serve("--metrics-listen=127.0.0.1:0")
    half = gemm_pb2.Verify(mode=gemm_pb2.VERIFY_MODE_SAMPLED, rate=0.5)
    ways = {"sampled": [half, half, WHOLE], "checksum": [CHECKSUM], "duplicate": []}
    wanted = {
        mode: [server.multiply(verify).verification for verify in asked]
        for mode, asked in ways.items()
    }
    assert all(checked.outcome == PASSED for checks in wanted.values() for checked in checks)
    page = scrape(server.daemon)
    for member in ("miss_probability", "cost"):
        for mode, checks in wanted.items():
            told = sum(getattr(checked, member) for checked in checks)
            counted = page.value(f"gemmd_verification_{member}_total", mode=mode)
            # Sums of the same numbers in another order.
            assert counted == pytest.approx(told, rel=1e-12), (member, mode)
    assert 0 < page.value("gemmd_verification_miss_probability_total", mode="sampled") < 2


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
    # The kernel is quarantined there, and another one computes the next product.
    request = registry_pb2.ExplainRequest(request=some_product().request())
    request.request.device = "cuda:0"
    refusals = server.registry.Explain(request, timeout=DEADLINE_S).refusals
    [refusal] = [each for each in refusals if each.kernel == kernel]
    assert "quarantined" in refusal.reason
    assert server.multiply(verify).kernel != kernel
    assert server.code_of(kernel=kernel) == grpc.StatusCode.UNIMPLEMENTED
    # The product was kept, and now gives the right bits.
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


def test_gemmctl_replays_operands_of_files(serve, gemmctl, tmp_path):
    """Operands that the server has not kept: their bytes must be those of the incident."""
    server = serve()
    product = some_product()
    paths = {}
    for name, values in (("a", product.a), ("b", product.b)):
        paths[name] = tmp_path / f"{name}.npy"
        np.save(paths[name], values[0].astype(np.float16))
    other = tmp_path / "other.npy"
    np.save(other, product.a[0].astype(np.float16) + 7)
    server.flip(1)
    assert server.code_of(verify=WHOLE, product=product) == DATA_LOSS

    def replay(*arguments):
        return subprocess.run(
            [gemmctl, "replay", "1", "--device=cpu", *arguments, f"--address={server.daemon.unix}"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    a, b = f"--a={paths['a']}", f"--b={paths['b']}"
    right = replay(a, b)
    assert right.returncode == 0, right.stderr
    assert "right this time: " in right.stdout and "576 elements" in right.stdout
    for arguments, words in (
        ([f"--a={other}", b], "--a: got 1152 bytes with SHA-256 "),
        ([a, f"--b={other}"], "--b: got 1152 bytes with SHA-256 "),
        ([a], "--b: got none, want the .npy file"),
        ([a, b, f"--c={other}"], "--c: got a file, want none"),
        ([a, b, f"--bias={other}"], "--bias: got a file, want none"),
        ([a, f"--b={tmp_path / 'none.npy'}"], "none.npy"),
    ):
        refused = replay(*arguments)
        assert refused.returncode == 2, (arguments, refused)
        assert words in refused.stderr, refused.stderr


@pytest.mark.parametrize("form", [[], ["--sparse-a"]], ids=["dense", "sparse"])
def test_incidents_of_batches_are_replayed(serve, gemmctl, tmp_path, form):
    """With batch strides, and with an A in 2:4 form."""
    server = serve()
    a = np.zeros((3, 16, 32), np.float16)
    a[:, :, ::4] = np.arange(3 * 16 * 8).reshape(3, 16, 8) % 7 + 1
    b = (np.arange(32 * 16).reshape(32, 16) % 5).astype(np.float16)
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for file, values in zip(files, (a, b)):
        np.save(file, values)

    def run(command, *arguments):
        return subprocess.run(
            [gemmctl, command, *arguments, f"--address={server.daemon.unix}"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    server.flip(1)
    found = run("multiply", *files, "--device=cuda:0", "--server-verify=sampled:1", *form)
    assert (found.returncode, "DATA_LOSS" in found.stderr) == (4, True), found
    for by_hand in ([], [f"--a={files[0]}", f"--b={files[1]}"]):
        right = run("replay", "1", "--device=cpu", *by_hand)
        assert right.returncode == 0, right.stderr
        assert f"{3 * 16 * 16} elements checked" in right.stdout


def test_a_wrong_answer_is_computed_elsewhere_where_that_is_wanted(serve):
    server = serve("--verify=sampled:1,retry")
    kernel = server.multiply().kernel
    server.flip(1)
    answer = server.multiply()
    assert answer.kernel != kernel
    assert answer.verification.wrong_answers == 1
    assert server.incidents().found == 1


def test_a_second_wrong_answer_takes_the_device_out_of_service(serve):
    server = serve("--verify=checksum")
    server.flip(1)
    assert server.code_of() == DATA_LOSS
    # Canaries may still follow: the second wrong answer is one of them or of the next products.
    server.flip(*range(1, 1000))
    wait_until(lambda: server.code_of() == UNAVAILABLE, DEADLINE_S, "the device to be out of service")
    wait_until(lambda: server.daemon.events("device_not_ready"), DEADLINE_S, "health to know")
    lines = server.daemon.events("wrong_answer")
    assert [line["id"] for line in lines] == [str(id) for id in range(1, len(lines) + 1)]
    assert lines[0]["out"] == "false"
    assert lines[0]["got_bits"] != lines[0]["want_bits"] and len(lines[0]["a_sha256"]) == 64
    assert server.multiply(device="cpu").device == "cpu"


def test_joined_products_are_checked_one_by_one(serve):
    """Of products that run as one, only the wrong one is refused."""
    server = serve("--verify=sampled:1", "--batch=256:300ms")
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


def test_what_is_computed_again_is_joined_no_longer(serve):
    server = serve("--verify=sampled:1,retry", "--batch=256:300ms")
    server.flip(1)
    request = some_product().request()
    request.device = "cuda:0"
    calls = [server.gemm.Multiply.future(request, timeout=DEADLINE_S) for _ in range(6)]
    answers = [call.result() for call in calls]
    for answer in answers:
        check_bytes(answer.d, some_product())
    [again] = [answer for answer in answers if answer.verification.wrong_answers]
    assert again.joined == 1
    assert max(answer.joined for answer in answers) > 1


def test_a_product_is_computed_once_more_where_its_caller_may(serve, tmp_path):
    """The other GPU, unless the caller's rules exclude it; for a retry, too."""
    trust = Trust(tmp_path)
    trust.write(
        {"all": {"may": ["multiply"]}, "first": {"may": ["multiply"], "devices": ["cuda:0"]}}
    )
    flags = [flag for flag in trust.flags if "lame-duck" not in flag]
    server = serve(*flags, "--verify=none,retry", devices="cuda:0,cuda:1")
    product = some_product()

    def multiply(who, verify, kernel=""):
        request = product.request()
        request.verify.CopyFrom(verify)
        request.kernel = kernel
        answer = server.gemm.Multiply(request, metadata=bearer(who), timeout=DEADLINE_S)
        check_bytes(answer.d, product)
        return answer

    answer = multiply("all", DUPLICATE)
    assert (answer.device, answer.verification.device) == ("cuda:0", "cuda:1")
    answer = multiply("first", DUPLICATE)
    assert (answer.device, answer.verification.device) == ("cuda:0", "cuda:0")
    # Its kernel is then quarantined, so only the other GPU is left for a retry.
    server.flip(1)
    code, words = refusal(multiply, "first", WHOLE, answer.kernel)
    assert code == DATA_LOSS, words


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
