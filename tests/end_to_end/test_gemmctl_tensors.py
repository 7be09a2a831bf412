# SPDX-License-Identifier: Apache-2.0
"""gemmctl and resident tensors, each command in a separate process."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess

import grpc
import numpy as np
import pytest
from gemmd.v1 import registry_pb2_grpc, statistics_pb2

LIMIT_S = 300


@pytest.fixture
def ctl(gemmctl, daemon, tmp_path):
    def run(*arguments, session=None):
        environment = {"XDG_RUNTIME_DIR": str(tmp_path), "GEMMD_ADDRESS": daemon.unix}
        if session:
            environment["GEMMD_SESSION"] = session
        done = subprocess.run(
            [gemmctl, *arguments], env=environment, capture_output=True, timeout=LIMIT_S, check=False
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


def random_matrix(rng, rows, columns):
    return np.frombuffer(rng.randbytes(rows * columns * 8), dtype=np.float64).reshape(rows, columns)


def test_a_large_file_goes_and_comes_back(ctl, tmp_path, rng):
    # Enough for more than one connection, and not a whole number of chunks.
    np.save(tmp_path / "w.npy", random_matrix(rng, 1537, 2049))
    code, out, err = ctl("put", tmp_path / "w.npy", "--name", "weights/w", "--known", "--json")
    assert code == 0, err
    put = json.loads(out)
    assert put["pinned"] and put["bytes"] == 1537 * 2049 * 8
    code, _, err = ctl("get", "weights/w", tmp_path / "back.npy")
    assert code == 0, err
    assert (tmp_path / "back.npy").read_bytes() == (tmp_path / "w.npy").read_bytes()
    code, out, err = ctl("ls", "weights/*")
    assert code == 0 and put["handle"] in out, err
    assert ctl("get", put["handle"], tmp_path / "again.npy")[0] == 0
    assert ctl("rm", "weights/w")[0] == 0
    code, _, err = ctl("get", "weights/w", tmp_path / "gone.npy")
    assert code == 1 and "NOT_FOUND" in err
    assert not list(tmp_path.glob("gone*"))


def test_a_killed_daemon_gets_the_files_again(gemmctl, daemons, tmp_path, rng):
    """The next command puts pinned tensors with names again, which a daemon at the same address has lost."""
    listen = f"unix:{tmp_path}/gemmd.sock"
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "GEMMD_ADDRESS": listen}
    path = tmp_path / "w.npy"
    w, x = random_matrix(rng, 64, 48), np.ones((2, 64))
    np.save(path, w)
    np.save(tmp_path / "x.npy", x)

    def ctl(*arguments):
        done = subprocess.run(
            [gemmctl, *arguments], env=environment, capture_output=True, timeout=LIMIT_S, check=False, cwd=tmp_path
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def killed(daemon):
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        return daemons.start("--devices=cpu", listen=listen)

    daemon = daemons.start("--devices=cpu", listen=listen)
    for name in ("w", "same"):
        code, _, err = ctl("put", "w.npy", "--name", name)
        assert code == 0, err
    daemon = killed(daemon)
    code, _, err = ctl("multiply", "x.npy", "@w", "-o", "d.npy")
    assert code == 0, err
    assert f"the server has lost the session; putting w again from {path}" in err
    want = np.frombuffer((tmp_path / "w.npy").read_bytes()[-w.nbytes :]).reshape(w.shape)
    assert ctl("get", "w", "back.npy")[0] == 0
    assert np.load(tmp_path / "back.npy").tobytes() == want.tobytes()
    # The same bytes under another name are not sent.
    with grpc.insecure_channel(listen) as channel:
        tensors = registry_pb2_grpc.RegistryStub(channel).GetStatistics(statistics_pb2.GetStatisticsRequest()).tensors
    assert (tensors.uploads_complete, tensors.uploads_known) == (1, 1)

    # Other bytes in a file of the same size and time are found by their hash.
    time_ns = path.stat().st_mtime_ns
    np.save(path, -w)
    os.utime(path, ns=(time_ns, time_ns))
    killed(daemon)
    code, _, err = ctl("ls")
    assert code == 2 and f"{path} has changed" in err, err
    # Each is given up by itself, or put as it is now.
    code, _, err = ctl("rm", "same")
    assert code == 2 and "w: " in err and "same: " not in err, err
    assert ctl("put", path, "--name", "w")[0] == 0
    code, out, err = ctl("ls")
    assert code == 0 and "same" not in out, err


def test_compress(ctl, tmp_path):
    # The large elements of each group are at its end.
    values = np.arange(1, 33, dtype=np.float16).reshape(4, 8)
    np.save(tmp_path / "w.npy", values)
    np.save(tmp_path / "ones.npy", np.eye(8, dtype=np.float16))
    assert ctl("put", tmp_path / "w.npy", "--name", "w")[0] == 0
    code, out, err = ctl("compress", "w", "--name", "w24")
    assert code == 0 and "4 x 8 f16 2:4" in out, err
    code, _, err = ctl("multiply", "@w24", tmp_path / "ones.npy", "-o", tmp_path / "d.npy")
    assert code == 0, err
    kept = np.where(np.arange(8) % 4 >= 2, values, 0)
    assert (np.load(tmp_path / "d.npy") == kept).all()
    code, _, err = ctl("compress", "w", "--mask", "w")
    assert code == 1 and "mask.type: got f16, want b1" in err
    code, _, err = ctl("compress", "nothing")
    assert code == 1 and "NOT_FOUND" in err


def test_commands_share_a_session_without_a_login(gemmctl, daemon, tmp_path, rng):
    """Containers, and shells after su, have no login session."""
    np.save(tmp_path / "w.npy", random_matrix(rng, 3, 4))
    kept = pathlib.Path(f"/tmp/gemmd-{os.geteuid()}")
    kept /= hashlib.sha256(daemon.unix.encode()).hexdigest()[:32] + ".session"
    try:
        for arguments in (("put", tmp_path / "w.npy", "--name", "w"), ("get", "w", tmp_path / "back.npy"), ("rm", "w")):
            done = subprocess.run(
                [gemmctl, *arguments], env={"GEMMD_ADDRESS": daemon.unix}, capture_output=True, timeout=LIMIT_S
            )
            assert done.returncode == 0 and not done.stderr, done.stderr
        assert (tmp_path / "back.npy").read_bytes() == (tmp_path / "w.npy").read_bytes()
        assert kept.stat().st_mode & 0o777 == 0o600 and kept.parent.stat().st_mode & 0o777 == 0o700
    finally:
        kept.unlink(missing_ok=True)


def test_the_environment_names_a_session(ctl, tmp_path, rng):
    np.save(tmp_path / "w.npy", random_matrix(rng, 3, 4))
    assert ctl("put", tmp_path / "w.npy", "--name", "w")[0] == 0
    (kept,) = (tmp_path / "gemmd").glob("*.session")
    token = kept.read_text().strip()
    kept.unlink()
    code, _, err = ctl("ls")
    assert code == 2 and "gemmctl put" in err
    code, out, err = ctl("ls", session=token)
    assert code == 0 and "3 x 4 f64" in out, err
    code, _, err = ctl("ls", session="0" * 32)
    assert code == 1 and "UNAUTHENTICATED" in err


def test_an_operator_lists_and_drops_a_session(ctl, tmp_path, rng):
    np.save(tmp_path / "w.npy", random_matrix(rng, 300, 400))
    assert ctl("put", tmp_path / "w.npy", "--name", "left behind")[0] == 0
    (kept,) = (tmp_path / "gemmd").glob("*.session")
    token = kept.read_text().strip()
    session_id = hashlib.sha256(bytes.fromhex(token)).hexdigest()[:16]
    code, out, err = ctl("sessions", "--json")
    assert code == 0, err
    assert token not in out
    [session] = [each for each in json.loads(out)["sessions"] if each["id"] == session_id]
    assert (session["caller"], session["tensors"]) == (f"uid:{os.getuid()}", 1)
    assert session["largest_tensors"] == [{"name": "left behind", "bytes": 960000, "pinned": True}]
    code, out, err = ctl("sessions")
    assert code == 0, err
    [line] = [line for line in out.splitlines() if line.startswith(session_id)]
    assert f"uid:{os.getuid()}" in line and line.endswith("938 KiB  left behind"), line
    code, out, err = ctl("sessions", "--limit", "0")
    assert code == 2, err
    code, _, err = ctl("drop-session", token)
    assert code == 1 and "NOT_FOUND" in err
    code, out, err = ctl("drop-session", session_id)
    assert code == 0 and f"{session_id} is dropped: 1 tensor, 938 KiB freed" in out, out + err
    assert session_id not in ctl("sessions")[1]
    code, _, err = ctl("drop-session", session_id, "--json")
    assert code == 1 and "NOT_FOUND" in err
    code, _, err = ctl("ls")
    assert code == 2 and "gemmctl put" in err
    # Its owner starts a new session.
    assert ctl("put", tmp_path / "w.npy", "--name", "left behind")[0] == 0
    [session] = json.loads(ctl("sessions", "--json")[1])["sessions"][:1]
    code, out, err = ctl("drop-session", session["id"], "--json")
    assert code == 0 and json.loads(out)["tensors"] == session["tensors"], err
