# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes overlays: rendered, valid, and consistent with each other and with the daemon."""

import re

import kubernetes_validate
import pytest
import yaml

import manifests
from manifests import KUBERNETES, flag, matches, seconds

# API groups that are not part of Kubernetes: test_operator.py checks those.
OF_OPERATORS = {"monitoring.coreos.com/v1"}
# The first version that has preStop.sleep by default, and the newest with available schemas.
VERSIONS = ("1.30", "1.37")
# Between the end of the grace and the kill, for the product that runs on a device.
MARGIN_S = 10
# The time that the driver and the canaries of several devices may take.
LONGEST_START_S = 300


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_valid(overlay, version):
    known = [r for r in overlay.resources if r["apiVersion"] not in OF_OPERATORS]
    assert len(known) >= 6
    for resource in known:
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_wrong_field_is_noticed(overlay):
    wrong = yaml.safe_load(yaml.safe_dump(overlay.find("Deployment")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["grcp"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_names_are_unique_and_labelled(overlay):
    names = [(r["kind"], r["metadata"]["name"]) for r in overlay.resources]
    assert len(set(names)) == len(names)
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= {
        k for k, _ in names
    }
    assert {"HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule"} <= {k for k, _ in names}
    for resource in overlay.resources:
        if resource["kind"] != "ConfigMap":
            labels = resource["metadata"]["labels"]
            assert labels["app.kubernetes.io/part-of"] == "gemmd", resource["metadata"]


def test_a_pod_ends_after_its_daemon(overlay):
    arguments = overlay.daemon_arguments()
    pre_stop_s = overlay.daemon["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = seconds(flag(arguments, "lame-duck")) + seconds(flag(arguments, "grace"))
    assert pre_stop_s + drain_s + MARGIN_S <= overlay.pod["spec"]["terminationGracePeriodSeconds"]
    # Longer than every other node takes to learn that the pod is no longer an endpoint. If only the
    # container restarts, the readiness probe must see the lame duck.
    assert pre_stop_s >= 5
    readiness = overlay.daemon["readinessProbe"]
    seen_s = readiness["periodSeconds"] * readiness["failureThreshold"]
    assert seen_s <= seconds(flag(arguments, "lame-duck"))


def test_pods_pass_the_restricted_profile(overlay):
    for deployment in overlay.of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert ":" in container["image"], "an image without a version"


def test_probes_ask_for_the_port_that_the_daemon_listens_on(overlay):
    listen = flag(overlay.daemon_arguments(), "listen")
    ports = {port["name"]: port["containerPort"] for port in overlay.daemon["ports"]}
    assert listen == f"[::]:{ports['grpc']}"
    assert flag(overlay.daemon_arguments(), "metrics-listen") == f"[::]:{ports['metrics']}"
    for probe in ("startupProbe", "readinessProbe"):
        assert overlay.daemon[probe]["grpc"]["port"] == ports["grpc"]
    # The probe that restarts a pod ignores devices: no restart repairs one.
    assert overlay.daemon["startupProbe"]["grpc"]["service"] == "gemmd.v1.Registry"
    assert overlay.daemon["livenessProbe"]["httpGet"] == {"port": "metrics", "path": "/healthz"}
    startup = overlay.daemon["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= LONGEST_START_S


def test_selectors_find_pods_and_ports(overlay):
    pods = [d["spec"]["template"] for d in overlay.of_kind("Deployment")]
    labels = {
        d["metadata"]["name"]: d["spec"]["template"]["metadata"]["labels"]
        for d in overlay.of_kind("Deployment")
    }
    for deployment in overlay.of_kind("Deployment"):
        assert matches(
            deployment["spec"]["selector"]["matchLabels"], labels[deployment["metadata"]["name"]]
        )
    for service in overlay.of_kind("Service"):
        found = [p for p in pods if matches(service["spec"]["selector"], p["metadata"]["labels"])]
        assert len(found) == 1, f"{service['metadata']['name']} finds {len(found)} kinds of pods"
        (container,) = found[0]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]]
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for resource in overlay.of_kind(kind):
            spec = resource["spec"]
            selector = (spec.get("selector") or spec.get("podSelector"))["matchLabels"]
            assert [n for n, l in labels.items() if matches(selector, l)] == [
                resource["metadata"]["name"]
            ]


def test_replicas_follow_the_queue(overlay):
    scaler = overlay.find("HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == overlay.find("Deployment")["metadata"]["name"]
    assert (
        "replicas" not in overlay.find("Deployment")["spec"]
    ), "an apply would undo the autoscaler"
    (metric,) = scaler["metrics"]
    rules = yaml.safe_load((KUBERNETES / "components/autoscaling/adapter_rules.yaml").read_text())
    assert [r["name"]["as"] for r in rules["rules"]] == [metric["pods"]["metric"]["name"]]
    is_balanced = overlay.name in ("round_robin", "envoy", "edge")
    assert scaler["minReplicas"] == (2 if is_balanced else 1)


def test_clients_find_every_replica(overlay):
    """Balancing by call needs the addresses of the pods in addition to the service's own address,
    which cannot be removed, so every overlay needs both."""
    assert "clusterIP" not in overlay.find("Service")["spec"]
    pods = overlay.find("Service", "gemmd-pods")["spec"]
    assert pods["clusterIP"] == "None"
    assert pods["selector"] == overlay.find("Service")["spec"]["selector"]
    assert not pods.get("publishNotReadyAddresses")
    if overlay.name == "round_robin":
        address = overlay.find("ConfigMap", "gemmd-client")["data"]["GEMMD_ADDRESS"]
        assert address == "dns:///gemmd-pods:8470"
    if overlay.name in ("envoy", "edge"):
        (config,) = (
            r for r in overlay.of_kind("ConfigMap") if "gemmd-envoy" in r["metadata"]["name"]
        )
        assert "{address: gemmd-pods, port_value: 8470}" in config["data"]["envoy_config.yaml"]


def test_the_gpu_overlay_asks_for_one(overlay):
    limits = overlay.daemon["resources"]["limits"]
    assert limits.get("nvidia.com/gpu") == ("1" if overlay.name == "gpu" else None)
    assert overlay.daemon["image"] == ("gemmd:cuda" if overlay.name == "gpu" else "gemmd:cpu")


def test_pods_with_gpus_go_where_their_kernels_run():
    """An `a` architecture is for exactly one compute capability."""
    dockerfile = (manifests.SOURCE / "Dockerfile").read_text()
    (built,) = re.findall(r"^ARG CUDA_ARCHITECTURES=(.*)$", dockerfile, re.MULTILINE)
    major, minor = re.fullmatch(r"(\d+)(\d)a-real", built).groups()
    assert manifests.Overlay("gpu").pod["spec"]["nodeSelector"] == {
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
    }


CLIENT = {"gemmd-client": "true"}


def test_the_network_policy_lets_clients_in_by_one_label(overlay):
    if overlay.name == "edge":
        pytest.skip("its clients are no pods: test_edge_manifests.py")
    for policy in overlay.of_kind("NetworkPolicy"):
        calls = policy["spec"]["ingress"][0]
        assert calls["from"] == [{"podSelector": {"matchLabels": CLIENT}}]
        assert calls["ports"] == [{"port": "grpc"}]
    assert f"`gemmd-client: \"{CLIENT['gemmd-client']}\"`" in manifests.readme()


def test_the_network_policy_lets_the_balancer_in():
    overlay = manifests.Overlay("envoy")
    envoy = overlay.find("Deployment", "gemmd-envoy")["spec"]["template"]["metadata"]["labels"]
    assert matches(CLIENT, envoy)
