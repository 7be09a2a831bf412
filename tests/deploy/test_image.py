# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile's targets, built, and run like a pod."""

import re
import shutil
import signal

import pytest

from bill import check as check_bill
from container import Container
from daemon import wait_until
from image import run
from manifests import Overlay, readme, seconds

MAX_BYTES = 300_000_000
HEALTH = ["/opt/gemmd/bin/gemmctl", "--timeout=3s", "health"]
# For the product that runs on a device when the grace is over.
MARGIN_S = 5
LOOPBACK_PORTS = ["--listen=127.0.0.1:8470"]


@pytest.fixture
def contain(tmp_path):
    """Runs images in containers that end with the test."""
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
    assert image.bytes() < MAX_BYTES, f"{image.bytes()} bytes"


def test_the_cpu_image_is_small_and_for_nobody_in_particular(cpu_image):
    check_daemon_image(cpu_image)
    programs = {path.name for path in (cpu_image.root / "opt/gemmd/bin").iterdir()}
    assert programs == {"gemmd", "gemmctl"}


def test_an_image_has_a_bill_of_what_is_in_it(store, programs):
    """It and all files also have the time given to the build."""
    image = store.build("cpu", programs, SOURCE_DATE_EPOCH="1700000000")
    bill = check_bill(image.root / "opt/gemmd")
    names = {package.name for package in bill.packages.values()}
    assert {"libgrpc29", "libdnnl2"} <= names and "cuda-runtime" not in names
    assert bill.document.creation_info.created.timestamp() == 1_700_000_000
    times = {path.lstat().st_mtime for path in (image.root / "opt/gemmd").rglob("*")}
    assert times == {1_700_000_000}


def test_images_say_what_they_are(bare_image):
    prefix = "org.opencontainers.image."
    labels = bare_image.config["Labels"]
    said = {key.removeprefix(prefix): labels[key] for key in labels if key.startswith(prefix)}
    assert said.pop("description")
    assert said == {
        "title": "gemmd",
        "licenses": "Apache-2.0",
        "version": "1.2.3",
        "revision": "abc",
        "source": "https://x",
    }


def test_the_cpu_image_multiplies_and_drains(bare_image, contain):
    """With the image's own arguments; without a shell, / read-only, and nobody has rights."""
    assert not list((bare_image.root / "usr/bin").iterdir())
    daemon = contain(bare_image)
    assert daemon.wait_until(*healthcheck(bare_image)) == "SERVING\n"
    status = daemon.status()
    assert status["Uid"] == ["65532"] * 4 and status["Groups"] == []
    assert all(int(status[kind][0], 16) == 0 for kind in ("CapPrm", "CapEff", "CapBnd", "CapAmb"))
    assert status["NSpid"][-1] == "1" and status["NoNewPrivs"] == ["1"]

    gemmctl = "/opt/gemmd/bin/gemmctl"
    for device in ("cpu", "sim:sm_90"):
        product = (gemmctl, "multiply", "--random=96,80,72", "--type=bf16", "--verify")
        code, text = daemon.execute(*product, f"--device={device}")
        assert code == 0, text

    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    events = re.findall(r"event=(\w+)", daemon.log())
    assert events.index("lame_duck") < events.index("drain") < events.index("stop")


def test_the_healthcheck_fails_during_the_lame_duck(bare_image, contain):
    daemon = contain(bare_image, [*LOOPBACK_PORTS, "--devices=cpu", "--lame-duck=50s"])
    daemon.wait_until(*healthcheck(bare_image))
    daemon.signal(signal.SIGTERM)
    code, text = 0, ""
    while code == 0:
        code, text = daemon.execute(*healthcheck(bare_image))
    assert (code, text) == (1, "NOT_SERVING\n")
    daemon.signal(signal.SIGTERM)  # The second signal skips the waiting.
    assert daemon.wait() == 0


@pytest.mark.parametrize("name", ["cpu", "round_robin", "envoy"])
def test_the_image_takes_the_arguments_and_probes_of_a_pod(name, bare_image, contain):
    overlay = Overlay(name)
    daemon = contain(bare_image, overlay.daemon_arguments())
    for probe in ("startupProbe", "readinessProbe"):
        asked = overlay.daemon[probe]["grpc"]
        service = [f"--service={asked['service']}"] if "service" in asked else []
        daemon.wait_until(HEALTH[0], f"--address=127.0.0.1:{asked['port']}", "health", *service)
    code, text = daemon.execute(HEALTH[0], "devices")
    assert code == 0 and "sim:sm_90" in text
    daemon.signal(signal.SIGTERM)
    # Two signals at once would count as one.
    wait_until(lambda: "event=lame_duck" in daemon.log(), 30, "the lame duck")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


@pytest.fixture(scope="module")
def cuda_image(store, programs, tree, tmp_path_factory):
    """Without nvcc, another program stands for the worker."""
    if not (tree / "bin/gemmd-worker").exists():
        programs = tmp_path_factory.mktemp("with_worker")
        shutil.copytree(tree, programs / "opt/gemmd", symlinks=True)
        shutil.copy(tree / "bin/gemmctl", programs / "opt/gemmd/bin/gemmd-worker")
    return store.build("cuda", programs)


def test_the_cuda_image_has_the_worker_and_no_library_of_cuda(cuda_image):
    check_daemon_image(cuda_image)
    names = [path.name for path in (cuda_image.root / "opt/gemmd").rglob("*")]
    assert {"gemmd", "gemmd-worker", "gemmctl"} <= set(names)
    assert not [name for name in names if re.match(r"lib(cu|nv)", name)]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in cuda_image.config["Env"]


def test_the_cuda_image_says_that_there_is_no_gpu(cuda_image, tree, contain):
    """The container has none, whatever the machine has."""
    if not (tree / "bin/gemmd-worker").exists():
        pytest.skip("no gemmd-worker: it was built without nvcc")
    daemon = contain(cuda_image, [*LOOPBACK_PORTS, "--devices=cuda:0"])
    assert daemon.wait() == 1
    assert "device: cuda:0 does not start: count of GPUs" in daemon.log()


def test_an_image_is_not_made_without_a_program(store, programs, tmp_path):
    shutil.copytree(programs / "opt/gemmd", tmp_path / "opt/gemmd", symlinks=True)
    (tmp_path / "opt/gemmd/bin/gemmload").unlink()
    with pytest.raises(AssertionError, match="no bin/gemmload in the installed tree"):
        store.build("load", tmp_path)


def test_the_load_image_has_the_load_tester_alone(store, programs, contain):
    image = store.build("load", programs)
    assert [path.name for path in (image.root / "opt/gemmd/bin").iterdir()] == ["gemmload"]
    assert image.bytes() < MAX_BYTES
    assert contain(image, ["--version"]).wait() == 0


def test_the_stages_that_compile_have_what_they_need(store):
    """Checks packages, sources and flags by configuring without anything of this machine's; of the
    programs, only one small library is compiled."""
    image = store.build("configure-cpu")
    plan = store.run_in(image, "ninja", "-n", "-C", "build/release")
    for program in ("gemmd", "gemmctl", "gemmload"):
        assert f"bin/{program}" in plan
    assert "_test" not in plan and "nvcc" not in plan
    build = ("cmake", "--build", "--preset", "release", "--target")
    store.run_in(image, *build, "gemmd_health_messages")


def test_the_toolkit_may_be_of_any_version(store):
    image = store.build("toolkit", CUDA=store.with_toolkit())
    assert (image.root / "toolkit/bin/nvcc").exists()


def test_docker_waits_for_the_drain(tree):
    """`docker run` of the README, with the daemon's own times."""
    text = run(tree / "bin/gemmd", "--help")
    defaults = dict(re.findall(r"--(lame-duck|grace) DURATION=(\w+)", text))
    drain_s = seconds(defaults["lame-duck"]) + seconds(defaults["grace"])
    lines = re.findall(r"docker run .* gemmd:(?:cpu|cuda)$", readme(), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        limit = re.search(r" --stop-timeout=(\d+) ", line)
        assert limit and drain_s + MARGIN_S <= int(limit[1]), line
