# SPDX-License-Identifier: Apache-2.0
"""Two replicas behind one name, as in the overlay round_robin, and clients with exactly the
configuration of its ConfigMap: restarts lose no call."""

import json
import signal

import pytest

from daemon import wait_until
from manifests import Overlay
from replicas import LIMIT_S, Names, Replica, free_port

# Much less than a pod has.
LAME_DUCK = "500ms"
SLOW_MS = 100


@pytest.fixture
def replicas(tree, tmp_path):
    port = free_port()
    started = [
        Replica(tree / "bin/gemmd", tmp_path / host, LAME_DUCK, host, port)
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    yield started
    for replica in started:
        replica.end()


@pytest.fixture
def target(replicas):
    """The address that the ConfigMap gives to clients, with the test's DNS server and port."""
    names = Names([replica.host for replica in replicas])
    address = given_to_clients()["GEMMD_ADDRESS"]
    scheme, _, name = address.partition(":///")
    yield f"{scheme}://127.0.0.1:{names.port}/{name.partition(':')[0]}:{replicas[0].port}"
    names.end()


def given_to_clients():
    return Overlay("round_robin").find("ConfigMap", "gemmd-client")["data"]


def service_config():
    return [("grpc.service_config", given_to_clients()["client_service_config.json"])]


def restart_in_turn(replicas, times):
    for replica in replicas:
        wait_until(lambda: replica.admitted() > 10, LIMIT_S, "traffic for both")
    for i in range(times):
        replicas[i % 2].restart()


def test_the_configuration_watches_health_and_bounds_retries():
    config = json.loads(given_to_clients()["client_service_config.json"])
    assert config["loadBalancingConfig"] == [{"round_robin": {}}]
    assert config["healthCheckConfig"] == {"serviceName": "gemmd.v1.Gemm"}
    assert config["retryThrottling"].keys() == {"maxTokens", "tokenRatio"}


@pytest.mark.parametrize(
    "options, times", [([], 20), ([("grpc.enable_retries", 0)], 6)], ids=["", "without retries"]
)
def test_restarts_lose_no_call(replicas, target, options, times):
    """Without retries too: watching health and the lame duck suffice."""
    from traffic import Traffic

    with Traffic(target, [*service_config(), *options], slow_ms=SLOW_MS) as traffic:
        restart_in_turn(replicas, times)
    print(f"{traffic.answers} answers over {times} restarts, {traffic.slow_answers} of them slow")
    assert not traffic.errors, traffic.errors
    assert traffic.answers > 50 * times and traffic.slow_answers > times


def test_restarts_lose_no_call_of_gemmload(replicas, target, tree, tmp_path, program):
    """gemmd's own client, which has that configuration built in; it does not retry."""
    mix = [
        {"m": 16, "n": 16, "k": 16, "weight": 100},
        {"m": 256, "n": 256, "k": 256, "weight": 10},
        {"name": "slow", "m": 1024, "n": 1024, "k": 1024, "type": "f64"},
    ]
    (tmp_path / "mix.json").write_text(json.dumps(mix))
    report = tmp_path / "report.json"
    load = program(
        tree / "bin/gemmload",
        f"--address={target}",
        f"--mix={tmp_path}/mix.json",
        f"--json={report}",
        "--concurrency=4",
        "--duration=600s",
        "--quiet",
    )
    restart_in_turn(replicas, 6)
    load.send_signal(signal.SIGINT)
    code = load.wait(LIMIT_S)
    text = (tmp_path / "log0").read_text()
    assert code == 0, text
    (step,) = json.loads(report.read_text())["steps"]
    assert step["calls_by_status"].keys() == {"OK"} and step["calls"] > 300, text
    assert step["products"]["slow"]["most_ns"] > SLOW_MS * 1e6, text


def test_a_client_without_the_configuration_loses_calls(replicas):
    """Proves that the tests above can fail."""
    from traffic import Traffic

    address = f"127.0.0.1:{replicas[0].port}"
    with Traffic(address, [("grpc.enable_retries", 0)]) as traffic:
        wait_until(lambda: replicas[0].admitted() > 10, LIMIT_S, "traffic")
        replicas[0].restart()
    assert traffic.errors
