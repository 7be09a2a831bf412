# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile's targets, built, and run as a pod would be."""

import re
import signal

import pytest

from container import Container
from manifests import Overlay

MOST_BYTES = 300_000_000
HEALTH = ["/opt/gemmd/bin/gemmctl", "--timeout=3s", "health"]
LOOPBACK_PORTS = ["--listen=127.0.0.1:8470"]


@pytest.fixture
def contain(tmp_path):
    """A way to run images in containers that end with the test."""
    running = []

    def start(image, arguments=None):
        running.append(Container(image, tmp_path, arguments))
        return running[-1]

    yield start
    for container in running:
        container.__exit__()


def healthcheck(image):
    kind, *command = image.config["Healthcheck"]["Test"]
    assert kind == "CMD", "a healthcheck by a shell"
    return command


def check_daemon_image(image):
    user, group = image.config["User"].split(":")
    assert int(user) > 0 and int(group) > 0
    assert image.config["Entrypoint"] == ["/opt/gemmd/bin/gemmd"]
    assert image.config["Cmd"][0].startswith("--"), "arguments by a shell"
    assert not image.config.get("Volumes")
    assert set(image.config["ExposedPorts"]) == {"8470/tcp", "8471/tcp"}
    assert healthcheck(image) == HEALTH
    assert image.bytes() < MOST_BYTES, f"{image.bytes()} bytes"


def test_the_cpu_image_is_small_and_for_nobody_in_particular(cpu_image):
    check_daemon_image(cpu_image)
    programs = {path.name for path in (cpu_image.root / "opt/gemmd/bin").iterdir()}
    assert programs == {"gemmd", "gemmctl"}


def test_the_cpu_image_multiplies_and_drains(cpu_image, contain):
    """With the image's own arguments; /usr/bin is empty, / read-only, and nobody has rights."""
    daemon = contain(cpu_image)
    assert daemon.wait_until(*healthcheck(cpu_image)) == "SERVING\n"
    status = daemon.status()
    assert status["Uid"] == ["65532"] * 4 and status["Groups"] == []
    assert all(int(status[kind][0], 16) == 0 for kind in ("CapPrm", "CapEff", "CapBnd", "CapAmb"))
    assert status["NSpid"][-1] == "1" and status["NoNewPrivs"] == ["1"]

    gemmctl = "/opt/gemmd/bin/gemmctl"
    for device in ("cpu", "sim:sm_90"):
        product = (gemmctl, "multiply", "--random=96,80,72", "--type=bf16", "--verify")
        code, text = daemon.execute(*product, f"--device={device}")
        assert code == 0, text
    with pytest.raises((FileNotFoundError, AssertionError)):
        code, text = daemon.execute("/bin/sh", "-c", "true")
        assert code == 0, text

    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    events = re.findall(r"event=(\w+)", daemon.log())
    assert events.index("lame_duck") < events.index("drain") < events.index("stop")


def test_the_healthcheck_fails_during_the_lame_duck(cpu_image, contain):
    daemon = contain(cpu_image, [*LOOPBACK_PORTS, "--devices=cpu", "--lame-duck=50s"])
    daemon.wait_until(*healthcheck(cpu_image))
    daemon.signal(signal.SIGTERM)
    code, text = 0, ""
    while code == 0:
        code, text = daemon.execute(*healthcheck(cpu_image))
    assert (code, text) == (1, "NOT_SERVING\n")
    daemon.signal(signal.SIGTERM)  # The second one skips the waiting.
    assert daemon.wait() == 0


@pytest.mark.parametrize("name", ["cpu", "round_robin", "envoy"])
def test_the_image_takes_the_arguments_and_probes_of_a_pod(name, cpu_image, contain):
    overlay = Overlay(name)
    daemon = contain(cpu_image, overlay.daemon_arguments())
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = overlay.daemon[probe]["grpc"]
        service = [f"--service={asked['service']}"] if "service" in asked else []
        daemon.wait_until(HEALTH[0], f"--address=127.0.0.1:{asked['port']}", "health", *service)
    code, text = daemon.execute(HEALTH[0], "devices")
    assert code == 0 and "sim:sm_90" in text
    daemon.signal(signal.SIGTERM)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_the_cuda_image_has_the_worker_and_no_library_of_cuda(store, programs, tree, contain):
    if not (tree / "bin/gemmd-worker").exists():
        with pytest.raises(AssertionError, match="no bin/gemmd-worker in the installed tree"):
            store.build("cuda", programs)
        return
    image = store.build("cuda", programs)
    check_daemon_image(image)
    names = [path.name for path in (image.root / "opt/gemmd").rglob("*")]
    assert {"gemmd", "gemmd-worker", "gemmctl"} <= set(names)
    assert not [name for name in names if re.match(r"lib(cu|nv)", name)]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in image.config["Env"]

    # The container has no GPU, whatever the machine has: the worker says what is missing.
    daemon = contain(image, [*LOOPBACK_PORTS, "--devices=cuda:0"])
    assert daemon.wait() == 1
    assert "device: cuda:0 does not start: count of GPUs" in daemon.log()


def test_the_load_image_has_the_load_tester_alone(store, programs, tree, contain):
    if not (tree / "bin/gemmload").exists():
        with pytest.raises(AssertionError, match="no bin/gemmload in the installed tree"):
            store.build("load", programs)
        return
    image = store.build("load", programs)
    programs = [path.name for path in (image.root / "opt/gemmd/bin").iterdir()]
    assert programs == ["gemmload"]
    assert image.bytes() < MOST_BYTES
    assert contain(image, ["--version"]).wait() == 0
