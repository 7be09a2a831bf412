# SPDX-License-Identifier: Apache-2.0
"""Generates the messages and stubs of the wire contract during the package build."""

import pathlib
import re
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
# The oldest libraries that the generated code runs with. tests/client/python/test_package.py tries each major
# version of Protobuf since.
MIN_PROTOBUF = "4.25"
MIN_GRPC = "1.63"
# The checks in generated code that require the generating tools' version or a newer one.
VERSION_CHECKS = re.compile(
    r"^from google\.protobuf import runtime_version as _runtime_version\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\([^)]*\)\n"
    r"|^GRPC_GENERATED_VERSION = .*?^if _version_not_supported:\n.*?^    \)\n",
    re.MULTILINE | re.DOTALL,
)
# In the repository, or in a source distribution, which has a copy.
PROTO_FOLDERS = (HERE.parents[1] / "proto", HERE / "proto")


def proto_folder():
    for folder in PROTO_FOLDERS:
        if (folder / "gemmd/v1/gemm.proto").is_file():
            return folder
    raise FileNotFoundError(
        f"gemmd/v1/gemm.proto is in none of {', '.join(map(str, PROTO_FOLDERS))}"
    )


def generate_stubs(target):
    """Writes gemmd/v1/*_pb2.py, *_pb2.pyi and *_pb2_grpc.py below a folder."""
    from grpc_tools import protoc

    protos = proto_folder()
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    files = sorted(str(path) for path in protos.glob("gemmd/v1/*.proto"))
    if protoc.main(["protoc", f"-I{protos}", *outputs, *files]) != 0:
        raise RuntimeError("protoc failed")
    for path in (pathlib.Path(target) / "gemmd/v1").glob("*_pb2*.py"):
        code = VERSION_CHECKS.sub("", path.read_text())
        if "ValidateProtobufRuntimeVersion" in code or "_version_not_supported" in code:
            raise RuntimeError(f"{path} checks versions in a way that is new")
        path.write_text(code)


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        # An editable install runs from the sources, and so do its stubs, which git ignores.
        generate_stubs(HERE if self.editable_mode else self.build_lib)


class SourcesWithProtos(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        target = pathlib.Path(base_dir) / "proto"
        shutil.copytree(
            proto_folder(),
            target,
            ignore=lambda _, names: [n for n in names if n == "CMakeLists.txt"],
        )


setup(
    cmdclass={"build_py": BuildWithStubs, "sdist": SourcesWithProtos},
    install_requires=[
        f"grpcio>={MIN_GRPC}",
        f"protobuf>={MIN_PROTOBUF}",
        "ml_dtypes>=0.5",
        "numpy>=1.26",
    ],
)
