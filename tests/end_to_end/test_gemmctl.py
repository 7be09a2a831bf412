# SPDX-License-Identifier: Apache-2.0
"""The command line beside NumPy: it reads files that NumPy writes, and writes files that NumPy
reads. Its exit codes, and what it says of a server."""

import io
import json
import re
import signal
from concurrent import futures

import grpc
import numpy as np
import pytest
from checked_server import serve  # noqa: F401
from elements import ELEMENTS, convert
from product import small_integers


def integers(rng, name, rows, columns):
    element = ELEMENTS[name]
    return convert(small_integers(rng, element, rows, columns), element)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def result(output):
    """The result that gemmctl wrote to its standard output."""
    return np.load(io.BytesIO(output))


# NumPy has names only for the types in the first line; for the others gemmctl gets the type.
@pytest.mark.parametrize(
    "name,told",
    [(name, False) for name in ("f64", "f32", "f16", "s8", "u8")]
    + [(name, True) for name in ("bf16", "e4m3", "e5m2")],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_multiply_files(ctl, tmp_path, rng, name, told, order):
    a, b = integers(rng, name, 17, 9), integers(rng, name, 9, 13)
    np.save(tmp_path / "a.npy", np.asarray(a, order=order))
    np.save(tmp_path / "b.npy", b)
    code, out, err = ctl("multiply", "a.npy", "b.npy", "-o", "d.npy", "--verify", *(["--type", name] if told else []))
    assert code == 0 and not err, err
    assert re.search(f"^product  17 x 13 x 9, \\w+ <- {name} x {name}, 3,978 operations$", out, re.MULTILINE), out
    assert re.search(f"^kernel   \\S+\\.{name}\\.\\S+$", out, re.MULTILINE), out
    assert re.search(r"^compute +[\d.]+ [mun]?s ", out, re.MULTILINE), out
    assert "\nverified  221 of 221 elements" in out
    got = np.load(tmp_path / "d.npy")
    assert got.shape == (17, 13)
    assert np.array_equal(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))


def test_multiply_through_pipes(ctl, tmp_path, rng):
    a, b = integers(rng, "f32", 6, 5), integers(rng, "f32", 5, 4)
    np.save(tmp_path / "b.npy", b)
    for operands, stdin in ((("-", "b.npy"), npy(a)), (("-", "-"), npy(a) + npy(b))):
        code, out, err = ctl("multiply", *operands, "-o", "-", stdin=stdin, is_binary=True)
        assert code == 0, err
        assert np.array_equal(result(out), a @ b)
        # The output has the result, so the report goes elsewhere.
        assert err.startswith("kernel   ")
    code, _, err = ctl("multiply", "-", "b.npy", stdin=npy(a) + b"x")
    assert code == 2 and "standard input: npy file: got bytes after the data" in err


def test_one_matrix_serves_a_batch(ctl, tmp_path, rng):
    a = np.stack([integers(rng, "f32", 4, 2) for _ in range(3)])
    b = integers(rng, "f32", 2, 5)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    code, out, err = ctl("multiply", "a.npy", "b.npy", "-o", "-", is_binary=True)
    assert code == 0, err
    assert np.array_equal(result(out), a @ b)
    # B is read once.
    assert "\nbytes    136 B read, 240 B written\n" in err
    code, _, err = ctl("multiply", "a.npy", "b.npy", "--batch", 4)
    assert (code, err) == (2, "gemmctl: INVALID_ARGUMENT: a: got a batch of 3, want 4\n")


def test_repeated_calls(ctl):
    """Also that empty calls, whose time is told, are no products."""

    def admissions():
        return json.loads(ctl("top", "--once", "--json", "--interval=1ms").out)["statistics"].get("admissions", 0)

    before = admissions()
    flags = ["--repeat", 5, "--warmup", 2, "--json", "--verify"]
    code, out, err = ctl("multiply", "--random", "8,8,8", *flags)
    assert code == 0, err
    assert admissions() == before + 7
    told = json.loads(out)
    assert told["calls"] == 5 and told["response"]["operations"] == 1024
    assert told["connect_ns"] >= 0 and told["empty_call_ns"] > 0
    stages = told["stages"]
    assert 0 < stages["compute"]["min_ns"] <= stages["compute"]["p50_ns"] <= stages["compute"]["p99_ns"]
    assert 0 < stages["overhead"]["p50_ns"] <= stages["total"]["p99_ns"]
    assert stages["round_trip"]["min_ns"] > 0 and stages["round_trip"]["p50_ns"] > 0
    assert told["verification"]["passed"] and told["verification"]["checked_elements"] == 64
    code, out, err = ctl("multiply", "--random", "4,4,4")
    assert code == 0 and re.search(r"\nconnect  .*s, and .*s for an empty call\n", out), out


@pytest.mark.parametrize(
    "name",
    ["f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "s8", "u8", "s4", "u4"],
)
def test_multiply_a_sparse_operand(ctl, name):
    flags = ["--sparse-a", "--prune", "--verify", "--type", name]
    for shape in ("17,13,37", "1,5,1", "64,64,64"):
        code, out, err = ctl("multiply", "--random", shape, *flags)
        assert code == 0, err
        assert f"{name} 2:4 x {name}" in out
        assert "nonzero elements" in err


def test_multiply_a_sparse_file(ctl, tmp_path, rng):
    a, b = integers(rng, "f16", 6, 10), integers(rng, "f16", 10, 4)
    a[:, 0::4] = a[:, 2::4] = 0
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    product = ["multiply", "a.npy", "b.npy", "-o", "d.npy"]
    code, _, err = ctl(*product, "--sparse-a")
    assert code == 0, err
    assert np.array_equal(np.load(tmp_path / "d.npy"), a.astype(np.float32) @ b.astype(np.float32))
    a[:, :] = np.arange(10)
    a[4, 4:8] = [1, -2, 3, 0]
    np.save(tmp_path / "a.npy", a)
    code, _, err = ctl(*product, "--sparse-a")
    assert code == 2 and "a.data: row 0, group 0: got 3 nonzero elements" in err
    a = np.where(np.arange(10) // 4 == 1, a, 0).astype(np.float16) * (np.arange(6) == 4)[:, None]
    np.save(tmp_path / "a.npy", a)
    code, _, err = ctl(*product, "--sparse-a")
    assert code == 2 and err == (
        "gemmctl: INVALID_ARGUMENT: a.data: row 4, group 1: got 3 nonzero elements, want at most 2 "
        "(--prune drops the smallest)\n"
    )
    code, _, err = ctl(*product, "--sparse-a", "--prune")
    assert code == 0 and err.startswith("gemmctl: a: dropped 1 of 3 nonzero elements\n"), err
    a[4, 4] = 0
    assert np.array_equal(np.load(tmp_path / "d.npy"), a.astype(np.float32) @ b.astype(np.float32))
    code, _, err = ctl(*product, "--prune")
    assert code == 2 and "--sparse-a" in err


def test_a_chip_is_its_simulator(ctl):
    def device(*flags):
        code, out, err = ctl("multiply", "--random", "2,2,2", "--type=f16", "--json", *flags)
        assert code == 0, err
        return json.loads(out)["response"]["device"]

    assert device() == "cpu"
    assert device("--chip", "sm_90") == "sim:sm_90"
    assert device("--chip", "sm_90", "--device", "sim:sm_90") == "sim:sm_90"
    code, _, err = ctl("multiply", "--random", "2,2,2", "--chip", "sm_90", "--device", "cpu")
    assert code == 2 and "--chip: got sm_90 with --device cpu, want either" in err


def test_the_server_checks(ctl, tmp_path):
    def checked(*arguments):
        code, out, err = ctl("multiply", *arguments)
        assert code == 0, err
        return out

    assert "\nchecked " not in checked("--random", "4,4,4")
    assert re.search(
        r"\nchecked   by the server, sampled: \d+ elements are right; a wrong one is missed with probability 0.75\n"
        r"          cost 0.\d+ of the product's operations, [\d.]+ [mun]?s of ",
        checked("--random", "40,40,4", "--server-verify", "sampled:0.25"),
    )
    duplicate = checked("--random", "4,4,4", "--server-verify", "duplicate")
    assert "checked   by the server, duplicate: 16 elements are right, again by " in duplicate
    np.save(tmp_path / "a.npy", np.array([[np.inf, 1]], np.float32))
    np.save(tmp_path / "b.npy", np.ones((2, 1), np.float32))
    checksum = checked("a.npy", "b.npy", "--server-verify", "checksum")
    assert "checked   not by the server (checksum): nonfinite\n" in checksum


def test_a_wrong_result_has_an_exit_code(ctl, serve):
    """Whoever finds it: gemmctl or the server."""
    server = serve()
    product = ["multiply", "--random", "4,4,4", "--device=cuda:0"]
    assert ctl(*product, "--verify", address=server.daemon.unix).code == 0
    server.flip(1)
    code, _, err = ctl(*product, "--verify", address=server.daemon.unix)
    assert code == 4 and err.startswith("gemmctl: DATA_LOSS: d: 1 of 16 elements are wrong; at [0, 0] got "), err
    server.flip(1)
    code, _, err = ctl(*product, "--server-verify=sampled:1", address=server.daemon.unix)
    assert code == 4 and err.startswith("gemmctl: DATA_LOSS: d: "), err


def test_explain_makes_no_matrices(ctl):
    """These would fit neither in memory nor in a message."""
    code, out, err = ctl("explain", "--random", "268435456,1024,1024", "--type", "bf16")
    assert code == 0, err
    assert "product  268435456 x 1024 x 1024, bf16 x bf16," in out and "\nbytes    512 GiB read" in out


def test_json_of_the_registry(ctl):
    for command in ("info", "devices", "kernels", "instructions"):
        code, out, err = ctl("--json", command)
        assert code == 0, err
        for line in out.splitlines():
            json.loads(line)
    code, out, err = ctl("--json", "explain", "--random", "95,97,93", "--type", "bf16")
    assert code == 0, err
    assert json.loads(out.splitlines()[0])


def test_the_registry_for_people(ctl, daemon):
    version = daemon.events("start")[0]["version"]
    assert ctl("info").out.startswith(f"gemmd                  {version}\n")
    assert version in ctl("info", "--address", daemon.unix, address="127.0.0.1:1").out
    assert "\ncpu " in ctl("devices").out
    names = [line.split()[0] for line in ctl("kernels", "--pattern", "*onednn*", "--device=cpu").out.splitlines()[1:]]
    assert names and all("onednn" in name for name in names)
    code, _, err = ctl("kernels", "--device", "sim:sm_91")
    assert code == 1 and "--device: got sim:sm_91, want a device of the server: cpu, sim:" in err
    code, out, _ = ctl("instructions", "--pattern", "none")
    assert code == 0 and "0 instructions." in out
    assert ctl("instructions", "--chip", "sm_1").code == 1


def test_exit_codes(ctl, tmp_path):
    assert ctl("health") == (0, "SERVING\n", "")
    assert ctl("health", "--service", "nobody").code == 1
    code, _, err = ctl("multiply", "--random", "4,4,4", "--kernel", "nobody")
    assert code == 1 and "nobody" in err
    assert ctl("multiply", "--nonsense").code == 2
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff{")
    assert ctl("multiply", "bad.npy", "bad.npy").code == 2
    for command in ("info", "devices", "kernels", "instructions", "health"):
        code, _, err = ctl(command, "--timeout=500ms", address=f"unix:{tmp_path / 'nobody'}")
        assert code == 3, command
        assert err.startswith(("gemmctl: UNAVAILABLE: ", "gemmctl: DEADLINE_EXCEEDED: ")), err


def test_health_of_a_daemon_that_drains(ctl, daemons):
    daemon = daemons.start("--devices=cpu", "--lame-duck=10m")

    def watched():
        """What is told while gemmctl watches, which a busy machine may not do at once."""
        for seconds in (1, 4, 16, 64):
            ended = ctl("health", "--watch", f"--timeout={seconds}s", address=daemon.unix)
            if ended.out:
                return ended[:2]
        raise AssertionError("no answer")

    assert watched() == (0, "SERVING\n")
    daemon.signal(signal.SIGTERM)
    daemon.awaited_events("lame_duck")
    assert ctl("health", "--json", address=daemon.unix)[:2] == (1, '{"status":"NOT_SERVING"}\n')
    assert watched() == (1, "NOT_SERVING\n")
    daemon.signal(signal.SIGKILL)
    daemon.wait()


@pytest.mark.parametrize("command", [["info"], ["devices"], ["multiply", "--random", "4,4,4"]])
def test_a_server_that_is_no_gemmd(ctl, command):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    code, _, err = ctl(*command, address=f"127.0.0.1:{port}")
    server.stop(None)
    assert code != 0
    assert "it is no gemmd, or one of another version" in err
