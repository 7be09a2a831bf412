# SPDX-License-Identifier: Apache-2.0
"""The Python code of the wire contract, generated for each run."""

import pathlib
import shutil
import tempfile

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def generate():
    """The folder with the Python code that the stock generator makes of /proto."""
    from grpc_tools import protoc

    folder = tempfile.mkdtemp(prefix="gemmd-stubs-")
    protos = SOURCE / "proto"
    files = sorted(str(path) for path in protos.rglob("*.proto"))
    code = protoc.main(
        ["protoc", f"-I{protos}", f"--python_out={folder}", f"--grpc_python_out={folder}", *files]
    )
    if code != 0:
        raise pytest.UsageError(f"protoc ended with {code}")
    return folder


def add_client(folder, client=SOURCE / "client/python"):
    """Copies the Python client's sources beside generated code, which replaces the code that an
    editable install left there."""
    ignored = shutil.ignore_patterns("*_pb2*", "__pycache__")
    shutil.copytree(client / "gemmd", pathlib.Path(folder) / "gemmd", ignore=ignored, dirs_exist_ok=True)
