# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of a tree: valid according to SPDX's tools, and consistent with what the
programs load."""

import json
import os
import shutil
import subprocess

import pytest
from spdx_tools.spdx.model import RelationshipType

from bill import PLACE, check
from image import SOURCE, run

SCRIPT = SOURCE / "deploy/bill-of-materials.sh"


def copied(tree, path):
    shutil.copytree(tree, path, symlinks=True)
    return path


@pytest.fixture(scope="module")
def bill(tree):
    return check(tree)


def test_it_says_what_gemmd_is(tree, bill):
    gemmd = bill.packages["SPDXRef-gemmd"]
    told = run(tree / "bin/gemmd", "--version").splitlines()
    assert told[0] == f"gemmd {gemmd.version}"
    assert f"commit {gemmd.comment.removeprefix('commit ')}" in told
    assert str(gemmd.license_declared) == "Apache-2.0"
    described = bill.related(RelationshipType.DESCRIBES)
    assert described == [("SPDXRef-DOCUMENT", "SPDXRef-gemmd")]


def test_packages_are_those_of_the_machine_that_built_it(tree, bill):
    seen = {
        package.name: package
        for path in (tree / "lib/gemmd").iterdir()
        for package in [bill.package_of(str(path.resolve().relative_to(tree)))]
    }
    facts = run("dpkg-query", "--show", "--showformat=${Package} ${Version}\n", *seen)
    assert facts.splitlines() == [f"{name} {seen[name].version}" for name in sorted(seen)]
    for package in seen.values():
        (reference,) = package.external_references
        assert reference.locator.startswith(f"pkg:deb/debian/{package.name.replace('+', '%2B')}@")
        assert "Debian" in str(package.supplier)
    assert {"libgrpc29", "libprotobuf32", "libssl3", "libdnnl2", "zlib1g"} <= seen.keys()
    licences = {package.name: str(package.license_declared) for package in bill.packages.values()}
    assert (licences["zlib1g"], licences["libspdlog1.10"]) == ("Zlib", "MIT")
    assert licences["libssl3"] == "NOASSERTION", "a licence that SPDX names otherwise"


def picked(tree, folder, *programs):
    run(SOURCE / "deploy/pick-programs.sh", tree, folder, *programs)
    return folder


def test_a_smaller_tree_has_a_smaller_bill(tree, bill, tmp_path):
    small = check(picked(tree, tmp_path / "small", "gemmctl"))
    names = {package.name for package in small.packages.values()}
    assert {"gemmd", "libgrpc29", "libcli11-dev"} <= names
    assert "libdnnl2" not in names and "cuda-runtime" not in names
    assert len(small.packages) < len(bill.packages)


def test_the_same_programs_give_the_same_bytes(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    archives = []
    for name in ("one", "another one"):
        # The second from another place, where all files are new.
        source = copied(tree, tmp_path / f"from {name}") if archives else tree
        for path in source.rglob("*") if archives else ():
            os.utime(path, follow_symlinks=False)
        folder = picked(source, tmp_path / name, "gemmd", "gemmctl")
        tar = ("tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--create")
        archives.append(
            subprocess.run([*tar, f"--directory={folder}", "."], check=True, capture_output=True).stdout
        )
    assert len(archives[0]) > 20_000_000
    assert archives[0] == archives[1]
    created = json.loads((tmp_path / "one" / PLACE).read_text())["creationInfo"]["created"]
    assert created == "2023-11-14T22:13:20Z"


def test_a_library_of_no_package_goes_by_its_name(tree, tmp_path):
    """Like a library that somebody built on his own machine: a package has the file, but not these
    bytes."""
    own = copied(tree, tmp_path / "own")
    (library,) = (path for path in (own / "lib/gemmd").glob("libz.so.*.*"))
    with open(library, "ab") as file:
        file.write(b"\0")
    run(SCRIPT, "find", own)
    package = check(own).package_of(str(library.relative_to(own)))
    assert (package.name, package.version) == ("libz", library.name.removeprefix("libz.so."))
    assert not package.external_references and str(package.supplier) == "NOASSERTION"


def test_a_library_that_nobody_looked_at_is_refused(tree, tmp_path):
    other = copied(tree, tmp_path / "other")
    shutil.copy(other / "lib/gemmd/libssl.so.3", other / "lib/gemmd/libstray.so.1")
    with pytest.raises(AssertionError, match="lib/gemmd/libstray.so.1: got a library that"):
        run(SCRIPT, "write", other)
    assert not (other / PLACE).exists()
