# SPDX-License-Identifier: Apache-2.0
"""Products that exceed a counter's range and cost nothing: a sum over k = 2^58 is not computed if
alpha is 0, and a D without rows may have any number of matrices. No counter wraps around, which
would look like a restart to a scraper."""

import metrics_page
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, registry_pb2_grpc, statistics_pb2
from kserve.v2 import inference_pb2, inference_pb2_grpc

DEADLINE_S = 60
GEMMD_FLAGS = ["--devices=cpu,sim:sm_90", "--max-queued-bytes=32MiB"]
TIMES = 20  # 20 times a 16th of 2^63 exceeds 2^63, and is not a multiple of 2^64.
ENDLESS_MATRICES = 1 << 62


def numberless(device, **extents):
    request = gemm_pb2.MultiplyRequest(device=device, **extents)
    for operand in (request.a, request.b):
        operand.type = ELEMENTS["f16"].number
    return request


def infer_without_rows():
    request = inference_pb2.ModelInferRequest(model_name="gemm")
    for name, shape in (("A", [ENDLESS_MATRICES, 0, 0]), ("B", [ENDLESS_MATRICES, 0, 0])):
        request.inputs.add(name=name, datatype="FP32", shape=shape)
        request.raw_input_contents.append(b"")
    return request


def numbers_of(message):
    """Every number of a message, with its path."""
    for field, value in message.ListFields():
        values = value if hasattr(value, "__len__") and not isinstance(value, (str, bytes)) else [value]
        for one in values.values() if hasattr(values, "values") else values:
            if hasattr(one, "ListFields"):
                yield from ((f"{field.name}.{path}", number) for path, number in numbers_of(one))
            elif isinstance(one, (int, float)):
                yield field.name, one


def test_no_counter_wraps(attacked, daemon, channel, battery):
    gemm = gemm_pb2_grpc.GemmStub(channel)
    models = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    for device in ("cpu", "sim:sm_90"):
        for _ in range(TIMES):
            gemm.Multiply(
                numberless(device, m=1, n=1, k=1 << 58, alpha=0), timeout=DEADLINE_S
            )
            gemm.Multiply(numberless(device, batch=ENDLESS_MATRICES), timeout=DEADLINE_S)
    for _ in range(TIMES):
        models.ModelInfer(infer_without_rows(), timeout=DEADLINE_S)

    pages = [metrics_page.scrape(daemon, path) for path in ("/metrics", "/metrics/triton")]
    counters = {
        name: value
        for page in pages
        for (name, labels), value in page.samples.items()
        if page.types.get(name) == "counter"
    }
    battery.holds("sums that are too large: metrics", least=0, seen=min(counters.values()))
    assert counters["nv_inference_count"] >= ENDLESS_MATRICES
    told = models.ModelStatistics(inference_pb2.ModelStatisticsRequest(name="gemm"), timeout=DEADLINE_S)
    counts = [stats.inference_count for stats in told.model_stats]
    assert min(counts) >= ENDLESS_MATRICES
    battery.holds("sums that are too large: inferences of a model", most=(1 << 63) - 1, seen=max(counts))
    statistics = registry_pb2_grpc.RegistryStub(channel).GetStatistics(
        statistics_pb2.GetStatisticsRequest(), timeout=DEADLINE_S
    )
    numbers = dict(numbers_of(statistics))
    battery.holds("sums that are too large: statistics", least=0, seen=min(numbers.values()))
