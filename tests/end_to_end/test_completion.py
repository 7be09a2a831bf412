# SPDX-License-Identifier: Apache-2.0
"""What Tab completes in a real bash, and what the shells' scripts offer."""

import os
import pty
import re
import select
import shutil
import subprocess
import termios
import time

import pytest

LIMIT_S = 300


def output_of(program, *arguments):
    run = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return run.stdout


class Bash:
    """An interactive bash on its own terminal, with gemmctl's completion."""

    def __init__(self, gemmctl, folder):
        script = folder / "completion.bash"
        script.write_text(output_of(gemmctl, "completion", "bash"))
        self.main, terminal = pty.openpty()
        termios.tcsetwinsize(self.main, (50, 400))
        environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "@ "}
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"], stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, cwd=folder, env=environment,
        )  # fmt: skip
        os.close(terminal)
        self.text = ""
        self.run("bind 'set bell-style none'; bind 'set enable-bracketed-paste off'")
        self.run(f"source {script}")

    def type(self, text):
        os.write(self.main, text.encode())

    def read_until(self, end):
        deadline = time.monotonic() + LIMIT_S
        while not re.search(end, self.text):
            assert time.monotonic() < deadline, f"no {end!r} in {self.text!r}"
            if select.select([self.main], [], [], 0.5)[0]:
                self.text += os.read(self.main, 1 << 16).decode(errors="replace")
        found = re.search(end, self.text)
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def run(self, command):
        self.type(f"{command}; echo do''ne\n")
        self.read_until(r"\ndone\r?\n")

    def words(self, line):
        """The line after Tab is pressed at its end: bash is asked to print the words."""
        self.type(f"{line}\t\x01printf '<%s>' \x05; echo; echo do''ne\n")
        return re.findall(r"<([^<>]*)>", self.read_until(r"\ndone\r?\n").split("do''ne")[-1])

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.main)


@pytest.fixture
def bash(gemmctl, tmp_path):
    shell = Bash(gemmctl, tmp_path)
    yield shell
    shell.close()


def test_tab_in_bash(bash, tmp_path):
    (tmp_path / "weights.npy").touch()
    for line, want in {
        "gemmctl mult": "multiply",
        "gemmctl --json instr": "instructions",
        "gemmctl multiply --rand": "--random",
        "gemmctl multiply --tls-serv": "--tls-server-name",
        "gemmctl --timeou": "--timeout",
        "gemmctl multiply --type bf": "bf16",
        "gemmctl convert --order col": "column",
        "gemmctl convert --quantize=ma": "--quantize=matrix",
        "gemmctl convert weig": "weights.npy",
        "gemmctl convert --scale-output weig": "weights.npy",
        "gemmctl fragment --operand meta": "metadata",
        "gemmctl completion ba": "bash",
    }.items():
        words = bash.words(line)
        assert words and words[-1] == want, f"{line}: {words}"
    # The option of another command is not offered.
    assert bash.words("gemmctl explain --repea")[-1] == "--repea"


def test_every_option_is_completed(gemmctl):
    """The script offers the words that the help has."""
    script = output_of(gemmctl, "completion", "bash")
    commands = re.findall(r"^  ([a-z][a-z-]*)  +[A-Z]", output_of(gemmctl, "--help"), re.M)
    assert len(commands) > 15
    for command in commands:
        text = output_of(gemmctl, command, "--help")
        wanted = set(re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", text, re.M))
        [offered] = re.findall(rf"^    {command}\) words='([^']*)'", script, re.M)
        assert wanted <= set(offered.split()), command
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_zsh_gets_its_words(gemmctl, tmp_path):
    script = output_of(gemmctl, "completion", "zsh")
    assert script.startswith("#compdef gemmctl\n")
    assert "'--order=[Storage order of the output (default\\: that of the input)]:value:(row column)'" in script
    zsh = shutil.which("zsh")
    if zsh is not None:
        assert subprocess.run([zsh, "-n"], input=script, text=True).returncode == 0
