# SPDX-License-Identifier: Apache-2.0
"""gemmctl and resident tensors, each command in a separate process."""

import functools
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


def put_files(tmp_path):
    """What gemmctl noted of the files that it put, which it puts again once the server has lost them."""
    return (tmp_path / "gemmd").glob("*.tensors")


def session_files(tmp_path):
    return list((tmp_path / "gemmd").glob("*.session"))


def mode(path):
    return path.stat().st_mode & 0o777


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


class Lonely:
    """A daemon at an address of the test, and gemmctl for it."""

    def __init__(self, ctl, daemons, tmp_path):
        self.listen = f"unix:{tmp_path}/gemmd.sock"
        self.ctl = functools.partial(ctl, address=self.listen)
        self._daemons = daemons
        self._daemon = self._start()

    def _start(self):
        return self._daemons.start("--devices=cpu", listen=self.listen)

    def restart(self):
        self._daemon.signal(signal.SIGKILL)
        self._daemon.wait()
        self._daemon = self._start()


@pytest.fixture
def lonely(ctl, daemons, tmp_path):
    return Lonely(ctl, daemons, tmp_path)


def test_a_killed_daemon_gets_the_files_again(lonely, tmp_path, rng):
    """The next command puts pinned tensors with names again, which a daemon at the same address has lost."""
    ctl = lonely.ctl
    path = tmp_path / "w.npy"
    w = random_matrix(rng, 64, 48)
    np.save(path, w)
    np.save(tmp_path / "x.npy", np.ones((2, 64)))
    for name in ("w", "same"):
        code, _, err = ctl("put", "w.npy", "--name", name)
        assert code == 0, err
    lonely.restart()
    code, _, err = ctl("multiply", "x.npy", "@w", "-o", "d.npy")
    assert code == 0, err
    assert f"the server has lost the session; putting w again from {path}" in err
    assert ctl("get", "w", "back.npy").code == 0
    assert (tmp_path / "back.npy").read_bytes() == path.read_bytes()
    # The same bytes under another name are not sent.
    with grpc.insecure_channel(lonely.listen) as channel:
        tensors = registry_pb2_grpc.RegistryStub(channel).GetStatistics(statistics_pb2.GetStatisticsRequest()).tensors
    assert (tensors.uploads_complete, tensors.uploads_known) == (1, 1)

    # Other bytes in a file of the same size and time are found by their hash.
    time_ns = path.stat().st_mtime_ns
    np.save(path, -w)
    os.utime(path, ns=(time_ns, time_ns))
    lonely.restart()
    code, _, err = ctl("ls")
    assert code == 2 and f"{path} has changed" in err, err
    # Each is given up by itself, or put as it is now.
    code, _, err = ctl("rm", "same")
    assert code == 2 and "w: " in err and "same: " not in err, err
    assert ctl("put", path, "--name", "w").code == 0
    code, out, err = ctl("ls")
    assert code == 0 and "same" not in out, err


def test_pinned_tensors_with_names_are_put_again(lonely, tmp_path):
    ctl = lonely.ctl
    a, b = tmp_path / "a.npy", tmp_path / "b.npy"
    assert ctl("random", "2,3", "-o", a).code == ctl("random", "4,4", "--type=bf16", "-o", b).code == 0
    for flags in ([a, "--name=a"], [b, "--name=b", "--type=bf16", "--device=cpu"], [a, "--name=leased", "--lease=5m"], [a]):
        assert ctl("put", *flags).code == 0

    def tensors():
        """What is listed of each tensor, except what differs between sessions."""
        listed = json.loads(ctl("ls", "--json").out)["tensors"]
        own = {"handle", "expires_in_ns", "created_unix_ns", "used_unix_ns"}
        return {each.get("name", ""): {key: each[key] for key in each.keys() - own} for each in listed}

    before = tensors()
    assert before.keys() == {"a", "b", "leased", ""}
    (noted,) = put_files(tmp_path)
    assert mode(noted) == 0o600
    lonely.restart()
    code, _, err = ctl("ls")
    assert code == 0
    assert f"lost the session; putting a again from {a}\n" in err and f"putting b again from {b}\n" in err
    assert tensors() == {name: before[name] for name in ("a", "b")}
    # A file that gemmctl has not written says so.
    puts = noted.read_text()
    for bad in ("{", "[]", '{"session": 1}', '{"session": "", "server": 1, "tensors": {"a": {"path": 3}}}'):
        noted.write_text(bad)
        assert f"{noted}: got a file that gemmctl has not written" in ctl("ls").err
    noted.write_text(puts)
    # Once is enough.
    assert ctl("ls").err == ""
    # A newer time alone changes nothing.
    time_ns = a.stat().st_mtime_ns + 3600 * 10**9
    os.utime(a, ns=(time_ns, time_ns))
    lonely.restart()
    assert ctl("get", "a", "c.npy").code == 0
    assert (tmp_path / "c.npy").read_bytes() == a.read_bytes()


def test_what_was_removed_replaced_or_unpinned_is_not_put_again(ctl, tmp_path):
    def noted():
        (path,) = put_files(tmp_path)
        return json.loads(path.read_text())["tensors"].keys()

    def put(name):
        code, out, err = ctl("put", "a.npy", "--name", name, "--json")
        assert code == 0 and name in noted(), err
        return json.loads(out)["handle"]

    assert ctl("random", "4,8", "-o", "a.npy").code == ctl("random", "8,8", "-o", "b.npy").code == 0
    put("stays")
    for command in (
        "rm w",
        "keep w --unpin",
        "put a.npy --name w --lease 5m",
        "compress w --name w",
        "multiply a.npy b.npy --into @w",
        "multiply a.npy b.npy --keep-result w",
    ):
        put("w")
        code, _, err = ctl(*command.split())
        assert code == 0, err
        assert noted() == {"stays"}, command
    assert ctl("rm", put("w")).code == 0
    assert noted() == {"stays"}


def test_what_is_put_comes_back(ctl, tmp_path):
    for name in ("f32", "bf16", "e4m3", "s4", "b1"):
        assert ctl("random", "3,5,7", "--type", name, "-o", "a.npy").code == 0
        code, out, err = ctl("put", "a.npy", "--name", "a", "--type", name, "--known")
        assert code == 0 and "3 of 5 x 7" in out, err
        code, _, err = ctl("get", "a", "b.npy")
        assert code == 0, err
        written = (tmp_path / "a.npy").read_bytes()
        assert (tmp_path / "b.npy").read_bytes() == written, name
        assert ctl("get", "@a", "-", is_binary=True).out == written, name
    # One name, one tensor.
    code, out, err = ctl("ls", "--json")
    assert code == 0, err
    [tensor] = json.loads(out)["tensors"]
    assert len(tensor["handle"]) == 32 and tensor["pinned"]
    assert "3 of 5 x 7 b1" in ctl("ls").out


def test_commands_share_a_session(ctl, tmp_path):
    code, _, err = ctl("ls")
    assert code == 2 and "`gemmctl put` opens one" in err
    assert ctl("random", "2,3", "-o", "a.npy").code == 0
    assert ctl("put", "a.npy", "--name", "a").code == 0
    [kept] = session_files(tmp_path)
    token = kept.read_text()
    assert ctl("put", "a.npy", "--name", "b", "--lease", "5m").code == 0
    assert session_files(tmp_path) == [kept] and kept.read_text() == token
    assert mode(kept) == 0o600
    listed = {each["name"]: each for each in json.loads(ctl("ls", "--json").out)["tensors"]}
    assert listed["a"]["pinned"] and not listed["b"]["pinned"] and listed["b"]["lease_ns"] == 300 * 10**9
    # A file that others can write could contain another user's session.
    kept.chmod(0o644)
    code, _, err = ctl("ls")
    assert code == 2 and "want one of mode 0600" in err
    kept.chmod(0o600)
    # So could one in a folder of others, or behind a link made by others.
    folder, elsewhere = kept.parent, tmp_path / "elsewhere"
    folder.chmod(0o777)
    for command in (["ls"], ["put", "a.npy"]):
        code, _, err = ctl(*command)
        assert code == 2 and "want a folder of mode 0700" in err
    folder.chmod(0o700)
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    assert "want a folder of mode 0700" in ctl("ls").err
    folder.unlink()
    elsewhere.rename(folder)
    assert ctl("ls", "--session", "token9").code == 1
    assert ctl("ls", "--session", token.strip()).code == 0


def test_products_name_tensors_and_leave_results(ctl, tmp_path, rng):
    a = np.array([[rng.randrange(-8, 8) for _ in range(3)] for _ in range(2)], np.float32)
    b = np.array([[rng.randrange(-8, 8) for _ in range(4)] for _ in range(3)], np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    assert ctl("put", "b.npy", "--name", "b").code == 0
    code, out, err = ctl("multiply", "a.npy", "@b", "--keep-result", "d", "--json")
    assert code == 0, err
    told = json.loads(out)["tensor"]
    assert told["name"] == "d" and told["pinned"]
    assert ctl("multiply", "a.npy", "@b", "--c", "@d", "--beta", "1", "--keep-result", "e").code == 0
    for name, want in (("d", a @ b), ("e", 2 * (a @ b))):
        assert ctl("get", name, "out.npy").code == 0
        assert np.array_equal(np.load(tmp_path / "out.npy"), want)
    # Shapes are checked before anything is sent.
    code, _, err = ctl("multiply", "b.npy", "@b")
    assert code == 2 and "b: got 3 rows of op(B), want k = 4" in err
    for flags, message in (
        (["@none"], "@none: "),
        (["@b", "--verify"], "--verify: got tensors"),
        (["@b", "--keep-result", "d", "--into", "@d"], "want one of them"),
        (["@b", "--b-type", "bf16"], "want bf16"),
    ):
        assert message in ctl("multiply", "a.npy", *flags).err


def test_leases_and_removal(ctl):
    assert ctl("random", "4,8", "-o", "a.npy").code == 0
    assert ctl("put", "a.npy", "--name", "a").code == 0
    assert "kept    for" in ctl("keep", "a", "--unpin", "--lease", "90").out
    assert ctl("keep", "a", "--unpin", "--pin").code == 2
    assert ctl("keep", "a", "--lease", "soon").code == 2
    assert ctl("rm", "a").code == 0
    code, _, err = ctl("rm", "a")
    assert code == 1 and "NOT_FOUND" in err


def test_files_that_are_no_matrices_are_not_put(ctl, tmp_path):
    (tmp_path / "text.npy").write_text("text")
    for name in ("missing.npy", "text.npy"):
        assert ctl("put", name).code == 2
    assert not (tmp_path / "gemmd").exists()


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
    assert not session_files(tmp_path) and not list(put_files(tmp_path))
    # Its owner starts a new session.
    assert ctl("put", tmp_path / "w.npy", "--name", "left behind")[0] == 0
    [session] = json.loads(ctl("sessions", "--json")[1])["sessions"][:1]
    code, out, err = ctl("drop-session", session["id"], "--json")
    assert code == 0 and json.loads(out)["tensors"] == session["tensors"], err
