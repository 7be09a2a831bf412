# SPDX-License-Identifier: Apache-2.0
"""The methods that the daemon serves, according to its protos."""

import importlib
import pkgutil

import gemmd.v1
from kserve.v2 import inference_pb2


def method_paths():
    """Every method of the daemon's own services, so that no test can miss one."""
    files = [inference_pb2.DESCRIPTOR]
    for module in pkgutil.iter_modules(gemmd.v1.__path__):
        if module.name.endswith("_pb2"):
            files.append(importlib.import_module(f"gemmd.v1.{module.name}").DESCRIPTOR)
    for file in files:
        for service in file.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}"
