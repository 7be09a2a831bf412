# SPDX-License-Identifier: Apache-2.0
"""Prometheus itself scrapes a daemon over mutual TLS, with the configuration of the README."""

import json
import re
import time
import urllib.request

import certificates
import yaml

from image import SOURCE
from replicas import free_port

LIMIT_S = 60


def example():
    text = (SOURCE / "deploy/README.md").read_text()
    [block] = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return yaml.safe_load(block)


def targets(address):
    with urllib.request.urlopen(f"http://{address}/api/v1/targets", timeout=LIMIT_S) as answer:
        return json.load(answer)["data"]["activeTargets"]


def test_prometheus_scrapes_over_mutual_tls(tree, tmp_path, program):
    authority = certificates.Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("client")
    metrics, own = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    config = example()
    [job] = config["scrape_configs"]
    files = job["tls_config"]
    files["ca_file"], files["cert_file"], files["key_file"] = (
        str(path) for path in (authority.cert_path, client.cert_path, client.key_path)
    )
    job["scrape_interval"] = job["scrape_timeout"] = "1s"
    job["static_configs"][0]["targets"] = [metrics]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    program(
        tree / "bin/gemmd",
        "--listen=127.0.0.1:0",
        "--devices=cpu",
        f"--metrics-listen=mtls:{metrics}",
        f"--tls-cert={server.cert_path}",
        f"--tls-key={server.key_path}",
        f"--client-ca={authority.cert_path}",
    )
    program(
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yaml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address={own}",
    )
    deadline, seen = time.monotonic() + LIMIT_S, None
    while not seen or seen[0]["health"] != "up":
        assert time.monotonic() < deadline, f"never scraped: {seen}"
        try:
            seen = targets(own)
        except OSError:
            pass  # It is not there yet.
        time.sleep(0.1)
    assert seen[0]["scrapeUrl"] == f"https://{metrics}/metrics"
