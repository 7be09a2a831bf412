#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/build-grpc.sh builds nothing but the releases that it names. The build itself takes an hour,
and is no part of the tests."""

import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "deploy/build-grpc.sh"


def called(*arguments):
    return subprocess.run(
        [SCRIPT, *arguments], text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )


class BuildGrpcTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_help_says_how_it_is_used(self):
        told = called("--help")
        self.assertEqual(told.returncode, 0)
        self.assertIn("usage: build-grpc.sh [--sources=FOLDER] PREFIX", told.stdout)
        self.assertIn("CMAKE_PREFIX_PATH=/opt/grpc tests/run.sh", told.stdout)

    def test_what_it_does_not_take_is_named(self):
        told = called("--version=1.75", self.folder)
        self.assertEqual(told.returncode, 2)
        self.assertIn("got --version=1.75, want --sources=FOLDER or --help", told.stderr)
        for arguments in [(), (self.folder, self.folder)]:
            self.assertEqual(called(*arguments).returncode, 2)

    def test_sources_of_another_commit_are_refused(self):
        for name in ["abseil-cpp", "protobuf", "grpc"]:
            repository = self.folder / "sources" / name
            subprocess.run(["git", "init", "--quiet", repository], check=True)
            own = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]
            change = ["commit", "--quiet", "--allow-empty", "--message=Something else"]
            subprocess.run(["git", *own, "-C", repository, *change], check=True)
        told = called(f"--sources={self.folder / 'sources'}", self.folder / "prefix")
        self.assertEqual(told.returncode, 1)
        self.assertRegex(told.stderr, r"abseil-cpp is at commit \w{40}, want \w{40} \(\d{8}\.\d\)")
        self.assertFalse(list((self.folder / "prefix/build").iterdir()))


if __name__ == "__main__":
    unittest.main()
