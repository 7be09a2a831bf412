# SPDX-License-Identifier: Apache-2.0
"""The wheel and the source distribution: their contents, and that the installed package works."""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
STUBS = {
    f"gemmd/v1/{name}_pb2{kind}"
    for name in ("admin", "gemm", "incidents", "instructions", "registry", "resident", "statistics", "tensors")
    for kind in (".py", ".pyi", "_grpc.py")
}
PRODUCT = """
import sys
import gemmd, numpy as np
assert sys.argv[2] in gemmd.__file__
with gemmd.Client(sys.argv[1]) as client:
    assert (client.matmul(np.ones((3, 4)), np.ones((4, 2))) == 4).all()
"""


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, timeout=3000)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy, because building leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "client/python", folder / "client/python")
    shutil.copytree(ROOT / "proto", folder / "proto")
    return folder / "client/python"


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", str(sources))
    (wheel,) = folder.glob("gemmd-*-py3-none-any.whl")
    return wheel


def test_the_wheel_has_sources_and_stubs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "client/python/gemmd"
    expected = {
        f"gemmd/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.suffix in (".py", ".typed")
    }
    assert {name for name in names if ".dist-info/" not in name} == expected | STUBS


def test_the_installed_package_multiplies(wheel, daemon, tmp_path):
    pip("install", "--no-deps", f"--target={tmp_path}", str(wheel))
    subprocess.run(
        [sys.executable, "-B", "-c", PRODUCT, daemon.tcp, str(tmp_path)],
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        timeout=300,
    )


def test_stubs_demand_no_version_of_their_tools(wheel):
    """So that the package works with others that require an older Protobuf."""
    with zipfile.ZipFile(wheel) as files:
        text = {name: files.read(name).decode() for name in files.namelist()}
    (metadata,) = (value for name, value in text.items() if name.endswith("/METADATA"))
    assert "Requires-Dist: protobuf>=4.25\n" in metadata and "Requires-Dist: grpcio>=1.63\n" in metadata
    for name in STUBS:
        assert "ValidateProtobufRuntimeVersion" not in text[name] and "GRPC_GENERATED_VERSION" not in text[name], name


@pytest.mark.exhaustive
@pytest.mark.parametrize("protobuf", ["==4.25.0", "<5", "<6", "<7", "<8"])
def test_the_package_with_each_protobuf(wheel, daemon, tmp_path, protobuf):
    """And with the oldest grpcio; from PyPI."""
    libraries = [f"protobuf{protobuf}", "grpcio==1.63.0", "numpy", "ml_dtypes", "typing_extensions"]
    pip("install", "--no-deps", f"--target={tmp_path}", str(wheel), *libraries)
    imports = "".join(f"import {stub[:-3].replace('/', '.')}\n" for stub in STUBS if stub.endswith(".py"))
    subprocess.run(
        [sys.executable, "-B", "-c", imports + PRODUCT, daemon.tcp, str(tmp_path)],
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        timeout=300,
    )


def test_a_source_distribution_builds_the_same(sources, wheel, tmp_path):
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", f"--dist-dir={tmp_path}"],
        cwd=sources,
        check=True,
        timeout=300,
    )
    (archive,) = tmp_path.glob("gemmd-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path)
    pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={tmp_path}", str(archive)[:-7])
    (again,) = tmp_path.glob("gemmd-*.whl")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())
