#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts small faults into the code, one after the other, and demands that a named test finds each.

The lists are the *.toml files beside this program; README.md tells their format. The build folder
stays as it is: a fault goes into a copy of its file, and only what includes that file is compiled
again and linked into a test program of its own.

Exit status: 0 where every fault was found, 1 where one survived, 2 where a list or a test is wrong.
"""

import argparse
import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = pathlib.Path(__file__).resolve().parent
# A test that takes longer has hung.
TEST_SECONDS = 120
FIELDS = ("name", "file", "old", "new", "target", "filter")


class ListError(Exception):
    """A mutant that cannot test anything: its entry, its build or its test is wrong."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # From the root of the repository.
    old: str  # Occurs exactly once in the file.
    new: str
    target: str  # The gtest program, as CMake names it.
    filter: str  # Its tests that must find the fault, as --gtest_filter.

    def text(self):
        """The file with the fault in it."""
        path = ROOT / self.file
        if not path.is_file():
            raise ListError(f"{self.name}: there is no file {self.file}")
        text = path.read_text()
        count = text.count(self.old)
        if count != 1:
            raise ListError(f"{self.name}: {self.file} has the old text {count} times, want once")
        return text.replace(self.old, self.new)


def read_lists(folder=LISTS):
    mutants = {}
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text()).get("mutant", []):
            if set(entry) != set(FIELDS) or not all(isinstance(v, str) for v in entry.values()):
                raise ListError(f"{path.name}: got {entry}, want texts named {', '.join(FIELDS)}")
            mutant = Mutant(**entry)
            if mutant.name in mutants:
                raise ListError(f"{path.name}: {mutant.name} is there twice")
            if mutant.old == mutant.new:
                raise ListError(f"{mutant.name}: the new text is the old one")
            mutants[mutant.name] = mutant
    return [mutants[name] for name in sorted(mutants)]


def choose(mutants, turn, count):
    """The mutants of this turn: each turn takes one share, and all turns together take every mutant
    once."""
    handfuls = max(1, -(-len(mutants) // count))
    return mutants[turn % handfuls :: handfuls]


def program_of(words):
    """The output of a compiler or linker."""
    return words[words.index("-o") + 1] if "-o" in words else None


class Build:
    """A CMake build folder for Ninja in which the target is up to date."""

    def __init__(self, folder):
        self.folder = folder
        self.commands = {}
        self.headers = {}

    def update(self, targets):
        subprocess.run(["cmake", "--build", self.folder, "--target", *sorted(targets)], check=True)

    def ninja(self, *arguments):
        command = ["ninja", "-C", self.folder, "-t", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def commands_of(self, target):
        """The commands that compile the target's objects, by object, and the one that links it."""
        if target not in self.commands:
            compiles = {}
            link = None
            for line in self.ninja("commands", target).splitlines():
                for part in line.split(" && "):
                    words = shlex.split(part)
                    if "-c" in words and "-o" in words:
                        compiles[program_of(words)] = words
                    elif program_of(words) in (target, f"bin/{target}"):
                        link = words
            if link is None:
                raise ListError(f"{target}: the build does not link it")
            self.commands[target] = compiles, link
        return self.commands[target]

    def includes(self, compiled):
        """The files that were read to compile the object, including its source."""
        if compiled not in self.headers:
            read = {line.strip() for line in self.ninja("deps", compiled).splitlines()[1:]}
            self.headers[compiled] = {(self.folder / name).resolve() for name in read if name}
        return self.headers[compiled]


def run_tests(program, tests, folder):
    """Whether the tests pass; a program that neither passes nor fails is an error."""
    command = [program, f"--gtest_filter={tests}", "--gtest_brief=1"]
    try:
        run = subprocess.run(command, cwd=folder, timeout=TEST_SECONDS, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise ListError(f"{tests} hangs: no end after {TEST_SECONDS} s") from error
    if run.returncode == 0:
        passed = re.search(r"\[  PASSED  \] (\d+) test", run.stdout)
        if not passed or int(passed[1]) == 0:
            raise ListError(f"{tests}: no test ran")
        return True, run.stdout
    if "[  FAILED  ]" not in run.stdout:
        raise ListError(f"{tests} ended with {run.returncode} without a failed assertion:\n{run.stdout}")
    return False, run.stdout


def source_with(copy, changed, source, written):
    """The file to compile for `source`: the changed file itself, or one that includes it among
    several."""
    if source == changed:
        return str(copy)
    text = source.read_text()
    named = f'#include "{changed}"'
    if named not in text:
        return str(source)
    joined = written.with_suffix(".cxx")
    joined.write_text(text.replace(named, f'#include "{copy}"'))
    return str(joined)


def compile_mutant(build, mutant, scratch):
    """Links a test program with the fault in it and returns its path."""
    changed = (ROOT / mutant.file).resolve()
    copy = scratch / "overlay" / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_text(mutant.text())
    compiles, link = build.commands_of(mutant.target)
    link = list(link)
    fresh = []
    for compiled, words in compiles.items():
        if changed not in build.includes(compiled):
            continue
        words = list(words)
        written = scratch / f"{len(fresh)}.o"
        words[words.index("-o") + 1] = str(written)
        source = words.index("-c") + 1
        words[source] = source_with(copy, changed, (build.folder / words[source]).resolve(), written)
        # The folder of the copy comes first, so that a changed header is found there; a fault may
        # leave a variable unused. The compiler's own options follow its launcher, `cmake -E env ...
        # ccache`.
        first = next(i for i, word in enumerate(words) if word.startswith("-") and word != "-E")
        words[first:first] = ["-w", f"-I{scratch / 'overlay'}"]
        if "-MF" in words:
            words[words.index("-MF") + 1] = f"{written}.d"
        run_tool(words, build.folder)
        fresh.append(str(written))
        if compiled in link:
            link.remove(compiled)
    if not fresh:
        raise ListError(f"{mutant.name}: nothing in {mutant.target} is made of {mutant.file}")
    # These objects come before the libraries, so the linker no longer needs the libraries' copies.
    program = scratch / mutant.target
    where = link.index("-o")
    link[where : where + 2] = [*fresh, "-o", str(program)]
    run_tool(link, build.folder)
    return program


def run_tool(words, folder):
    run = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if run.returncode != 0:
        raise ListError(f"does not build: {shlex.join(words)}\n{run.stderr}")


def is_found(build, mutant, scratch):
    """Whether tests that pass without the fault fail with it."""
    program = build.folder / "bin" / mutant.target
    passes, output = run_tests(program, mutant.filter, build.folder)
    if not passes:
        raise ListError(f"{mutant.filter} fails without the fault:\n{output}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        passes, output = run_tests(compile_mutant(build, mutant, scratch), mutant.filter, build.folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return not passes, output


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="the mutants to try; all of them where none is named")
    parser.add_argument("--build", type=pathlib.Path, help="the build folder, made by Ninja, with the tests")
    parser.add_argument("--turn", type=int, help="try only the handful with this number, which may be any")
    parser.add_argument("--handful", type=int, default=8, help="mutants in one turn (8)")
    parser.add_argument("--check", action="store_true", help="only check the lists, which needs no build")
    parser.add_argument("--verbose", action="store_true", help="print what the failing tests say")
    arguments = parser.parse_args()
    if not arguments.check and arguments.build is None:
        parser.error("--build: got nothing, want a build folder")
    if arguments.handful < 1:
        parser.error(f"--handful: got {arguments.handful}, want at least 1")
    return arguments


def choose_mutants(arguments):
    mutants = read_lists()
    for mutant in mutants:
        mutant.text()
    unknown = set(arguments.names) - {mutant.name for mutant in mutants}
    if unknown:
        raise ListError(f"no list has {', '.join(sorted(unknown))}")
    if arguments.names:
        mutants = [mutant for mutant in mutants if mutant.name in arguments.names]
    if arguments.turn is not None:
        mutants = choose(mutants, arguments.turn, arguments.handful)
    return mutants


def main():
    arguments = parse_arguments()
    try:
        mutants = choose_mutants(arguments)
    except ListError as error:
        print(f"ERROR {error}")
        return 2
    if arguments.check:
        print(f"{len(mutants)} mutants, each with its place")
        return 0
    build = Build(arguments.build.resolve())
    build.update({mutant.target for mutant in mutants})
    found, survived, wrong = 0, [], []
    for mutant in mutants:
        start = time.monotonic()
        try:
            is_dead, output = is_found(build, mutant, build.folder / "mutants")
        except ListError as error:
            wrong.append(mutant.name)
            print(f"ERROR    {mutant.name}: {error}", flush=True)
            continue
        print(f"{'found' if is_dead else 'SURVIVED'}    {mutant.name}  ({time.monotonic() - start:.0f} s)",
              flush=True)
        if arguments.verbose and is_dead:
            print(output)
        if is_dead:
            found += 1
        else:
            survived.append(mutant.name)
    print(f"mutants: {found} found, {len(survived)} survived, {len(wrong)} wrong")
    return 2 if wrong else 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
