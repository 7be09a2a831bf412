# SPDX-License-Identifier: Apache-2.0
"""The overlay of the edge: consistent with the daemon, and completed by an overlay that includes
it."""

import os
import re

import pytest
import yaml

import manifests
from edge import Issuer
from envoy import configuration
from manifests import Overlay, flag, matches

MOUNTS = {"/etc/gemmd-envoy", "/etc/gemmd-tls", "/etc/gemmd-trust"}


@pytest.fixture(scope="module")
def edge():
    return Overlay("edge")


def http(config):
    (chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
    return chain["filters"][-1]["typed_config"]


def test_envoy_and_gemmd_ask_for_the_same_tokens(edge):
    config = yaml.safe_load(configuration(edge)["envoy_config.yaml"])
    (found,) = (
        part["typed_config"]["providers"]["callers"]
        for part in http(config)["http_filters"]
        if part["name"] == "envoy.filters.http.jwt_authn"
    )
    arguments = edge.daemon_arguments()
    assert found["issuer"] == flag(arguments, "jwt-issuer")
    assert found["audiences"] == [flag(arguments, "jwt-audience")]
    assert found["local_jwks"] == {"filename": flag(arguments, "jwt-keys")}
    assert found["forward"] is True


def test_the_administration_is_for_the_pod_alone(edge):
    config = yaml.safe_load(configuration(edge)["envoy_config.yaml"])
    assert config["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    policy = edge.find("NetworkPolicy", "gemmd-envoy")["spec"]
    assert policy["ingress"][0] == {"ports": [{"port": "grpc"}]}
    assert policy["ingress"][1]["ports"] == [{"port": "ready"}] and policy["ingress"][1]["from"]
    (port,) = edge.find("Service", "gemmd-envoy")["spec"]["ports"]
    assert port["targetPort"] == "grpc" and "appProtocol" not in port


def test_nobody_but_envoy_calls_gemmd(edge):
    calls = edge.find("NetworkPolicy")["spec"]["ingress"][0]
    (who,) = calls["from"]
    envoy = edge.find("Deployment", "gemmd-envoy")["spec"]["template"]["metadata"]["labels"]
    assert matches(who["podSelector"]["matchLabels"], envoy)
    assert not matches(who["podSelector"]["matchLabels"], edge.pod["metadata"]["labels"])


def test_the_heap_fits_the_container(edge):
    config = yaml.safe_load(configuration(edge)["envoy_config.yaml"])
    (heap,) = (
        monitor["typed_config"]["max_heap_size_bytes"]
        for monitor in config["overload_manager"]["resource_monitors"]
        if monitor["name"].endswith(".fixed_heap")
    )
    (container,) = edge.find("Deployment", "gemmd-envoy")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "2Gi"
    assert heap <= 2 * 2**30 * 3 // 4


def test_every_file_is_where_a_mount_is(edge):
    pod = edge.find("Deployment", "gemmd-envoy")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == MOUNTS
    for text in configuration(edge).values():
        for path in re.findall(r"/etc/[\w-]+", text):
            assert path in MOUNTS, path


def test_the_example_of_the_readme_completes_it(tmp_path):
    """Kustomize gives generated objects their own names, which every mount then uses."""
    (example,) = re.findall(
        r"^```yaml\n(# kustomization\.yaml\n.*?)^```$", manifests.readme(), re.MULTILINE | re.DOTALL
    )
    parsed = yaml.safe_load(example)
    assert parsed["resources"][0].endswith("deploy/kubernetes/overlays/edge")
    for name, text in {
        "client_ca.pem": "x",
        "jwks.json": str(Issuer("i", "a").key_set()),
        "rules.yaml": "identities: {}",
        "tls.crt": "x",
        "tls.key": "x",
    }.items():
        (tmp_path / name).write_text(text)
    parsed["resources"][0] = os.path.relpath(manifests.KUBERNETES / "overlays/edge", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(parsed))
    resources = manifests.render(tmp_path)
    made = {
        (r["kind"], re.sub(r"-[a-z0-9]{10}$", "", r["metadata"]["name"])): r["metadata"]["name"]
        for r in resources
        if r["kind"] in ("ConfigMap", "Secret")
    }
    trust, tls = made["ConfigMap", "gemmd-trust"], made["Secret", "gemmd-tls"]
    assert trust != "gemmd-trust" and tls != "gemmd-tls"
    named = [
        (volume.get("configMap") or {}).get("name") or (volume.get("secret") or {}).get("secretName")
        for r in resources
        if r["kind"] == "Deployment"
        for volume in r["spec"]["template"]["spec"]["volumes"]
    ]
    assert named.count(trust) == 2 and named.count(tls) == 1
