# SPDX-License-Identifier: Apache-2.0
"""The command line beside NumPy: it reads files that NumPy writes, and writes files that NumPy
reads."""

import json
import subprocess
from concurrent import futures

import grpc
import numpy as np
import pytest
from elements import ELEMENTS, convert
from product import small_integers

LIMIT_S = 300


@pytest.fixture
def ctl(gemmctl, daemon):
    """Runs gemmctl against the daemon. Returns exit code, standard output (bytes) and error."""

    def run(*arguments, address=None, stdin=b"", timeout="60"):
        command = [gemmctl, "--address", address or daemon.unix, "--timeout", timeout, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT_S)
        return done.returncode, done.stdout, done.stderr.decode()

    return run


def integers(rng, name, rows, columns):
    element = ELEMENTS[name]
    return convert(small_integers(rng, element, rows, columns), element)


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
    files = [tmp_path / "a.npy", tmp_path / "b.npy", "-o", tmp_path / "d.npy"]
    code, _, error = ctl("multiply", *files, "--verify", *(["--type", name] if told else []))
    assert code == 0, error
    want = a.astype(np.float64) @ b.astype(np.float64)
    got = np.load(tmp_path / "d.npy")
    assert got.shape == (17, 13)
    assert np.array_equal(got.astype(np.float64), want)


def test_multiply_through_pipes(ctl, tmp_path, rng):
    a, b = integers(rng, "f32", 6, 5), integers(rng, "f32", 5, 4)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    stdin = (tmp_path / "a.npy").read_bytes()
    code, output, error = ctl("multiply", "-", tmp_path / "b.npy", "-o", "-", stdin=stdin)
    assert code == 0, error
    (tmp_path / "d.npy").write_bytes(output)
    assert np.array_equal(np.load(tmp_path / "d.npy"), a @ b)


@pytest.mark.parametrize(
    "name",
    ["f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "s8", "u8", "s4", "u4"],
)
def test_multiply_a_sparse_operand(ctl, name):
    flags = ["--sparse-a", "--prune", "--verify", "--type", name]
    for shape in ("17,13,37", "1,5,1", "64,64,64"):
        code, output, error = ctl("multiply", "--random", shape, *flags)
        assert code == 0, error
        assert f"{name} 2:4 x {name}" in output.decode()
        assert "nonzero elements" in error


def test_multiply_a_sparse_file(ctl, tmp_path, rng):
    a, b = integers(rng, "f16", 6, 10), integers(rng, "f16", 10, 4)
    a[:, 0::4] = a[:, 2::4] = 0
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = [tmp_path / "a.npy", tmp_path / "b.npy", "-o", tmp_path / "d.npy"]
    code, _, error = ctl("multiply", *files, "--sparse-a")
    assert code == 0, error
    assert np.array_equal(np.load(tmp_path / "d.npy"), a.astype(np.float32) @ b.astype(np.float32))
    a[4, 4:8] = [1, 1, 1, 0]
    np.save(tmp_path / "a.npy", a)
    code, _, error = ctl("multiply", *files, "--sparse-a")
    assert code == 2 and "a.data: row 4, group 1: got 3 nonzero elements" in error


def test_json_of_the_registry(ctl):
    for command in ("info", "devices", "kernels", "instructions"):
        code, output, error = ctl("--json", command)
        assert code == 0, error
        for line in output.decode().splitlines():
            json.loads(line)
    code, output, error = ctl("--json", "explain", "--random", "95,97,93", "--type", "bf16")
    assert code == 0, error
    assert json.loads(output.decode().splitlines()[0])


def test_exit_codes(ctl, tmp_path):
    assert ctl("health")[0] == 0
    assert ctl("health", "--service", "nobody")[0] == 1
    code, _, error = ctl("multiply", "--random", "4,4,4", "--kernel", "nobody")
    assert code == 1 and "nobody" in error
    assert ctl("multiply", "--nonsense")[0] == 2
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff{")
    assert ctl("multiply", tmp_path / "bad.npy", tmp_path / "bad.npy")[0] == 2
    nobody = f"unix:{tmp_path / 'nobody'}"
    assert ctl("health", address=nobody, timeout="1")[0] == 3


@pytest.mark.parametrize("command", [["info"], ["devices"], ["multiply", "--random", "4,4,4"]])
def test_a_server_that_is_no_gemmd(ctl, command):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    code, _, error = ctl(*command, address=f"127.0.0.1:{port}")
    server.stop(None)
    assert code != 0
    assert "it is no gemmd, or one of another version" in error
