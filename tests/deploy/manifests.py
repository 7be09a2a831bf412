# SPDX-License-Identifier: Apache-2.0
"""The overlays of deploy/kubernetes, rendered by kustomize (its Go library, in a wheel)."""

import asyncio
import functools
import re

import pykustomize

from image import SOURCE

KUBERNETES = SOURCE / "deploy/kubernetes"
OVERLAYS = ("cpu", "gpu", "round_robin", "envoy", "edge")
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


@functools.cache
def render(folder):
    return asyncio.run(pykustomize.Kustomizer().build_json(folder)).resources


def readme():
    return (SOURCE / "deploy/README.md").read_text()


def seconds(text):
    """The seconds of a duration as gemmd, systemd and compose write it: 500ms, 5s, 30m."""
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()
    return int(number) * SECONDS[unit]


def flag(arguments, name):
    """The value of --name=value; the last one is used."""
    values = [word.partition("=")[2] for word in arguments if word.startswith(f"--{name}=")]
    assert values, f"--{name} is not among {arguments}"
    return values[-1]


class Overlay:
    def __init__(self, name):
        self.name = name
        self.resources = render(KUBERNETES / "overlays" / name)

    def find(self, kind, name="gemmd"):
        found = [r for r in self.resources if (r["kind"], r["metadata"]["name"]) == (kind, name)]
        assert len(found) == 1, f"{name}: {len(found)} of kind {kind}"
        return found[0]

    def of_kind(self, kind):
        return [resource for resource in self.resources if resource["kind"] == kind]

    @property
    def pod(self):
        return self.find("Deployment")["spec"]["template"]

    @property
    def daemon(self):
        """The container of gemmd."""
        (container,) = self.pod["spec"]["containers"]
        return container

    def daemon_arguments(self):
        """As the kubelet passes them on: with the values of variables."""
        limits = self.daemon["resources"]["limits"]
        values = {
            variable["name"]: limits[variable["valueFrom"]["resourceFieldRef"]["resource"][7:]]
            for variable in self.daemon.get("env", [])
        }
        return [
            re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], word) for word in self.daemon["args"]
        ]


def matches(selector, labels):
    return selector.items() <= labels.items()
