# SPDX-License-Identifier: Apache-2.0
"""gemmctl doctor, against healthy and faulty daemons."""

import json
import signal
import socket
import subprocess
import time

import certificates
import grpc
import pytest
from tensors import Session

GEMMD_FLAGS = ("--devices=cpu,sim:sm_90", "--cpu-threads=1")
LIMIT_S = 600
# A busy machine may be slow.
SLOW = {"latency"}


@pytest.fixture
def doctor(gemmctl):
    """Runs it. Returns the exit code, the checks by name, and the text for people. A quarter of the
    time is for the handshake."""

    def run(address, *flags, timeout="240"):
        command = [gemmctl, f"--address={address}", f"--timeout={timeout}", *flags, "doctor"]
        done = subprocess.run(
            [*command, "--json"], env={}, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert "gemmctl:" not in done.stderr  # gRPC reports failed handshakes there.
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        for check in checks.values():
            assert bool(check["advice"]) == (check["state"] != "ok"), check
        failed = [check for check in checks.values() if check["state"] == "fail"]
        assert done.returncode == (1 if failed else 0), done.stdout
        return checks

    return run


def states(checks, wanted):
    return sorted(name for name, check in checks.items() if check["state"] == wanted)


def test_a_sound_daemon(daemon, doctor, gemmctl):
    checks = doctor(daemon.unix)
    assert set(states(checks, "warn")) <= SLOW and not states(checks, "fail"), checks
    canaries = [name for name in checks if name.startswith("canary ")]
    assert canaries == ["canary cpu", "canary sim:sm_90"]
    assert set(checks) - set(canaries) == {
        "transport", "server", "clock", "limits", "health", "latency", "load", "memory", "tensors",
        "quarantine", "incidents",
    }  # fmt: skip
    # Over TCP a caller cannot read incidents.
    assert set(states(doctor(daemon.tcp), "warn")) - SLOW == {"incidents"}
    text = subprocess.run(
        [gemmctl, f"--address={daemon.tcp}", "doctor"],
        env={}, capture_output=True, text=True, timeout=LIMIT_S, check=True,
    ).stdout  # fmt: skip
    assert "What to do:\nincidents: " in text and "right to the bit by " in text
    assert f"\n{len(checks)} checks: " in text and text.endswith(" warn, 0 fail\n")


def test_a_device_that_computes_wrong_bits(daemons, fake_worker, tmp_path, monkeypatch, doctor):
    script = tmp_path / "script"
    monkeypatch.setenv("GEMMD_WORKER_SCRIPT", str(script))
    flags = ("--lame-duck=1ms", "--devices=cuda:0,cpu", f"--worker-binary={fake_worker}")
    daemon = daemons.start(*flags)
    assert not states(doctor(daemon.unix), "fail")
    (tmp_path / "part").write_text("Launch 1 flip\n")
    (tmp_path / "part").rename(script)
    checks = doctor(daemon.unix)
    assert states(checks, "fail") == ["canary cuda:0"] and checks["canary cpu"]["state"] == "ok"
    assert "1 of 3015 elements are wrong: [0, 0] has " in checks["canary cuda:0"]["seen"]

    # A daemon that checks answers itself does not send the wrong one.
    daemon = daemons.start(*flags, "--verify=sampled:1")
    (tmp_path / "part").write_text("Launch 1 flip\n")
    (tmp_path / "part").rename(script)
    assert states(doctor(daemon.unix), "fail") == ["canary cuda:0"]
    checks = doctor(daemon.unix)
    assert not states(checks, "fail") and {"incidents", "quarantine"} <= set(states(checks, "warn"))
    assert checks["quarantine"]["seen"].endswith(" on cuda:0")


def test_a_daemon_that_drains(daemons, doctor):
    daemon = daemons.start("--devices=cpu", "--cpu-threads=1", "--lame-duck=10m")
    daemon.signal(signal.SIGTERM)
    daemon.awaited_events("lame_duck")
    assert "health" in states(doctor(daemon.unix), "fail")
    daemon.signal(signal.SIGKILL)
    daemon.wait()


@pytest.mark.parametrize(
    "days,state", [(30, "ok"), (3, "warn"), (-1 / 24, "fail")], ids=["long", "soon", "over"]
)
def test_certificates(daemons, tmp_path, doctor, days, state):
    authority = certificates.Authority(tmp_path)
    pair = authority.sign("server", end=days * certificates.DAY)
    daemon = daemons.start(
        "--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms",
        f"--tls-cert={pair.cert_path}", f"--tls-key={pair.key_path}", listen="tls:127.0.0.1:0",
    )  # fmt: skip
    [address] = daemon.addresses
    ca = f"--tls-ca={authority.cert_path}"
    checks = doctor(address, ca)
    assert checks["transport"]["state"] == state, checks
    assert "TLSv1.3, certificate valid until 2" in checks["transport"]["seen"]
    assert ("expired" in checks["transport"]["seen"]) == (state == "fail")
    if state != "ok":
        return
    other = certificates.Authority(tmp_path, "other")
    stranger = doctor(address, f"--tls-ca={other.cert_path}")
    assert states(stranger, "fail") == ["server", "transport"]
    assert "not to be trusted" in stranger["transport"]["seen"]
    named = doctor(address, ca, "--tls-server-name=other.test")
    assert "mismatch" in named["transport"]["seen"]
    # A TLS client and a plain TCP server cannot communicate.
    plain = daemons.start("--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms")
    checks = doctor(f"tls:{plain.tcp}", ca)
    assert states(checks, "fail") == ["server", "transport"]


def test_mutual_tls(daemons, tmp_path, doctor):
    authority = certificates.Authority(tmp_path)
    pair, client = authority.sign("server", end=30 * certificates.DAY), authority.sign("client")
    daemon = daemons.start(
        "--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms",
        f"--tls-cert={pair.cert_path}", f"--tls-key={pair.key_path}",
        f"--client-ca={authority.cert_path}", listen="mtls:127.0.0.1:0",
    )  # fmt: skip
    own = [f"--tls-ca={authority.cert_path}", f"--tls-cert={client.cert_path}"]
    checks = doctor(daemon.addresses[0], *own, f"--tls-key={client.key_path}")
    assert not states(checks, "fail") and checks["transport"]["state"] == "ok"


def test_tensors_near_the_limit(daemons, doctor):
    daemon = daemons.start(
        "--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms",
        "--tensor-bytes=1000000:1000000",
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(daemon.unix, options=options) as channel, Session(channel) as session:
        session.put(bytes(920000))
        session.settled()
        assert set(states(doctor(daemon.unix), "warn")) - SLOW == {"tensors"}


def test_it_ends_in_time_whatever_the_server_does(doctor, tmp_path, timed):
    assert states(doctor(f"unix:{tmp_path / 'nobody'}", timeout="2"), "fail") == ["server"]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts connections and sends
                                                            # nothing.
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for kind in ("", "tls:"):
            started = time.monotonic()
            checks = doctor(f"{kind}{address}", timeout="3")
            assert "server" in states(checks, "fail")
            # Well below the 30 s that apply without the flag.
            timed(f"doctor with {kind or 'plain '}silence", most=25, seen=time.monotonic() - started, unit="s")
