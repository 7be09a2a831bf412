# SPDX-License-Identifier: Apache-2.0
"""deploy/compose.yaml, as docker compose itself reads it, and the files that it mounts."""

import json
import pathlib
import subprocess
import sys

import pytest
import yaml

from image import SOURCE
from manifests import flag, seconds

DEPLOY = SOURCE / "deploy"
MARGIN_S = 5


def read(*files):
    compose = pathlib.Path(sys.executable).with_name("docker-compose")
    words = [word for file in files for word in ("--file", DEPLOY / file)]
    done = subprocess.run(
        [compose, *words, "--profile=*", "config", "--format=json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


@pytest.fixture(scope="module")
def services():
    return read("compose.yaml")


def test_it_has_all_that_watches_and_loads(services):
    assert services.keys() == {"gemmd", "gemmload", "prometheus", "grafana"}
    assert services["gemmload"]["profiles"] == ["load"]
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert int(service["mem_limit"]) > 0 and service["pids_limit"] > 0, name
        assert ":" in service["image"] or service["build"], f"{name}: an image without a version"
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", f"{name} is open to other machines"


def test_nobody_can_log_in_to_grafana(services):
    grafana = services["grafana"]["environment"]
    assert grafana["GF_AUTH_BASIC_ENABLED"] == "false"
    assert grafana["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert grafana.get("GF_AUTH_ANONYMOUS_ORG_ROLE", "Viewer") == "Viewer"


def test_gpus_are_an_addition(services):
    with_gpus = read("compose.yaml", "compose.gpu.yaml")
    assert with_gpus["gemmd"]["image"] == "gemmd:cuda"
    assert with_gpus["gemmd"]["build"]["target"] == "cuda"
    assert with_gpus["gemmd"]["command"] == services["gemmd"]["command"]


def test_targets_are_those_of_the_dockerfile(services):
    text = (SOURCE / "Dockerfile").read_text()
    for service in (*services.values(), *read("compose.yaml", "compose.gpu.yaml").values()):
        if "build" in service:
            assert f" AS {service['build']['target']}\n" in text


def test_the_daemon_has_time_to_drain(services):
    daemon = services["gemmd"]
    drain_s = sum(seconds(flag(daemon["command"], name)) for name in ("lame-duck", "grace"))
    assert drain_s + MARGIN_S <= seconds(daemon["stop_grace_period"])


def test_prometheus_scrapes_the_daemon_and_grafana_asks_prometheus(services):
    subprocess.run(
        ["promtool", "check", "config", DEPLOY / "prometheus/prometheus.yaml"], check=True
    )
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    port = flag(services["gemmd"]["command"], "metrics-listen").rpartition(":")[2]
    paths = {}
    for job in scrape["scrape_configs"]:
        assert job["static_configs"] == [{"targets": [f"gemmd:{port}"]}]
        paths[job["job_name"]] = job.get("metrics_path", "/metrics")
    assert paths == {"gemmd": "/metrics", "gemmd_triton": "/metrics/triton"}

    folder = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((folder / "dashboards/gemmd.yaml").read_text())["providers"]
    mounts = {v["target"]: v["source"] for v in services["grafana"]["volumes"]}
    assert mounts[provider["options"]["path"]] == str(DEPLOY / "grafana/dashboards")
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == provider["options"]["path"] + "/gemmd.json"
    assert mounts["/etc/grafana/provisioning"] == str(folder)
