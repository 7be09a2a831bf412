# SPDX-License-Identifier: Apache-2.0
"""Rules in YAML: read at the start, and kept if a reloaded file is invalid."""

import signal

import grpc
import pytest
from daemon import wait_until
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, registry_pb2, registry_pb2_grpc, tensors_pb2
from tensors import DEADLINE_S

RULES = """\
identities:
  anonymous:          # Callers that show nothing.
    may: [multiply]
    devices: [cpu]
"""


def may_multiply(channel):
    one = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_F32, data=b"\0\0\x80\x3f")
    request = gemm_pb2.MultiplyRequest(m=1, n=1, k=1, a=one, b=one)
    answer = gemm_pb2_grpc.GemmStub(channel).Multiply(request, timeout=DEADLINE_S)
    return answer.d.data == one.data


def test_rules_may_be_yaml(daemons, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    daemon = daemons.start("--devices=cpu", "--lame-duck=1ms", f"--rules={rules}")
    with grpc.insecure_channel(daemon.tcp) as channel:
        assert may_multiply(channel)
        registry = registry_pb2_grpc.RegistryStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            registry.ListDevices(registry_pb2.ListDevicesRequest(), timeout=DEADLINE_S)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

        rules.write_text(RULES + "  other:\n    may: *all\n")
        daemon.signal(signal.SIGHUP)
        [kept] = wait_until(lambda: daemon.events("rules_kept"), DEADLINE_S, "rules kept")
        assert "rules: line 6, column 10: got an alias" in kept["reason"]
        assert may_multiply(channel)

        rules.write_text(RULES.replace("[multiply]", "[registry]"))
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: daemon.events("rules_read"), DEADLINE_S, "rules read")
        registry.ListDevices(registry_pb2.ListDevicesRequest(), timeout=DEADLINE_S)
        with pytest.raises(grpc.RpcError) as refused:
            may_multiply(channel)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_bad_file_is_told_at_the_start(daemons, tmp_path):
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES + "\tother: 1\n")
    daemon = daemons.launch("--devices=cpu", f"--rules={rules}")
    assert daemon.wait() == 1
    [stop] = daemon.events("stop")
    assert "rules: line 5, column 1: got text that is not YAML, want YAML" in stop["reason"]
