# SPDX-License-Identifier: Apache-2.0
"""Tests of deploy/ and the Dockerfile. Options, and the images that several tests use."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

# For its daemons and its generated code of the wire contract.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "end_to_end"))

import image
import manifests
import stubs


def pytest_addoption(parser):
    group = parser.getgroup("gemmd")
    group.addoption(
        "--programs",
        type=pathlib.Path,
        required=True,
        help="a folder with an installed tree in opt/gemmd, and room for what is kept between runs",
    )
    group.addoption(
        "--fake-worker", type=pathlib.Path, required=True, help="the program gemmd-fake-worker"
    )
    group.addoption(
        "--fake-nvml", type=pathlib.Path, required=True, help="a library that tells of a fake GPU"
    )


def pytest_configure(config):
    config.stubs = stubs.generate()
    sys.path.insert(0, config.stubs)


def pytest_unconfigure(config):
    shutil.rmtree(config.stubs, ignore_errors=True)


@pytest.fixture(scope="session")
def programs(request):
    return request.config.getoption("--programs").resolve(strict=True)


@pytest.fixture(scope="session")
def tree(programs):
    return programs / "opt/gemmd"


@pytest.fixture(scope="session")
def fake_worker(request):
    return request.config.getoption("--fake-worker").resolve(strict=True)


@pytest.fixture(scope="session")
def fake_nvml(request):
    return request.config.getoption("--fake-nvml").resolve(strict=True)


@pytest.fixture(scope="session")
def store(programs, tmp_path_factory):
    assert os.geteuid() == 0, "images are made by root: they have files of several users"
    folder = tmp_path_factory.mktemp("images")
    archive = programs / "debian.tar"
    image.make_base(archive, folder)
    yield image.Store(folder, archive)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def cpu_image(store, programs):
    return store.build("cpu", programs)


@pytest.fixture(scope="session")
def bare_image(store, programs):
    """The same as a release, on a base without a shell or any other program."""
    release = {"VERSION": "1.2.3", "REVISION": "abc", "SOURCE": "https://x"}
    return store.build("cpu", programs, runtime=store.shell_less(), **release)


@pytest.fixture(scope="session", params=manifests.OVERLAYS)
def overlay(request):
    return manifests.Overlay(request.param)


class Programs:
    """Starts programs and ends those that still run."""

    def __init__(self, folder):
        self._folder = folder
        self._started = []

    def __call__(self, *command, **keywords):
        with open(self._folder / f"log{len(self._started)}", "wb") as log:
            self._started.append(
                subprocess.Popen(
                    [str(word) for word in command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    **keywords,
                )
            )
        return self._started[-1]

    def end(self):
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def program(tmp_path):
    programs = Programs(tmp_path)
    yield programs
    programs.end()


@pytest.fixture(scope="module")
def module_program(tmp_path_factory):
    programs = Programs(tmp_path_factory.mktemp("programs"))
    yield programs
    programs.end()
