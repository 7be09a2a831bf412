# SPDX-License-Identifier: Apache-2.0
"""Objects for the Prometheus operator, whose kinds Kubernetes' schemas do not know: their fields,
what they select, and where their rules come from."""

import os
import re
import subprocess

import pytest

import manifests
from manifests import KUBERNETES, matches

# Every field that is used, according to the operator's API reference.
DURATION, NAME, LABELS = "duration", "name", "labels"
ENDPOINT = {
    "port": NAME,
    "path": str,
    "interval": DURATION,
    "scrapeTimeout": DURATION,
    "relabelings": [{"targetLabel": str, "replacement": str}],
}
CUSTOM_KINDS = {
    "PodMonitor": {
        "selector": {"matchLabels": LABELS},
        "podMetricsEndpoints": [ENDPOINT],
    },
    "ServiceMonitor": {
        "selector": {"matchLabels": LABELS},
        "jobLabel": str,
        "endpoints": [ENDPOINT],
    },
    "PrometheusRule": {
        "groups": [
            {
                "name": str,
                "rules": [
                    {
                        "record": str,
                        "alert": str,
                        "expr": str,
                        "for": DURATION,
                        "labels": LABELS,
                        "annotations": LABELS,
                    }
                ],
            }
        ]
    },
}


def check_shape(value, shape, place):
    """Fails if the value has a field that is not in the shape, or one of another type."""
    if isinstance(shape, dict):
        assert isinstance(value, dict) and value.keys() <= shape.keys(), f"{place}: {value}"
        for key, part in value.items():
            check_shape(part, shape[key], f"{place}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list) and value, f"{place}: {value}"
        for i, part in enumerate(value):
            check_shape(part, shape[0], f"{place}[{i}]")
    elif shape is LABELS:
        assert all(isinstance(word, str) for pair in value.items() for word in pair), place
    elif shape is DURATION:
        assert re.fullmatch(r"[0-9]+(ms|s|m|h)", value), f"{place}: {value}"
    elif shape is NAME:
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,13}[a-z0-9])?", value), f"{place}: {value}"
    else:
        assert isinstance(value, shape), f"{place}: {value}"


def test_every_resource_of_the_operator_has_known_fields(overlay):
    custom = [r for r in overlay.resources if r["kind"] in CUSTOM_KINDS]
    assert {"PrometheusRule", "ServiceMonitor"} <= {r["kind"] for r in custom}
    for resource in custom:
        assert resource["apiVersion"] == "monitoring.coreos.com/v1"
        assert resource.keys() == {"apiVersion", "kind", "metadata", "spec"}
        check_shape(resource["spec"], CUSTOM_KINDS[resource["kind"]], resource["kind"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": []},
        {"endpoints": {}},
        {"endpoints": [{"port": "metrics", "intervall": "15s"}]},
        {"endpoints": [{"interval": "15"}]},
        {"endpoints": [{"port": 8471}]},
        {"selector": {"app": "gemmd"}},
    ],
)
def test_a_wrong_field_of_the_operator_is_noticed(wrong):
    with pytest.raises((AssertionError, TypeError)):
        check_shape(wrong, CUSTOM_KINDS["ServiceMonitor"], "ServiceMonitor")


def test_prometheus_scrapes_one_service(overlay):
    monitor = overlay.find("ServiceMonitor")["spec"]
    selected = [
        s
        for s in overlay.of_kind("Service")
        if matches(monitor["selector"]["matchLabels"], s["metadata"]["labels"])
    ]
    assert [s["metadata"]["name"] for s in selected] == ["gemmd"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in selected[0]["spec"]["ports"]}
    # The rules select job="gemmd".
    assert selected[0]["metadata"]["labels"][monitor["jobLabel"]] == "gemmd"


def test_prometheus_scrapes_envoy():
    overlay = manifests.Overlay("envoy")
    monitor = overlay.find("PodMonitor", "gemmd-envoy")["spec"]
    envoy = overlay.find("Deployment", "gemmd-envoy")["spec"]["template"]
    assert matches(monitor["selector"]["matchLabels"], envoy["metadata"]["labels"])
    (endpoint,) = monitor["podMetricsEndpoints"]
    (container,) = envoy["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    policy = overlay.find("NetworkPolicy", "gemmd-envoy")["spec"]["ingress"][1]
    assert policy["ports"] == [{"port": endpoint["port"]}]
    config = (KUBERNETES / "overlays/envoy/envoy_config.yaml").read_text()
    assert f"match: {{path: {endpoint['path']}}}" in config


def test_the_names_of_triton_are_a_job_of_their_own(tmp_path):
    """The component that no overlay includes, rendered with one."""
    overlay = manifests.KUBERNETES / "overlays/cpu"
    component = manifests.KUBERNETES / "components/triton_names"
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{os.path.relpath(overlay, tmp_path)}]\n"
        f"components: [{os.path.relpath(component, tmp_path)}]\n"
    )
    (monitor,) = (r for r in manifests.render(tmp_path) if r["kind"] == "ServiceMonitor")
    check_shape(monitor["spec"], CUSTOM_KINDS["ServiceMonitor"], "ServiceMonitor")
    own, triton = monitor["spec"]["endpoints"]
    assert "path" not in own and triton["path"] == "/metrics/triton"
    assert triton["relabelings"] == [{"targetLabel": "job", "replacement": "gemmd_triton"}]


def test_the_rule_for_the_operator_is_that_of_compose():
    subprocess.run([manifests.SOURCE / "tests/deploy/prometheus_rule.sh"], check=True)
