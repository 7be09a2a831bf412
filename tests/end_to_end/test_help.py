# SPDX-License-Identifier: Apache-2.0
"""The help of the programs: every line can be understood alone, by a reader who looks up one
option."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Openings that need another line, or a subject, to mean something.
LEANING = re.compile(r"(Of|The same|As|Where|Those|That|Which|Also|Before|Behind|Beside|Another|And|Or)\b")
LEANING_ANYWHERE = re.compile(r"\b(of those|the same for|as above|after that)\b", re.IGNORECASE)


def descriptions(text):
    """The texts beside options and commands. A text with line breaks of its own has several
    lines."""
    column = next(line for line in text.splitlines() if "-h,--help" in line).index("Print this help")
    is_list = False
    is_named = False
    texts = []
    lines = [line for line in text.splitlines() if line.strip()]
    for line, following in zip(lines, lines[1:] + [""]):
        name, description = line[:column], line[column:]
        # A name that is too long for its column extends into the column of texts, and its text is
        # on the next line.
        is_long = not name.endswith(" ") or (
            not re.match("[A-Z]", description) and bool(following) and not following[:column].strip()
        )
        if not line.startswith(" "):
            is_list = line.endswith(":") and line not in ("Examples:", "Exit codes:")
        elif not is_list:
            continue
        elif name.strip() and is_long:
            is_named = True
        elif name.strip() or is_named:
            texts.append([description])
            is_named = False
        else:
            texts[-1].append(description)
    return texts


def faults(text):
    found = []
    for lines in descriptions(text):
        if not re.match(r"[A-Z]", lines[0]):
            found.append(f"begins with no capital letter: {lines[0]}")
        for line in lines:
            if LEANING.match(line) or LEANING_ANYWHERE.search(line):
                found.append(f"leans on another line: {line}")
    return found


def help_of(program, *arguments):
    run = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=True)
    return run.stdout


def commands_of(text):
    listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.MULTILINE)
    return re.findall(r"^  (\S+)", listed[1], re.MULTILINE) if listed else []


HEAD = "Options:\n  -h,--help                   Print this help message and exit\n"


@pytest.mark.parametrize(
    "line",
    [
        "  --a-type TYPE               The same for A alone\n",
        "  --seed N=1                  Of the random matrices\n",
        "  --json PATH                 For all of those\n",
        "  --operands MODE             Where operands are\n",
        "  --request-id TEXT           returned in the answer\n",
        "  --a-name-that-leaves-no-room TYPE=f32 Needs: --shape\n                              As given\n",
        "  --profile NAME              A mix:\n                              small: the same for one\n",
    ],
)
def test_lines_that_lean_on_others_are_found(line):
    assert faults(HEAD) == []
    assert len(faults(HEAD + line)) == 1


def test_gemmctl(gemmctl):
    text = help_of(gemmctl, "--help")
    commands = commands_of(text)
    assert "multiply" in commands and len(commands) >= 10
    everything = help_of(gemmctl, "--help-all")
    found = faults(text)
    for command in commands:
        own = help_of(gemmctl, command, "--help")
        found += faults(own)
        for lines in descriptions(own)[1:]:
            assert lines[0] in everything, f"{command}: --help-all lacks: {lines[0]}"
    assert not found, "\n".join(found)


def test_gemmload(gemmload):
    text = help_of(gemmload, "--help")
    assert len(descriptions(text)) > 30
    assert commands_of(text) == ["compare"]
    found = faults(text) + faults(help_of(gemmload, "compare", "--help"))
    assert not found, "\n".join(found)


def test_gemmd(gemmd):
    text = help_of(gemmd, "--help")
    assert len(descriptions(text)) > 20
    assert not faults(text), "\n".join(faults(text))


@pytest.mark.parametrize("program,section", [("gemmctl", 1), ("gemmload", 1), ("gemmd", 8)])
def test_manual_pages(request, program, section):
    """Made from the help, with every option in it, and without a warning from groff."""
    path = request.getfixturevalue(program)
    page = help_of(ROOT / "deploy" / "manual_page.sh", path, str(section))
    assert page.startswith(f".TH {program.upper()} {section} ")
    assert f"\n.SH NAME\n{program} \\- " in page and "\n.SH SYNOPSIS\n" in page
    shown = page.replace("\\-", "-")
    text = help_of(path, "--help")
    options = re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", text, re.M)
    assert len(options) > 8
    for option in options:
        assert re.search(rf"^\.B (-\w,)?{option}\b", shown, re.M), option
    if program == "gemmctl":
        assert '.SS "gemmctl multiply"' in shown and ".B --random M,N,K\n" in shown
    groff = shutil.which("groff")
    if groff is not None:
        done = subprocess.run([groff, "-man", "-ww", "-Tutf8"], input=page, capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == "", done.stderr
