# SPDX-License-Identifier: Apache-2.0
"""The rest of the contract for an unmodified Python client: streams, the registry, health and
reflection."""

import pathlib
import queue
import threading

import grpc
import pytest
from elements import ELEMENTS
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, registry_pb2, registry_pb2_grpc, tensors_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_reflection.v1alpha.reflection import ReflectionServicer
from product import DEADLINE_S, Product, check_bytes, small_integers
from streams import answers_in, joint

SERVICES = ("gemmd.v1.Gemm", "gemmd.v1.Registry")


@pytest.fixture
def gemm(channel):
    return gemm_pb2_grpc.GemmStub(channel)


@pytest.fixture
def registry(channel):
    return registry_pb2_grpc.RegistryStub(channel)


@pytest.fixture
def health(channel):
    return health_pb2_grpc.HealthStub(channel)


def integers(rng, m, n, k, name="f32", **options):
    element = ELEMENTS[name]
    a, b = small_integers(rng, element, 1, m, k), small_integers(rng, element, 1, k, n)
    return Product(a=a, b=b, a_type=name, b_type=name, **options)


def test_both_addresses_and_many_threads(daemon, rng):
    products = [integers(rng, 5 + i, 7, 9, request_id=str(i)) for i in range(8)]
    failures = queue.Queue()

    def work(address, product):
        try:
            with grpc.insecure_channel(address) as own_channel:
                stub = gemm_pb2_grpc.GemmStub(own_channel)
                for _ in range(20):
                    answer = stub.Multiply(product.request(), timeout=DEADLINE_S)
                    assert answer.request_id == product.request_id
                    check_bytes(answer.d, product)
        except Exception as failure:  # Reported to the test's own thread.
            failures.put(failure)

    threads = [
        threading.Thread(target=work, args=(daemon.addresses[i % 2], product))
        for i, product in enumerate(products)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    if not failures.empty():
        raise failures.get()


def test_timing_adds_up(gemm, rng):
    timing = gemm.Multiply(integers(rng, 64, 64, 64).request(), timeout=DEADLINE_S).timing
    stages = [
        timing.receive_ns,
        timing.queue_ns,
        timing.copy_in_ns,
        timing.compute_ns,
        timing.copy_out_ns,
        timing.send_prepare_ns,
    ]
    assert min(stages) >= 0 and timing.compute_ns > 0
    assert sum(stages) <= timing.total_ns < DEADLINE_S * 10**9


@pytest.mark.parametrize("size", [1, 7, 201])
def test_stream(gemm, rng, size):
    """`size` products in each message; each answer belongs to its request, and a bad request gets
    an error without ending the stream."""
    products = {
        str(i): integers(rng, 1 + i % 17, 1 + i % 5, 1 + i % 23, request_id=str(i))
        for i in range(200)
    }
    requests = [product.request() for product in products.values()]
    bad = integers(rng, 4, 4, 4, request_id="bad").request()
    bad.a.data = bad.a.data[1:]
    requests.insert(100, bad)
    answered = set()
    for answer in answers_in(gemm.MultiplyStream(joint(requests, size), timeout=DEADLINE_S)):
        assert answer.request_id not in answered
        answered.add(answer.request_id)
        if answer.request_id == "bad":
            assert answer.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            assert answer.error.message == "a.data: got 63 bytes, want m*k*4 = 64"
        else:
            assert answer.response.request_id == answer.request_id
            check_bytes(answer.response.d, products[answer.request_id])
    assert answered == set(products) | {"bad"}


def test_stream_answers_before_it_is_closed(gemm, rng):
    """Request by request, like an interactive client."""
    product = integers(rng, 4, 4, 4, request_id="one")
    requests = queue.Queue()
    call = gemm.MultiplyStream(joint(iter(requests.get, None)), timeout=DEADLINE_S)
    answers = answers_in(call)
    for _ in range(10):
        requests.put(product.request())
        check_bytes(next(answers).response.d, product)
    requests.put(None)
    assert list(answers) == []
    assert call.code() == grpc.StatusCode.OK


def test_every_available_kernel_by_name(gemm, registry, rng):
    by_number = {element.number: name for name, element in ELEMENTS.items()}
    kernels = registry.ListKernels(registry_pb2.ListKernelsRequest(), timeout=DEADLINE_S).kernels
    available = [kernel for kernel in kernels if kernel.availability[0].available]
    assert len({kernel.name for kernel in kernels}) == len(kernels) > 0
    assert {by_number[kernel.a_type] for kernel in available} == set(ELEMENTS) - {"s32"}
    for kernel in available:
        a_type, b_type = by_number[kernel.a_type], by_number[kernel.b_type]
        product = Product(
            a=small_integers(rng, ELEMENTS[a_type], 1, 7, 12),
            b=small_integers(rng, ELEMENTS[b_type], 1, 12, 5),
            a_type=a_type,
            b_type=b_type,
            kernel=kernel.name,
        )
        request = product.request()
        # Kernels with unusual arithmetic run only on request.
        request.accumulation_type = kernel.accumulation_type
        product.d_type = by_number[kernel.accumulation_type]
        if kernel.name.endswith(".blocks"):
            # Factors of one change nothing.
            ones = tensors_pb2.BlockScale(
                type=tensors_pb2.FACTOR_TYPE_UE8M0, rows_per_block=7, k_per_block=32, factors=b"\x7f"
            )
            request.a.scale.blocks.CopyFrom(ones)
        answer = gemm.Multiply(request, timeout=DEADLINE_S)
        assert (answer.kernel, answer.device) == (kernel.name, "cpu")
        check_bytes(answer.d, product)


def test_list_kernels_by_pattern(registry):
    def names(pattern):
        request = registry_pb2.ListKernelsRequest(name_pattern=pattern)
        return [k.name for k in registry.ListKernels(request, timeout=DEADLINE_S).kernels]

    everything = names("")
    some = names("onednn.*")
    assert 0 < len(some) < len(everything)
    assert some == [name for name in everything if name.startswith("onednn.")]
    assert names(everything[0]) == [everything[0]]
    assert names("no such kernel") == []


def test_explain_tells_the_choice_of_multiply(gemm, registry, rng):
    for name in ("f64", "f32", "bf16", "s8", "e4m3", "b1"):
        request = integers(rng, 65, 63, 67, name).request()
        answer = gemm.Multiply(request, timeout=DEADLINE_S)
        for operand in (request.a, request.b):
            operand.ClearField("data")
        explain_request = registry_pb2.ExplainRequest(request=request)
        explained = registry.Explain(explain_request, timeout=DEADLINE_S)
        assert explained.candidates[0].kernel == answer.kernel
        assert explained.device == answer.device
        assert explained.operations == answer.operations == 2 * 65 * 63 * 67
        assert explained.bytes_read == answer.bytes_read
        assert explained.bytes_written == answer.bytes_written == len(answer.d.data)
        predictions = [candidate.predicted_ns for candidate in explained.candidates]
        assert min(predictions) > 0
        assert all(refusal.reason for refusal in explained.refusals)
        listed = registry.ListKernels(registry_pb2.ListKernelsRequest(), timeout=DEADLINE_S)
        told = [c.kernel for c in explained.candidates] + [r.kernel for r in explained.refusals]
        of_kind = [kernel.name for kernel in listed.kernels if kernel.device_kind == "cpu"]
        assert sorted(told) == sorted(of_kind)


def test_explain_refuses_what_multiply_refuses(registry, rng):
    request = registry_pb2.ExplainRequest(request=integers(rng, 4, 4, 4).request())
    request.request.k = -1
    with pytest.raises(grpc.RpcError) as refused:
        registry.Explain(request, timeout=DEADLINE_S)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "k: got -1, want at least 0"


def test_list_devices(gemm, registry, rng):
    def device():
        answer = registry.ListDevices(registry_pb2.ListDevicesRequest(), timeout=DEADLINE_S)
        assert [device.name for device in answer.devices] == ["cpu", "sim:sm_90"]
        return answer.devices[0]

    before = device()
    assert before.ready and before.kind == "cpu" and before.threads > 0
    assert before.memory_bytes > 0 and before.arithmetic == ""
    assert all(rate.operations_per_second > 0 for rate in before.rates) and before.rates
    for _ in range(3):
        gemm.Multiply(integers(rng, 4, 4, 4).request(), timeout=DEADLINE_S)
    after = device()
    assert after.completed_requests == before.completed_requests + 3
    assert (after.queued_requests, after.queued_bytes) == (0, 0)


def test_server_info(registry):
    def info():
        return registry.GetServerInfo(registry_pb2.GetServerInfoRequest(), timeout=DEADLINE_S)

    first, second = info(), info()
    assert first.version.count(".") == 2
    assert {library.name for library in first.libraries} >= {"gRPC", "oneDNN", "OpenBLAS"}
    assert all(library.version for library in first.libraries)
    assert first.limits.max_message_bytes == 512 << 20
    assert (first.limits.max_queued_requests, first.limits.max_queued_bytes) == (4096, 4 << 30)
    assert (first.limits.max_concurrent_streams, first.limits.max_stream_requests) == (100, 1024)
    assert list(first.features) == sorted(first.features)
    assert {"multiply-stream", "resident-tensors", "fast-accumulation"} <= set(first.features)
    contract = (pathlib.Path(__file__).parents[2] / "proto/gemmd/v1/registry.proto").read_text()
    assert all(f"`{feature}`" in contract for feature in first.features)
    assert first.default_device == "cpu" and not first.draining
    assert 0 < first.uptime_ns < second.uptime_ns


def test_health_check(health):
    for service in ("", *SERVICES):
        request = health_pb2.HealthCheckRequest(service=service)
        answer = health.Check(request, timeout=DEADLINE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as unknown:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=DEADLINE_S)
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND


def test_health_watch(health):
    request = health_pb2.HealthCheckRequest(service=SERVICES[0])
    watch = health.Watch(request, timeout=DEADLINE_S)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    request = health_pb2.HealthCheckRequest(service="nobody")
    watch = health.Watch(request, timeout=DEADLINE_S)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_reflection_can_be_off(daemons):
    daemon = daemons.start("--devices=cpu", "--services=kserve", "--lame-duck=1ms")
    with grpc.insecure_channel(daemon.tcp, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        grpc.channel_ready_future(channel).result(DEADLINE_S)
        with pytest.raises(grpc.RpcError) as raised:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_reflection_gives_the_contract(channel):
    """A client without the .proto finds every method and the same messages."""
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) >= {*SERVICES, "grpc.health.v1.Health"}
    pool = DescriptorPool(database)
    for module in (gemm_pb2, registry_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            reflected = pool.FindServiceByName(service.full_name)
            assert [method.name for method in reflected.methods] == [
                method.name for method in service.methods
            ]
    reflected = pool.FindMessageTypeByName("gemmd.v1.MultiplyRequest")
    fields = gemm_pb2.MultiplyRequest.DESCRIPTOR.fields
    assert [(f.name, f.number, f.type) for f in reflected.fields] == [
        (f.name, f.number, f.type) for f in fields
    ]


Question = reflection_pb2.ServerReflectionRequest
Extension = reflection_pb2.ExtensionRequest
QUESTIONS = [
    Question(host="h", list_services="x"),
    Question(file_by_filename="gemmd/v1/gemm.proto"),
    Question(file_by_filename="gemmd/v1/tensors.proto"),
    Question(file_by_filename="gemmd/v1/nothing.proto"),
    Question(file_containing_symbol="gemmd.v1.Gemm"),
    Question(file_containing_symbol="gemmd.v1.MultiplyRequest"),
    Question(file_containing_symbol="gemmd.v1.MultiplyRequest.request_id"),
    Question(file_containing_symbol="gemmd.v1.ElementType"),
    Question(file_containing_symbol="gemmd.v1.Nothing"),
    Question(file_containing_symbol=""),
    Question(all_extension_numbers_of_type="gemmd.v1.MultiplyRequest"),
    Question(all_extension_numbers_of_type="google.protobuf.FieldOptions"),
    Question(all_extension_numbers_of_type="gemmd.v1.Nothing"),
    Question(file_containing_extension=Extension(containing_type="gemmd.v1.MultiplyRequest", extension_number=1)),
    Question(file_containing_extension=Extension(containing_type="gemmd.v1.Nothing", extension_number=1)),
    Question(),
]


def contents(answer):
    """The contents of an answer: files by name, services in any order, errors by code."""
    kind = answer.WhichOneof("message_response")
    if kind == "file_descriptor_response":
        described = answer.file_descriptor_response.file_descriptor_proto
        files = [descriptor_pb2.FileDescriptorProto.FromString(data) for data in described]
        return kind, {file.name: file for file in files}, len(files)
    if kind == "list_services_response":
        return kind, sorted(service.name for service in answer.list_services_response.service)
    if kind == "error_response":
        return kind, answer.error_response.error_code
    return kind, answer.all_extension_numbers_response


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_answers_as_that_of_grpc(channel, version):
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        Question.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    answers = list(ask(iter(QUESTIONS), timeout=DEADLINE_S))
    services = contents(answers[0])[1]
    assert {f"grpc.reflection.{name}.ServerReflection" for name in ("v1", "v1alpha")} < set(services)
    known = ReflectionServicer(services).ServerReflectionInfo(iter(QUESTIONS), None)
    for question, answer, other in zip(QUESTIONS, answers, known, strict=True):
        assert answer.original_request == other.original_request == question
        assert contents(answer) == contents(other), question
    # grpcurl also asks for methods, which Python's own pool does not find.
    methods = [Question(file_containing_symbol=name) for name in ("gemmd.v1.Gemm", "gemmd.v1.Gemm.Multiply")]
    service, method = map(contents, ask(iter(methods), timeout=DEADLINE_S))
    assert service == method


def test_a_question_to_reflection_is_short(channel):
    ask = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        lambda data: data,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    longest = 64 << 10
    listing = Question(list_services="").SerializeToString()
    # One byte more, and the daemon closes the connection before it has the question.
    for size, code in ((longest, grpc.StatusCode.INVALID_ARGUMENT), (longest + 1, grpc.StatusCode.UNAVAILABLE)):
        with pytest.raises(grpc.RpcError) as refused:
            list(ask(iter([listing + bytes(size - len(listing))]), timeout=DEADLINE_S))
        assert refused.value.code() == code
