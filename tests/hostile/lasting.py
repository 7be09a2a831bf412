# SPDX-License-Identifier: Apache-2.0
"""Products that take as long as a test wants, with few bytes."""

import math

from daemon import wait_until
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, registry_pb2, registry_pb2_grpc, statistics_pb2


def long_work(k=4096, edge=8):
    """Small operands, which a batch reuses: for an edge of 8, 3.4e10 multiplications. A longer k
    makes the result smaller for the same time; a smaller edge makes the operands smaller for the
    same k."""
    request = gemm_pb2.MultiplyRequest(m=edge, n=edge, k=k, batch=(1 << 29) // k)
    for operand in (request.a, request.b):
        operand.type = ELEMENTS["f16"].number
        operand.data = bytes(edge * k * 2)
        operand.batch_stride = 0
    return request


def predicted_s(channel, request):
    """The time that the daemon predicts."""
    question = registry_pb2.ExplainRequest(request=request)
    question.request.a.ClearField("data")
    question.request.b.ClearField("data")
    explained = registry_pb2_grpc.RegistryStub(channel).Explain(question, timeout=60)
    return explained.candidates[0].predicted_ns / 1e9


def lasting(channel, seconds, **shape):
    """Long work, with as many matrices as take `seconds` by the daemon's prediction."""
    request = long_work(**shape)
    for _ in range(3):  # The part that does not grow with the batch distorts the first prediction.
        request.batch = math.ceil(request.batch * seconds / predicted_s(channel, request))
    return request


def statistics_of(channel, device):
    """The daemon's statistics of a device: the waiting jobs, and for how long products have had it
    so far."""
    request = statistics_pb2.GetStatisticsRequest()
    devices = registry_pb2_grpc.RegistryStub(channel).GetStatistics(request, timeout=60).devices
    return next(each for each in devices if each.name == device)


def start_on(channel, device, request, timeout_s):
    """The call of a long product, once it runs."""
    before_ns = statistics_of(channel, device).busy_ns
    call = gemm_pb2_grpc.GemmStub(channel).Multiply.future(request, timeout=timeout_s)

    def runs():
        assert not call.done(), call
        return statistics_of(channel, device).busy_ns > before_ns + 50_000_000

    wait_until(runs, 60, "busy while the product runs")
    return call
