# SPDX-License-Identifier: Apache-2.0
"""A daemon that multiplies, scraped by a real Prometheus with the configuration and the rules of
deploy/prometheus: every query is answered, with data. A worker without a GPU, and a library that
reports one, stand for a GPU."""

import json
import math
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request

import pytest
import yaml

import queries
from daemon import wait_until
from image import SOURCE, run

LIMIT_S = 60
DEVICES = ("cuda:0", "cpu", "sim:sm_90")
# The titles of panels about events that a healthy daemon does not have.
MAYBE_EMPTY = re.compile(r"Products: Refusals|annotation Drains")


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Prometheus:
    def __init__(self, address):
        self._address = address

    def get(self, path, **parameters):
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, text):
        """Samples with a number: 0 / 0 is no data."""
        found = self.get("query", query=text)["result"]
        return [sample for sample in found if not math.isnan(float(sample["value"][1]))]

    def wait_for(self, text):
        def is_answered():
            try:
                return self.query(text)
            except OSError:
                return None  # It is not there yet.

        wait_until(is_answered, LIMIT_S, f"an answer to {text}")


def has_admitted(metrics):
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=LIMIT_S) as answer:
        return re.search(r"^gemmd_admitted_requests [1-9]", answer.read().decode(), re.MULTILINE)


def kill_in_a_product(tree, daemon, metrics):
    """A client that requests seconds of a simulator and is then stopped."""
    command = [tree / "bin/gemmctl", f"--address={daemon}", "multiply", "--device=sim:sm_90"]
    with subprocess.Popen([*command, "--random=1024,1024,4096", "--type=bf16"], stdout=subprocess.DEVNULL) as client:
        wait_until(lambda: has_admitted(metrics), LIMIT_S, "a product admitted")
        client.kill()


@pytest.fixture(scope="module")
def prometheus(tree, fake_worker, fake_nvml, tmp_path_factory, module_program):
    folder = tmp_path_factory.mktemp("live")
    daemon, metrics, own = free_address(), free_address(), free_address()
    shutil.copytree(SOURCE / "deploy/prometheus", folder / "etc")
    config = yaml.safe_load((folder / "etc/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [metrics]}]
    (folder / "etc/prometheus.yaml").write_text(yaml.safe_dump(config))

    # All clients here are one caller, which has series.
    caller = {"may": ["multiply", "tensors", "statistics", "registry", "administer"]}
    rules = folder / "rules.json"
    rules.write_text(json.dumps({"identities": {"anonymous": caller}}))
    module_program(
        tree / "bin/gemmd",
        f"--rules={rules}",
        f"--listen={daemon}",
        f"--metrics-listen={metrics}",
        f"--devices={','.join(DEVICES)}",
        f"--worker-binary={fake_worker}",
        "--verify=sampled",
        env={**os.environ, "LD_LIBRARY_PATH": str(fake_nvml.parent)},
    )
    module_program(
        "prometheus",
        f"--config.file={folder}/etc/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={own}",
    )
    prometheus = Prometheus(own)
    prometheus.wait_for('gemmd_device_ready{device="cpu"} == 1')
    for _ in range(8):  # At the beginning and the end of several scrapes, so that there are rates.
        for device in DEVICES:
            run(
                tree / "bin/gemmctl",
                f"--address={daemon}",
                "multiply",
                "--random=64,64,64",
                "--type=bf16",
                f"--device={device}",
            )
        kill_in_a_product(tree, daemon, metrics)
    for record in (rule["record"] for rule in queries.rules() if "record" in rule):
        prometheus.wait_for(record)
    return prometheus


def test_every_query_of_the_dashboard_is_answered(prometheus):
    empty = []
    for query in queries.dashboard_queries(window="5m"):
        if not prometheus.query(query.text) and not MAYBE_EMPTY.match(query.place):
            empty.append(query)
    assert not empty, empty


def test_every_query_of_an_alert_is_answered_and_nothing_is_alarming(prometheus):
    for query in queries.rule_queries():
        prometheus.query(query.text)
    groups = prometheus.get("rules")["groups"]
    states = {
        rule["name"]: (rule["health"], rule.get("state")) for g in groups for rule in g["rules"]
    }
    assert len(states) == len(queries.rules())
    assert {health for health, _ in states.values()} == {"ok"}
    assert {state for _, state in states.values()} <= {None, "inactive"}, states


def test_the_names_of_triton_are_scraped_apart(prometheus):
    prometheus.wait_for('sum(nv_inference_request_success{job="gemmd_triton"}) > 0')
    assert prometheus.query('up{job="gemmd_triton"} == 1')
    assert not prometheus.query('{__name__=~"nv_.*", job="gemmd"}')


def test_the_stages_add_up(prometheus):
    """At most the whole, for each kind of device."""
    total = prometheus.query("sum by (device_kind) (gemmd_product_duration_seconds_sum)")
    stages = prometheus.query("sum by (device_kind) (gemmd_product_stage_duration_seconds_sum)")
    kind = lambda sample: sample["metric"]["device_kind"]
    value = lambda sample: float(sample["value"][1])
    stages = {kind(sample): value(sample) for sample in stages}
    assert len(total) == len(DEVICES)
    for sample in total:
        assert 0 < stages[kind(sample)] <= value(sample)
