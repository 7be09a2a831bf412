# SPDX-License-Identifier: Apache-2.0
"""The files that the programs write: none may be an input or another output, and none is opened
twice."""

import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import threading

import numpy as np
import pytest
from daemon import wait_until

LIMIT_S = 300

# The files of each gemmctl command: outputs and inputs.
SECURITY = ["--tls-ca", "--tls-cert", "--tls-key", "--token-file"]
PRODUCT = ["A", "B", "--c", "--bias", "--scale-a", "--scale-b"]
GEMMCTL = {
    "multiply": (["--output"], PRODUCT),
    "diff": (["--svg", "--html"], PRODUCT),
    "random": (["--output"], []),
    "convert": (["--output", "--scale-output"], ["IN"]),
    "fragment": (["--svg"], ["--values"]),
    "get": (["FILE"], []),
}
GEMMLOAD = (["--json", "--csv", "--html"], ["--mix", "--replay", *SECURITY])
GEMMD = (
    ["--ready-file", "--audit-log", "--traces"],
    ["--rules", "--tokens", "--jwt-keys", "--tls-cert", "--tls-key", "--client-ca", "--client-crl", "--worker-binary"],
)
# Further required arguments, and the order of positional ones.
PLACES = {
    "multiply": ["A", "B"],
    "diff": ["A", "B"],
    "random": ["SHAPE"],
    "convert": ["IN"],
    "fragment": ["NAME"],
    "get": ["NAME", "FILE"],
}
GIVEN = {
    "random": {"SHAPE": "2,2"},
    "convert": {"IN": "in.npy", "--output": "out.npy", "--scale-output": "scale.npy", "--quantize": "row"},
    "fragment": {"NAME": "mma", "--operand": "a", "--svg": "out.svg"},
    "get": {"NAME": "w"},
    "multiply": {"A": "a.npy", "B": "b.npy"},
    "diff": {"A": "a.npy", "B": "b.npy"},
}


def pairs(outputs, inputs):
    return [(one, other) for i, one in enumerate(outputs) for other in [*outputs[:i], *inputs]]


# A file may be converted in place.
GEMMCTL_PAIRS = [
    (command, *pair)
    for command, (outputs, inputs) in GEMMCTL.items()
    for pair in pairs(outputs, [*inputs, *SECURITY])
    if pair != ("--output", "IN")
]


def refused(command, folder, one, other, code=2):
    """The program refuses both options with the same file, and leaves the file unchanged."""
    path = folder / "same"
    path.write_text("old")
    before = sorted(folder.iterdir())
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == code, (command, done.stderr)
    assert any(
        f'{a}: got {quote}{path}{quote}, want another file than that of {b}' in done.stderr
        for a, b in ((one, other), (other, one))
        for quote in ('"', "")
    ), (command, done.stderr)
    assert path.read_text() == "old" and sorted(folder.iterdir()) == before


@pytest.mark.parametrize("command,one,other", GEMMCTL_PAIRS)
def test_gemmctl_refuses_one_file_for_two_options(gemmctl, tmp_path, command, one, other):
    given = {**GIVEN[command], one: tmp_path / "same", other: tmp_path / "same"}
    options = [f"{name}={value}" for name, value in given.items() if name.startswith("--")]
    places = [given[name] for name in PLACES[command] if name in given]
    refused([gemmctl, "--address", "unix:/nowhere", command, *options, *places], tmp_path, one, other)


@pytest.mark.parametrize("one,other", pairs(*GEMMLOAD))
def test_gemmload_refuses_one_file_for_two_options(gemmload, tmp_path, one, other):
    path = tmp_path / "same"
    path.write_text("old")
    if other in ("--mix", "--replay"):  # These are read first.
        path.write_text('[{"m": 1, "n": 1, "k": 1}]' if other == "--mix" else "1\n")
    command = [gemmload, "--address", "unix:/nowhere", f"{one}={path}", f"{other}={path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert f'{one}: got "{path}", want another file than that of {other}' in done.stderr
    assert path.read_text() and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("one,other", pairs(*GEMMD))
def test_gemmd_refuses_one_file_for_two_options(gemmd, tmp_path, one, other):
    refused([gemmd, f"{one}={tmp_path / 'same'}", f"{other}={tmp_path / 'same'}"], tmp_path, one, other)


def test_gemmd_may_write_two_logs_to_one_pipe(gemmd, tmp_path):
    command = [gemmd, "--traces=/dev/stdout", "--audit-log=/dev/stdout", "--listen=nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "another file" not in done.stderr + done.stdout


def test_every_option_with_a_file_is_here(gemmctl, gemmload, gemmd):
    """Fails when an option is added and not listed here."""

    def files_of(*command):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return set(re.findall(r"^ +(?:-\w,)?(--[\w-]+)(?:[ =]| *\n *)(?:PATH|FILE)\b", done.stdout, re.MULTILINE))

    known = {name for outputs, inputs in GEMMCTL.values() for name in [*outputs, *inputs]}
    commands = subprocess.run([gemmctl, "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    names = re.findall(r"^  ([a-z][\w-]*)", commands.split("Subcommands:")[1], re.MULTILINE)
    assert set(GEMMCTL) <= set(names)
    only_read = {"replay": {"--a", "--b", "--c", "--bias"}, "explain": {"--model"}}
    for name in names:
        assert files_of(gemmctl, name) - known - set(SECURITY) <= only_read.get(name, set()), name
    assert files_of(gemmload) <= {*GEMMLOAD[0], *GEMMLOAD[1], "--a", "--b"}
    assert files_of(gemmd) <= {*GEMMD[0], *GEMMD[1], "--config"}


def test_outputs_to_standard_output_are_one(gemmctl, tmp_path):
    command = [gemmctl, "diff", "a.npy", "b.npy", "--svg=-", "--html=-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2 and "--html: got" in done.stderr and "--svg" in done.stderr and not done.stdout


def feed(path, text):
    """Writes to a pipe once; a second reader waits forever."""
    os.mkfifo(path)
    thread = threading.Thread(target=path.write_bytes, args=(text,), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("type_", ["f32", "s4"])
def test_a_pipe_is_read_once(gemmctl, daemon, tmp_path, type_):
    def ctl(*arguments):
        command = [gemmctl, "--address", daemon.unix, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ctl("random", "16,32", "--type", type_, "-o", "a.npy")
    text = (tmp_path / "a.npy").read_bytes()
    thread = feed(tmp_path / "pipe", text)
    ctl("convert", "pipe", "--input-type", type_, "-o", "b.npy")
    thread.join(LIMIT_S)
    assert (tmp_path / "b.npy").read_bytes() == text
    # The file of a narrow type does not name the type.
    name = {"f32": "mma.m16n8k8.f32.tf32.tf32.f32", "s4": "mma.m8n8k32.s32.s4.s4.s32"}[type_]
    arguments = ["fragment", name, "--operand", "a", "--svg", "-", "--values"]
    want = ctl(*arguments, "a.npy")
    thread = feed(tmp_path / "again", text)
    assert ctl(*arguments, "again") == want
    thread.join(LIMIT_S)


def test_a_signal_ends_the_wait_for_the_reader_of_a_pipe(gemmload, daemon, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    command = [gemmload, "--address", daemon.unix, "--shape", "1,1,1", "--count", "1", "--warmup", "0", "--quiet"]
    load = subprocess.Popen(
        [*command, "--json", "done.json", "--csv", "pipe", "--html", "done.html"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    # The files are written in this order.
    wait_until(lambda: (tmp_path / "done.json").exists(), 60, "the first report")
    load.send_signal(signal.SIGTERM)
    output, error = load.communicate(timeout=LIMIT_S)
    assert load.returncode == 2 and "pipe: cannot be written: no process reads the pipe" in error
    assert "p99.99" in output and (tmp_path / "done.html").exists()


def test_a_full_disk_keeps_the_old_file(gemmctl, tmp_path):
    (tmp_path / "a.npy").write_text("old")
    script = "trap '' XFSZ; ulimit -f 1; exec \"$@\""
    command = ["bash", "-c", script, "bash", gemmctl, "random", "64,64", "-o", tmp_path / "a.npy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2 and "a.npy: cannot be written: File too large" in done.stderr
    assert (tmp_path / "a.npy").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_session_is_kept_while_others_forget_theirs(gemmctl, daemon, tmp_path):
    """Tokens are removed under a lock on the folder. If there are none, there is none to remove, so
    `put` does not wait for the lock: it might remove what another command stores meanwhile."""
    np.save(tmp_path / "w.npy", np.ones((4, 4), np.float32))
    folder = tmp_path / "gemmd"
    folder.mkdir(mode=0o700)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "GEMMD_ADDRESS": daemon.unix}
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    subprocess.check_output([gemmctl, "put", tmp_path / "w.npy", "--name", "w"], env=environment, timeout=LIMIT_S)
    os.close(lock)
    subprocess.check_output([gemmctl, "ls"], env=environment, timeout=LIMIT_S)


@pytest.mark.parametrize("round_", range(5))
def test_commands_at_once_after_a_session_has_ended(gemmctl, daemon, tmp_path, round_):
    """Each finds the file of a session that no longer exists; the tensors of all are in one new
    session."""
    np.save(tmp_path / "w.npy", np.ones((4, 4), np.float32))
    folder = tmp_path / "gemmd"
    folder.mkdir(mode=0o700)
    kept = folder / f"{hashlib.sha256(daemon.unix.encode()).digest()[:16].hex()}.session"
    kept.write_text("0" * 32 + "\n")
    kept.chmod(0o600)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "GEMMD_ADDRESS": daemon.unix}
    names = [f"w{i}" for i in range(8)]
    puts = [
        subprocess.Popen([gemmctl, "put", tmp_path / "w.npy", "--name", name], env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in names
    ]
    for put in puts:
        assert put.wait(LIMIT_S) == 0, put.stderr.read()
    listed = subprocess.check_output([gemmctl, "ls", "--json"], env=environment, timeout=LIMIT_S)
    assert sorted(tensor["name"] for tensor in json.loads(listed)["tensors"]) == names
    # And what was put in it, with the lock on that.
    assert sorted(folder.iterdir()) == sorted([kept, kept.with_suffix(".tensors"), kept.with_suffix(".lock")])
