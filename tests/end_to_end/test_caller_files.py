# SPDX-License-Identifier: Apache-2.0
"""Files about callers: rules and tokens that are reloaded, and the audit log, which is opened again."""

import json
import os
import queue
import signal
import threading

import certificates
import grpc
import pytest
from callers import PERMISSION_DENIED, POISON, UNAUTHENTICATED, Trust, bearer, call, multiply, product
from daemon import PATIENCE_S, wait_until
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc
from kserve.v2 import inference_pb2, inference_pb2_grpc
from metrics_page import scrape
from tensors import DEADLINE_S, Session, by_name, refusal


def infer_request():
    """A product of 4^3 as a KServe request."""
    inputs = [
        inference_pb2.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=[4, 4])
        for name in "AB"
    ]
    return inference_pb2.ModelInferRequest(
        model_name="gemm", inputs=inputs, raw_input_contents=[bytes(4 * 4 * 4)] * 2
    )


def test_the_audit_log(daemons, tmp_path):
    trust = Trust(tmp_path)
    rest = ["tensors", "statistics", "administer"]
    trust.write({"batch": {"may": ["multiply"]}, "keeper": {"may": rest}})
    log = tmp_path / "audit"
    daemon = daemons.start("--devices=cpu", *trust.flags, f"--audit-log={log}")
    with grpc.insecure_channel(daemon.tcp) as channel:
        assert multiply(channel, bearer("batch")).d
        assert refusal(multiply, channel, bearer("stranger"))[0] == UNAUTHENTICATED
        assert refusal(multiply, channel, bearer("batch"), device="none")[0]
        with Session(channel, credentials=bearer("keeper")) as session:
            session.put(b"secret-operand", name="mine")
            assert refusal(session.describe, by_name("theirs"))[0] == grpc.StatusCode.NOT_FOUND
        for path in ("/gemmd.v1.Registry/GetStatistics", "/gemmd.v1.Admin/ListIncidents"):
            assert call(channel, path, bearer("keeper"))[0] == grpc.StatusCode.OK
        assert call(channel, "/gemmd.v1.Registry/ListDevices", bearer("keeper"))[0]
    daemon.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    rest = [line for line in lines if not line["method"].endswith("/Multiply") and line["method"] != "Multiply"]
    lines = [line for line in lines if line not in rest]
    # A call is logged when it has ended, which may be after the next one began.
    told = sorted((line["method"], line["event"], line["identity"], line.get("status")) for line in rest)
    assert told == [
        ("/gemmd.v1.Admin/ListIncidents", "call", "keeper", "OK"),
        ("/gemmd.v1.Registry/GetStatistics", "call", "keeper", "OK"),
        ("/gemmd.v1.Registry/ListDevices", "call_refused", "keeper", None),
        ("/gemmd.v1.Tensors/Describe", "call", "keeper", "NOT_FOUND"),
        ("/gemmd.v1.Tensors/OpenSession", "call", "keeper", "CANCELLED"),
        ("/gemmd.v1.Tensors/Put", "call", "keeper", "OK"),
    ]
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in rest if line["event"] == "call")
    assert "secret-operand" not in log.read_text()
    assert [line["event"] for line in lines] == ["product", "call_refused", "product_refused"]
    done, refused, no_device = lines
    assert (done["identity"], done["device"], done["status"]) == ("batch", "cpu", "OK")
    assert (done["method"], no_device["method"]) == ("Multiply", "Multiply")
    assert done["bytes"] == 3 * 4 * 4 * 4 and done["problem"] and done["kernel"] and done["peer"]
    assert refused["method"] == "/gemmd.v1.Gemm/Multiply"
    assert (no_device["identity"], no_device["status"]) == ("batch", "NOT_FOUND")
    assert POISON not in log.read_text()


def test_the_audit_log_names_the_method_of_each_product(daemons, tmp_path):
    """Also without rules, when no caller has a name."""
    log = tmp_path / "audit"
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", f"--audit-log={log}")
    infer = infer_request()
    with grpc.insecure_channel(daemon.tcp) as channel:
        assert multiply(channel, []).d
        gemm = gemm_pb2_grpc.GemmStub(channel)
        joint = gemm_pb2.MultiplyStreamRequest(requests=[product()])
        assert len(list(gemm.MultiplyStream(iter([joint]), timeout=DEADLINE_S))) == 1
        models = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert models.ModelInfer(infer, timeout=DEADLINE_S).outputs
        assert len(list(models.ModelStreamInfer(iter([infer]), timeout=DEADLINE_S))) == 1
        assert call(channel, "/gemmd.v1.Registry/ListDevices", [])[0] == grpc.StatusCode.OK
    daemon.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line["method"]) for line in lines if line["event"] != "call"] == [
        ("product", "Multiply"),
        ("product", "MultiplyStream"),
        ("product", "ModelInfer"),
        ("product", "ModelStreamInfer"),
    ]
    (other,) = (line for line in lines if line["event"] == "call")
    assert (other["method"], other["identity"], other["status"]) == ("/gemmd.v1.Registry/ListDevices", "", "OK")


def test_files_of_lines_are_opened_again_on_sighup(daemons, tmp_path):
    """Also without rules, when there is nothing else to read."""
    files = {"audit-log": tmp_path / "audit", "traces": tmp_path / "traces"}
    daemon = daemons.start(
        "--devices=cpu", "--lame-duck=1ms", f"--audit-log={files['audit-log']}", f"--traces={files['traces']}:1"
    )

    def count(path):
        """The products in a file."""
        return len(path.read_text().splitlines())

    with grpc.insecure_channel(daemon.tcp) as channel:
        assert multiply(channel, []).d
        for path in files.values():
            wait_until(lambda p=path: count(p) == 1, PATIENCE_S, f"a product in {path}")
            path.rename(f"{path}.old")
        assert multiply(channel, []).d
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: len(daemon.events("file_opened_again")) == 2, PATIENCE_S, "both files opened again")
        for _ in range(3):
            assert multiply(channel, []).d
        # If a file cannot be opened, its lines go where they went before.
        for path in files.values():
            path.rename(f"{path}.new")
            path.mkdir()
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: len(daemon.events("file_kept")) == 2, PATIENCE_S, "both files kept")
        kept = [line["file"] for line in daemon.events("file_kept")]
        assert sorted(kept) == sorted(map(str, files.values()))
        assert multiply(channel, []).d
    daemon.stop()
    for path in files.values():
        assert (count(path.with_suffix(".old")), count(path.with_suffix(".new"))) == (2, 4)


def test_a_daemon_without_such_files_and_its_workers_survive_sighup(daemons):
    """`systemctl kill --signal=SIGHUP` and a terminal that goes send it to all of them."""
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms")
    with grpc.insecure_channel(daemon.tcp) as channel:
        assert multiply(channel, []).d
        workers = daemon.host_workers()
        assert workers
        for pid in (daemon.pid, *workers):
            os.kill(pid, signal.SIGHUP)
        assert multiply(channel, []).d
        assert daemon.host_workers() == workers
    daemon.stop()


def test_audit_lines_that_a_full_disk_loses_are_counted_and_told(daemons):
    daemon = daemons.start(
        "--devices=cpu", "--lame-duck=1ms", "--audit-log=/dev/full", "--metrics-listen=127.0.0.1:0"
    )
    assert scrape(daemon).value("gemmd_audit_lines_lost_total") == 0

    def is_told():
        assert multiply(channel, []).d
        return daemon.events("audit_lines_lost")

    with grpc.insecure_channel(daemon.tcp) as channel:
        wait_until(is_told, PATIENCE_S, "the loss in the log")
    told = sum(int(event["lines"]) for event in daemon.events("audit_lines_lost"))
    assert scrape(daemon).value("gemmd_audit_lines_lost_total") >= told > 0


def test_the_user_of_a_unix_socket(daemons, tmp_path):
    trust = Trust(tmp_path)
    me = f"uid:{os.getuid()}"
    trust.write({me: {"may": ["multiply"]}})
    daemon = daemons.start("--devices=cpu", *trust.flags)
    with grpc.insecure_channel(daemon.unix) as unix, grpc.insecure_channel(daemon.tcp) as tcp:
        assert multiply(unix, []).d
        assert refusal(multiply, tcp, [])[0] == UNAUTHENTICATED
        # The user does not replace a bad token.
        assert refusal(multiply, unix, [("authorization", "Bearer x")])[0] == UNAUTHENTICATED
    trust.write({me: {"may": []}, "uid:4294967294": {"may": ["multiply"]}})
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.events("rules_read"), DEADLINE_S, "rules read")
    with grpc.insecure_channel(daemon.unix) as unix:
        assert refusal(multiply, unix, [])[0] == PERMISSION_DENIED


def test_rules_are_read_again_under_load(daemons, tmp_path):
    """Calls of callers that keep their role never fail; callers that lose it are refused."""
    trust = Trust(tmp_path)
    rules = {"keeps": {"may": ["multiply"]}, "loses": {"may": ["multiply"]}}
    trust.write(rules)
    daemon = daemons.start("--devices=cpu", *trust.flags)
    over = threading.Event()
    failures = []

    def keep_calling():
        with grpc.insecure_channel(daemon.tcp) as channel:
            # The first failure is enough: a dead daemon would cause them without end.
            while not over.is_set() and not failures:
                try:
                    multiply(channel, bearer("keeps"))
                except grpc.RpcError as error:
                    failures.append(error)

    threads = [threading.Thread(target=keep_calling) for _ in range(2)]
    for thread in threads:
        thread.start()
    with grpc.insecure_channel(daemon.tcp) as channel:
        stream_messages = queue.SimpleQueue()
        stream = gemm_pb2_grpc.GemmStub(channel).MultiplyStream(
            iter(stream_messages.get, None), metadata=bearer("loses"), timeout=DEADLINE_S
        )
        stream_messages.put(gemm_pb2.MultiplyStreamRequest(requests=[product()]))
        next(stream)
        infers = queue.SimpleQueue()
        answers = inference_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            iter(infers.get, None), metadata=bearer("loses"), timeout=DEADLINE_S
        )
        infers.put(infer_request())
        assert not next(answers).error_message
        for count in range(1, 6):
            changed = dict(rules)
            changed["loses"] = {"may": []} if count % 2 else {"may": ["multiply"]}
            trust.write(changed)
            daemon.signal(signal.SIGHUP)
            wait_until(lambda: len(daemon.events("rules_read")) >= count, DEADLINE_S, "rules read")
            if count % 2:
                assert refusal(multiply, channel, bearer("loses"))[0] == PERMISSION_DENIED
            else:
                assert multiply(channel, bearer("loses")).d
        # A stream that began before is refused from its next message on.
        stream_messages.put(gemm_pb2.MultiplyStreamRequest(requests=[product()]))
        code, _ = refusal(next, stream)
        assert code == PERMISSION_DENIED
        stream_messages.put(None)
        infers.put(infer_request())
        assert next(answers).error_message.startswith("PERMISSION_DENIED")
        infers.put(None)
        # An invalid file changes nothing, and the log gives the reason.
        trust.rules_file.write_text('{"identities": {"keeps": {"may": ["all"]}}}')
        daemon.signal(signal.SIGHUP)
        kept = wait_until(lambda: daemon.events("rules_kept"), DEADLINE_S, "rules kept")
        assert "identities.keeps.may" in kept[0]["reason"]
        assert refusal(multiply, channel, bearer("loses"))[0] == PERMISSION_DENIED
    over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def put_in_place_of(path, kind):
    """Something that cannot be read to its end."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with open(path, "wb") as file:
            file.truncate(1 << 40)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "endless file"])
def test_what_is_no_short_file_changes_nothing_when_it_is_read_again(daemons, tmp_path, kind):
    """Rules, tokens, keys and certificates: the daemon reports the fault, serves, and ends when
    told to."""
    trust, world = Trust(tmp_path), certificates.World(tmp_path)
    trust.write({"batch": {"may": ["multiply"]}})
    daemon = daemons.start(
        "--devices=cpu", *trust.flags, *world.flags, *world.flags_for_clients, listen="127.0.0.1:0,mtls:127.0.0.1:0"
    )
    callers = {"rules": trust.rules_file, "tokens": trust.tokens_file, "jwt-keys": trust.keys_file}
    peers = {
        "tls-cert": world.server.cert_path,
        "tls-key": world.server.key_path,
        "client-ca": world.authority.cert_path,
        "client-crl": world.revocations,
    }

    def is_told(event, option, path):
        reasons = [line["reason"] for line in daemon.events(event)]
        return any(reason.startswith(f"{option}: ") and str(path) in reason for reason in reasons)

    with grpc.insecure_channel(daemon.tcp) as channel:
        for files, event in ((callers, "rules_kept"), (peers, "certificate_refused")):
            for option, path in files.items():
                before = path.read_bytes()
                put_in_place_of(path, kind)
                if event == "rules_kept":
                    daemon.signal(signal.SIGHUP)
                wait_until(lambda e=event, o=option, p=path: is_told(e, o, p), PATIENCE_S, f"{option} refused")
                assert multiply(channel, bearer("batch")).d
                path.rmdir() if kind == "folder" else path.unlink()
                path.write_bytes(before)
        for path in (*callers.values(), *peers.values()):
            put_in_place_of(path, kind)
        daemon.signal(signal.SIGHUP)
    daemon.stop()


def test_files_that_are_wrong_are_told_at_the_start(daemons, tmp_path):
    trust = Trust(tmp_path)
    trust.write({"a": {"may": ["multiply"]}})
    trust.tokens_file.write_text("a: short\n")
    daemon = daemons.launch("--devices=cpu", *trust.flags)
    assert daemon.wait() == 1
    assert "tokens: line 1: got no SHA-256" in daemon.stderr()
    daemon = daemons.launch(f"--tokens={trust.tokens_file}", "--devices=cpu")
    assert daemon.wait() == 1
    assert "rules: got nothing" in daemon.stderr()
