# SPDX-License-Identifier: Apache-2.0
"""The real Envoy with the configuration of an overlay, on free ports, in front of a test's
daemons."""

import json
import pathlib
import subprocess
import sys

import yaml

from daemon import wait_until
from manifests import Overlay
from replicas import LIMIT_S, free_port, get

LOOPBACK = "127.0.0.1"
FOLDER = "/etc/gemmd-envoy"


def endpoint(port):
    address = {"socket_address": {"address": LOOPBACK, "port_value": port}}
    return {"endpoint": {"address": address}}


def configuration(overlay):
    """The files of the overlay's Envoy, by name."""
    (found,) = (r for r in overlay.of_kind("ConfigMap") if "gemmd-envoy" in r["metadata"]["name"])
    return found["data"]


class Envoy:
    """Uses the configuration of an overlay, in front of the ports of daemons. `mounts` are the
    pod's folders apart from that of the configuration, and `edit` may change the configuration."""

    def __init__(self, program, folder, ports, overlay="envoy", mounts={}, edit=lambda config: None):
        overlay = Overlay(overlay)
        for name, text in configuration(overlay).items():
            for mount, path in {FOLDER: folder, **mounts}.items():
                text = text.replace(f"{mount}/", f"{path}/").replace(f": {mount}}}", f": {path}}}")
            (folder / name).write_text(text)
        config = yaml.safe_load((folder / "envoy_config.yaml").read_text())
        self._place(config, ports)
        edit(config)
        path = folder / "envoy.json"
        path.write_text(json.dumps(config))
        pod = overlay.find("Deployment", "gemmd-envoy")["spec"]["template"]["spec"]
        (self.container,) = pod["containers"]
        arguments = [
            str(path) if word.endswith(".yaml") else word for word in self.container["args"]
        ]
        command = [pathlib.Path(sys.executable).with_name(self.container["command"][0]), *arguments]
        self._process = program(*command, "--concurrency", "1")
        wait_until(self.is_ready, LIMIT_S, "envoy ready")

    def _place(self, config, ports):
        self.ports = {"admin": free_port()}
        for listener in config["static_resources"]["listeners"]:
            port = self.ports[listener["name"]] = free_port()
            listener["address"]["socket_address"] = {"address": LOOPBACK, "port_value": port}
        config["admin"]["address"]["socket_address"]["port_value"] = self.ports["admin"]
        for cluster in config["static_resources"]["clusters"]:
            own = [self.ports["admin"]] if cluster["name"] == "admin" else ports
            (endpoints,) = cluster["load_assignment"]["endpoints"]
            endpoints["lb_endpoints"] = [endpoint(port) for port in own]

    def is_ready(self):
        assert self._process.poll() is None
        probe = self.container["readinessProbe"]["httpGet"]
        try:
            return get(self.ports[probe["port"]], probe["path"])[0] == 200
        except OSError:
            return False

    def pre_stop(self):
        """The same steps as the kubelet's, without the wait."""
        *shell, script = self.container["lifecycle"]["preStop"]["exec"]["command"]
        script = script.replace("9901", str(self.ports["admin"])).replace("sleep 20", "true")
        subprocess.run([*shell, script], check=True, stdout=subprocess.DEVNULL)

    def count(self, name):
        """A counter or gauge of Envoy's own."""
        text = get(self.ports["admin"], f"/stats?filter=^{name}$")[1]
        return int(text.rpartition(":")[2] or 0)
