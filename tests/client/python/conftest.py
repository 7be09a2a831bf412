# SPDX-License-Identifier: Apache-2.0
"""The package of client/python from its sources, beside generated stubs; the fixtures and daemons are
those of tests/end_to_end."""

import os
import pathlib
import sys

import pytest

# Before gRPC is imported: its fork support starts threads in a forked child, which sometimes crash.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/end_to_end"))
import fixtures  # noqa: E402
import stubs  # noqa: E402
from fixtures import *  # noqa: E402, F403


def pytest_configure(config):
    fixtures.pytest_configure(config)
    stubs.add_client(config.stubs)


@pytest.fixture
def client(daemon):
    import gemmd

    with gemmd.Client(daemon.tcp) as client:
        yield client


@pytest.fixture
def numbers(seed):
    import numpy as np

    return np.random.default_rng(seed)
