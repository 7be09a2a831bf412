# SPDX-License-Identifier: Apache-2.0
"""The chart of deploy/helm, rendered by Helm (its Go library, in a wheel), compared with the
overlays."""

import copy

import helm_python
import kubernetes_validate
import pytest
import yaml

import manifests
from image import SOURCE
from test_manifests import OF_OPERATORS, VERSIONS

CHART = SOURCE / "deploy/helm/gemmd"
VALUES = {"cpu": None, "gpu": "values_gpu.yaml"}
# Added by Helm, so that releases in one namespace do not select each other's pods.
OF_HELM = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"}


@pytest.fixture(scope="module")
def chart():
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def preset(name):
    return yaml.safe_load((CHART / VALUES[name]).read_text()) if VALUES[name] else {}


def render(chart, values=None, name="gemmd"):
    """The rendered objects, by kind and name."""
    texts = chart.render(values or {}, name=name, namespace="somewhere").values()
    resources = [r for text in texts for r in yaml.safe_load_all(text) if r is not None]
    found = {(r["kind"], r["metadata"]["name"]): r for r in resources}
    assert len(found) == len(resources)
    return found


def without(value, keys):
    if isinstance(value, dict):
        return {k: without(v, keys) for k, v in value.items() if k not in keys}
    return [without(v, keys) for v in value] if isinstance(value, list) else value


def daemon(resources, name="gemmd"):
    [container] = resources["Deployment", name]["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("name", VALUES)
def test_the_chart_renders_what_the_overlay_does(chart, name):
    """Compares field by field: images, arguments, probes, security, resources, services, monitors,
    rules."""
    overlay = {(r["kind"], r["metadata"]["name"]): r for r in manifests.Overlay(name).resources}
    rendered = render(chart, preset(name))
    assert rendered.keys() == overlay.keys() and len(overlay) == 10
    for key, wanted in overlay.items():
        got = copy.deepcopy(rendered[key])
        labels = got["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "gemmd"
        if key[0] == "ConfigMap":
            # kustomize's generator gives it no other label.
            got["metadata"]["labels"] = {"grafana_dashboard": labels["grafana_dashboard"]}
            assert got["data"]["gemmd.json"].strip() == wanted["data"]["gemmd.json"].strip()
            got["data"] = wanted["data"]
        assert without(got, OF_HELM) == wanted, key


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VALUES)
def test_every_resource_is_valid(chart, name, version):
    known = [r for r in render(chart, preset(name)).values() if r["apiVersion"] not in OF_OPERATORS]
    assert len(known) == 8
    for resource in known:
        kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_no_fault(name):
    report = helm_python.lint(CHART, preset(name), strict=True, kube_version=f"v{VERSIONS[0]}.0")
    # There is nothing that an icon could show.
    assert [m for m in report["messages"] if m["error"] != "icon is recommended"] == []
    assert report["errors"] == []


def test_a_packed_chart_holds_rules_and_dashboard(chart, tmp_path):
    """In the source they are links to the originals."""
    with helm_python.Chart.load(chart.save(tmp_path)) as packed:
        assert render(packed) == render(chart)


def test_each_release_has_its_own_pods(chart):
    resources = render(chart, name="other")
    assert {name for _, name in resources} == {"other", "other-pods", "other-dashboard"}
    labels = resources["Deployment", "other"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        resources["Deployment", "other"]["spec"]["selector"]["matchLabels"],
        resources["Service", "other"]["spec"]["selector"],
        resources["Service", "other-pods"]["spec"]["selector"],
        resources["PodDisruptionBudget", "other"]["spec"]["selector"]["matchLabels"],
        resources["NetworkPolicy", "other"]["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector["app.kubernetes.io/instance"] == "other"
        assert manifests.matches(selector, labels)
    target = resources["HorizontalPodAutoscaler", "other"]["spec"]["scaleTargetRef"]
    assert target["name"] == "other"


def test_values_do_what_they_say(chart):
    values = {
        "image": {"repository": "registry.example/gemmd", "tag": "1.2.3", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "secret"}],
        "runtimeClassName": "nvidia",
        "devices": ["cuda:1", "sim"],
        "extraArgs": ["--verify=sampled:0.01"],
        "drain": {"preStopSeconds": 7, "lameDuckSeconds": 3, "graceSeconds": 60},
        "replicas": 3,
        "autoscaling": {"enabled": False},
        "networkPolicy": {"clientLabels": {"who": "me"}, "metricsNamespace": "watch"},
        "monitoring": {"labels": {"release": "x"}, "runbookBase": "https://x.example/gemmd/"},
    }
    resources = render(chart, values)
    deployment = resources["Deployment", "gemmd"]["spec"]
    pod, container = deployment["template"]["spec"], daemon(resources)
    assert deployment["replicas"] == 3
    assert ("HorizontalPodAutoscaler", "gemmd") not in resources
    assert container["image"] == "registry.example/gemmd:1.2.3"
    assert container["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "secret"}] and pod["runtimeClassName"] == "nvidia"
    assert manifests.flag(container["args"], "devices") == "cuda:1,sim"
    assert container["args"][-1] == "--verify=sampled:0.01"
    assert manifests.flag(container["args"], "lame-duck") == "3s"
    assert manifests.flag(container["args"], "grace") == "60s"
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 7
    assert pod["terminationGracePeriodSeconds"] == 7 + 3 + 60 + 10
    calls, metrics = resources["NetworkPolicy", "gemmd"]["spec"]["ingress"]
    [client] = calls["from"]
    assert client["podSelector"]["matchLabels"]["who"] == "me"
    [watcher] = metrics["from"]
    assert "watch" in watcher["namespaceSelector"]["matchLabels"].values()
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert resources[kind, "gemmd"]["metadata"]["labels"]["release"] == "x"
    groups = resources["PrometheusRule", "gemmd"]["spec"]["groups"]
    urls = [r["annotations"]["runbook_url"] for g in groups for r in g["rules"] if "alert" in r]
    assert urls[0] == "https://x.example/gemmd/deploy/RUNBOOK.md#gemmddown" and len(urls) > 10
    assert all(url.startswith("https://x.example/gemmd/deploy/RUNBOOK.md#") for url in urls)
    off = {"networkPolicy": {"enabled": False}, "monitoring": {"enabled": False}}
    kinds = {kind for kind, _ in render(chart, off)}
    assert not kinds & {"NetworkPolicy", "ServiceMonitor", "PrometheusRule", "ConfigMap"}


BAD = {
    "an unknown value": {"replicaCount": 2},
    "an unknown part": {"image": {"digest": "x"}},
    "a tag with a space": {"image": {"tag": "a b"}},
    "no device": {"devices": []},
    "an unknown device": {"devices": ["gpu"]},
    "bytes that gemmd does not read": {"maxQueuedBytes": "4Gi"},
    "an argument that is no option": {"extraArgs": ["verify"]},
    "a number of cores": {"resources": {"limits": {"cpu": 4}}},
    "memory in no unit of Kubernetes": {"resources": {"limits": {"memory": "8gb"}}},
    "a count below 0": {"replicas": -1},
    "no replica at all": {"autoscaling": {"minReplicas": 0}},
    "seconds as a text": {"drain": {"graceSeconds": "20s"}},
    "a base without its slash": {"monitoring": {"runbookBase": "https://x.example"}},
    "a label that is no text": {"nodeSelector": {"gpu": True}},
}


@pytest.mark.parametrize("what", BAD)
def test_wrong_values_are_refused(chart, what):
    with pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(chart.merge_values(BAD[what]))
    with pytest.raises(helm_python.HelmError):
        render(chart, BAD[what])


def test_the_schema_knows_each_value_and_gives_none(chart):
    chart.validate_schema(chart.values)
    assert set(chart.schema["properties"]) == set(chart.values) | {"global"}
    for key, value in chart.values.items():
        properties = chart.schema["properties"][key].get("properties")
        if properties:
            assert set(properties) == set(value), key
