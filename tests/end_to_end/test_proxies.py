# SPDX-License-Identifier: Apache-2.0
"""A proxy in the environment is used only if --proxy asks for it; otherwise it gets no byte."""

import os
import subprocess

import pytest
from proxies import Proxy

LIMIT_S = 300


@pytest.fixture
def commands(gemmctl, gemmload, daemon, tmp_path):
    """One command of each tool, with a token that a proxy would read."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    common = ["--address", daemon.tcp, "--token-file", token]
    return [
        [gemmctl, *common, "--timeout", "60", "info"],
        [gemmctl, *common, "--timeout", "60", "multiply", "--random", "8,8,8"],
        [gemmload, *common, "--shape", "8,8,8", "--count", "3", "--warmup", "0s", "--quiet"],
    ]


def run(command, proxy):
    return subprocess.run(command, env=os.environ | proxy.environment, capture_output=True, timeout=LIMIT_S)


def test_no_proxy_is_used(commands):
    with Proxy() as proxy:
        for command in commands:
            done = run(command, proxy)
            assert done.returncode == 0, done.stderr.decode()
        assert proxy.connections == 0


def test_a_proxy_is_used_where_it_is_asked_for(gemmctl, daemon):
    with Proxy() as proxy:
        done = run([gemmctl, "--address", daemon.tcp, "--timeout", "2", "--proxy", "info"], proxy)
        assert done.returncode != 0
        assert proxy.connections > 0


def test_a_proxy_gets_no_token_in_the_clear(commands):
    with Proxy() as proxy:
        for command in commands:
            done = run([*command, "--proxy"], proxy)
            assert done.returncode == 2, done.stdout
            assert "so that the proxy does not read" in done.stderr.decode()
        assert proxy.connections == 0
