# SPDX-License-Identifier: Apache-2.0
"""KServe's v2 protocol, used through PyPI's tritonclient."""

import hashlib
import queue

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from gemmd.v1 import resident_pb2, tensors_pb2
from infer_requests import DATATYPES, infer, parameters_of, tensor
from tensors import Session
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90"]
DEADLINE_S = 60


@pytest.fixture
def client(daemon):
    with triton.InferenceServerClient(daemon.tcp) as client:
        yield client


def small(rng, dtype, *shape):
    """Small whole numbers, whose products are exact in each type."""
    low = 0 if np.dtype(dtype).kind == "u" else -4
    values = [rng.randint(low, 4) for _ in range(int(np.prod(shape)))]
    return np.array(values).reshape(shape).astype(dtype)


def refusal(call):
    """The status and the text of a refusal."""
    with pytest.raises(InferenceServerException) as raised:
        call()
    return raised.value.status().removeprefix("StatusCode."), raised.value.message()


@pytest.mark.parametrize("dtype", [t for t in DATATYPES if t != np.int32], ids=lambda t: t.name)
def test_multiplies_each_datatype(client, rng, dtype):
    a, b = small(rng, dtype, 5, 7), small(rng, dtype, 7, 3)
    answer = infer(client, A=a, B=b)
    d = answer.as_numpy("D")
    assert np.array_equal(d, a.astype(float) @ b.astype(float))
    assert d.dtype == (np.int32 if dtype.kind in "iu" else np.float64 if dtype == np.float64 else np.float32)
    # The same elements as numbers in the message, if it has a field for them.
    if dtype == np.float16:
        return
    request = service_pb2.ModelInferRequest(model_name="gemm", id="typed")
    field = {"f": "fp32_contents", "i": "int_contents", "u": "uint_contents", "d": "fp64_contents"}
    for name, matrix in (("A", a), ("B", b)):
        put = request.inputs.add(name=name, datatype=DATATYPES[dtype], shape=matrix.shape)
        getattr(put.contents, field["d" if dtype == np.float64 else dtype.kind]).extend(
            matrix.ravel().tolist()
        )
    typed = client._client_stub.ModelInfer(request, timeout=DEADLINE_S)
    assert typed.id == "typed"
    assert typed.raw_output_contents[0] == d.tobytes()


def test_types_without_a_datatype_of_their_own(client, rng):
    """KServe has a name for bf16, which NumPy lacks; e4m3 and s4 are sent as bytes."""
    a, b = small(rng, np.float32, 4, 6), small(rng, np.float32, 6, 5)
    bf16 = [
        triton.InferInput(name, list(matrix.shape), "BF16").set_data_from_numpy(matrix)
        for name, matrix in (("A", a), ("B", b))
    ]
    assert np.array_equal(client.infer("gemm", bf16).as_numpy("D"), a @ b)

    answer = infer(
        client,
        "gemm",
        {"output_type": "BF16", "alpha": 2.0},
        A=tensor("A", a.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), type="e4m3"),
        B=tensor("B", b.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), type="e4m3"),
    )
    assert np.array_equal(answer.as_numpy("D"), 2 * (a @ b))

    # Two elements per byte, low bits first; each row starts on a byte.
    def nibbles(matrix):
        padded = np.pad(matrix.astype(np.int64) & 15, ((0, 0), (0, matrix.shape[1] % 2)))
        return (padded[:, ::2] | padded[:, 1::2] << 4).astype(np.uint8)

    answer = infer(
        client,
        A=tensor("A", nibbles(a), type="s4"),
        B=tensor("B", nibbles(b), type="s4", columns=5),
    )
    assert np.array_equal(answer.as_numpy("D"), a @ b)
    status, words = refusal(
        lambda: infer(client, A=tensor("A", nibbles(a), type="s4"), B=tensor("B", nibbles(b), type="s4", columns=9))
    )
    assert (status, words.split(":")[0]) == ("INVALID_ARGUMENT", "inputs[1].parameters.columns")


def test_whole_epilogue_and_choices(client, rng):
    a, b = small(rng, np.int8, 2, 3, 4), small(rng, np.int8, 5, 4)
    c, bias = small(rng, np.float32, 3, 5), small(rng, np.float32, 5)
    a_scale = np.array([0.5, 2, 4], np.float32)
    b_scale = np.array([2], np.float32)
    answer = infer(
        client,
        "gemm",
        {"transpose_b": True, "activation": "relu", "alpha": 0.5, "beta": 2.0, "output_type": "f32",
         "device": "cpu"},
        A=a, B=b, C=c, BIAS=bias, A_SCALE=a_scale, B_SCALE=b_scale,
    )
    product = (a * a_scale[:, None]) @ (b.T * b_scale[0])
    assert np.array_equal(answer.as_numpy("D"), np.maximum(0.5 * product + 2 * c + bias, 0))
    told = parameters_of(answer)
    assert told["device"] == "cpu"
    stages = [told[f"{stage}_ns"] for stage in ("receive", "queue", "copy_in", "compute", "copy_out", "send_prepare")]
    assert 0 < sum(stages) <= told["total_ns"]
    assert told["operations"] == 2 * 2 * 3 * 4 * 5
    # With C, the default of beta is 1; a bias along the rows.
    answer = infer(client, "gemm", {"bias_axis": "rows"}, A=a[0], B=b.T, C=small(rng, np.int32, 3, 5) * 0,
                   BIAS=np.array([1, 2, 3], np.int32))
    assert np.array_equal(answer.as_numpy("D"), a[0].astype(int) @ b.T + np.array([[1], [2], [3]]))


def test_large_operands(client, rng):
    """Too long to be copied, in both directions."""
    a = np.random.default_rng(rng.getrandbits(32)).integers(-3, 4, (600, 700)).astype(np.float32)
    b = np.random.default_rng(rng.getrandbits(32)).integers(-3, 4, (700, 500)).astype(np.float32)
    assert np.array_equal(infer(client, A=a, B=b).as_numpy("D"), a @ b)
    request = service_pb2.ModelInferRequest(model_name="gemm")
    for name, matrix in (("A", a), ("B", b)):
        put = request.inputs.add(name=name, datatype="FP32", shape=matrix.shape)
        put.contents.fp32_contents.extend(matrix.ravel())
    typed = client._client_stub.ModelInfer(request, timeout=DEADLINE_S)
    assert typed.raw_output_contents[0] == (a @ b).tobytes()
    assert infer(client, A=a[:0], B=b).as_numpy("D").shape == (0, 500)


@pytest.fixture
def owner(channel):
    with Session(channel) as session:
        yield session


def put_weights(session, name, weights):
    spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F32, rows=weights.shape[0], columns=weights.shape[1])
    return session.put(weights.tobytes(), spec=spec, name=name)


def test_a_resident_tensor_is_a_model_of_its_owner_alone(client, channel, owner, rng):
    weights = small(rng, np.float32, 6, 4)
    put_weights(owner, "layer", weights)
    headers = dict(owner.own_metadata)
    a = small(rng, np.float32, 3, 6)
    answer = client.infer("layer", [tensor("A", a)], headers=headers)
    assert np.array_equal(answer.as_numpy("D"), a @ weights)
    assert client.is_model_ready("layer", headers=headers)
    metadata = client.get_model_metadata("layer", headers=headers)
    assert [(put.name, put.datatype, list(put.shape)) for put in metadata.inputs] == [("A", "FP32", [-1, 6])]
    assert list(metadata.outputs[0].shape) == [-1, 4]
    config = client.get_model_config("layer", headers=headers).config
    assert [put.name for put in config.input] == ["A"]
    told = {name: value.string_value for name, value in config.parameters.items()}
    assert told == {"optional_inputs": "C,BIAS", "type": "f32"}
    names = [model.name for model in client.get_model_repository_index(headers=headers).models]
    assert names == ["gemm", "layer"]
    [counted] = client.get_inference_statistics("layer", headers=headers).model_stats
    assert counted.inference_count == counted.inference_stats.queue.count == 1
    status, words = refusal(lambda: client.infer("layer", [tensor("A", a[:, :5])], headers=headers))
    assert (status, words) == ("INVALID_ARGUMENT", "inputs[0].shape: got [3, 5], want K = 6, as of the model's B")

    blocks = tensors_pb2.BlockScale(
        type=tensors_pb2.FACTOR_TYPE_UE8M0, rows_per_block=1, k_per_block=8
    )
    spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_S8, rows=4, columns=8)
    spec.scale.blocks.CopyFrom(blocks)
    owner.put(bytes(32) + b"\x7f" * 4, spec=spec, name="quantized")
    call = lambda: client.infer("quantized", [tensor("A", small(rng, np.float16, 3, 8))], headers=headers)
    status, words = refusal(call)
    assert status == "FAILED_PRECONDITION"
    assert words.startswith("model: got a tensor with factors of blocks, want one without")
    [listed] = client.get_model_repository_index(headers=headers).models[2:]
    assert (listed.name, listed.state) == ("quantized", "UNAVAILABLE")
    assert listed.reason == words

    with Session(channel) as other:
        for theirs in (dict(other.own_metadata), {"gemmd-session": "0" * 32}, None):
            refusals = {
                refusal(call)
                for name in ("layer", "nothing")
                for call in (
                    lambda name=name: client.infer(name, [tensor("A", a)], headers=theirs),
                    lambda name=name: client.get_model_metadata(name, headers=theirs),
                    lambda name=name: client.get_model_config(name, headers=theirs),
                    lambda name=name: client.get_inference_statistics(name, headers=theirs),
                )
            }
            assert len(refusals) == 1 and refusals.pop()[0] == "NOT_FOUND"
            assert not client.is_model_ready("layer", headers=theirs)
            assert [m.name for m in client.get_model_repository_index(headers=theirs).models] == ["gemm"]


def test_server_and_models_are_described(client, rng):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("gemm")
    assert not client.is_model_ready("gemm", "2")
    server = client.get_server_metadata()
    assert server.name == "gemmd" and "statistics" in server.extensions
    metadata = client.get_model_metadata("gemm")
    assert [put.name for put in metadata.inputs] == ["A", "B"] and metadata.versions == ["1"]
    config = client.get_model_config("gemm").config
    assert {put.name for put in config.input} == {put.name for put in metadata.inputs}
    assert config.max_batch_size == 0 and config.input[0].data_type == 11
    assert config.parameters["optional_inputs"].string_value == "C,BIAS,A_SCALE,B_SCALE"

    def counts():
        [stats] = client.get_inference_statistics("gemm").model_stats
        return stats

    before = counts()
    a = small(rng, np.float32, 2, 4, 4)
    infer(client, A=a, B=a)
    refusal(lambda: infer(client, A=a, B=a[:, :3]))
    after = counts()
    assert after.inference_count - before.inference_count == 2
    assert after.execution_count - before.execution_count == 1
    inferred, earlier = after.inference_stats, before.inference_stats
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output", "fail"):
        assert getattr(inferred, part).count - getattr(earlier, part).count == 1, part
    assert inferred.success.ns > earlier.success.ns and after.last_inference > 10**12


def test_streams_answer_each_request(client, rng):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    a, b = small(rng, np.float32, 4, 5), small(rng, np.float32, 5, 6)
    for i in range(20):
        client.async_stream_infer("gemm", [tensor("A", a * i), tensor("B", b)], request_id=str(i),
                                  enable_empty_final_response=True)
    client.async_stream_infer("gemm", [tensor("A", a), tensor("B", b[:4])], request_id="bad")
    client.async_stream_infer("gemm", [tensor("A", a), tensor("B", b)], request_id="after")
    seen = {}
    errors = []
    for _ in range(22):
        result, error = answers.get(timeout=DEADLINE_S)
        if error is None:
            seen[result.get_response().id] = result.as_numpy("D")
            assert parameters_of(result)["triton_final_response"]
        else:
            errors.append(error.message())
    client.stop_stream()
    assert errors == ["INVALID_ARGUMENT: inputs[1].shape: got [4, 6], want K = 5, as of A"]
    assert set(seen) == {*map(str, range(20)), "after"}
    for i in range(20):
        assert np.array_equal(seen[str(i)], a * i @ b)


def test_refusals_name_the_field(client, rng):
    a, b = small(rng, np.float32, 4, 5), small(rng, np.float32, 5, 6)

    def words(model="gemm", parameters=None, **inputs):
        return refusal(lambda: infer(client, model, parameters, **inputs))

    invalid = "INVALID_ARGUMENT"
    assert words(A=a) == (invalid, "inputs: got no B, want A and B")
    assert words(A=a, B=b, X=a) == (
        invalid, "inputs[2].name: got X, want one of A, B, C, BIAS, A_SCALE, B_SCALE")
    assert words(A=a, B=b[:4]) == (invalid, "inputs[1].shape: got [4, 6], want K = 5, as of A")
    assert words(A=a[0], B=b) == (
        invalid, "inputs[0].shape: got [5], want [rows, columns] or [batch, rows, columns]")
    assert words(A=a, B=b, C=a) == (invalid, "inputs[2].shape: got [4, 5], want M = 4 by N = 6")
    assert words(A=a, B=b, BIAS=a[0]) == (invalid, "inputs[2].shape: got [5], want [6], N")
    assert words(A=a.astype(np.float64), B=b)[1].startswith("inputs[1].datatype: got f32, want f64")
    assert words(A=a, B=b, A_SCALE=a[:, 0])[1].startswith("inputs[2].shape: got values")
    assert words(A=tensor("A", a.astype(np.int16), "INT16"), B=b)[1].startswith(
        "inputs[0].datatype: got INT16, want FP64, FP32,")
    assert words(parameters={"alpha": "2"}, A=a, B=b) == (
        invalid, "parameters.alpha: got a string, want a number")
    assert words(parameters={"aplha": 2.0}, A=a, B=b)[1].startswith(
        'parameters: got an unknown "aplha", want one of alpha, beta')
    assert words(parameters={"activation": "tanh"}, A=a, B=b) == (
        invalid, "parameters.activation: got tanh, want none, relu, gelu_erf, gelu_tanh or silu")
    status, text = words(parameters={"kernel": "unheard-of"}, A=a, B=b)
    assert (status, text.split(":")[0]) == ("NOT_FOUND", "parameters.kernel")
    status, text = words(parameters={"device": "cuda:9"}, A=a, B=b)
    assert (status, text.split(":")[0]) == ("NOT_FOUND", "parameters.device")
    status, text = refusal(lambda: client.infer("gemm", [tensor("A", a), tensor("B", b)], sequence_id=7))
    assert (status, text.split(": ", 1)[1]) == (
        "UNIMPLEMENTED", "got a sequence, want none: products have no state")
    shared = triton.InferInput("A", [4, 5], "FP32")
    shared.set_shared_memory("region", 80)
    status, text = refusal(lambda: client.infer("gemm", [shared, tensor("B", b)]))
    assert status == "UNIMPLEMENTED" and text.endswith("keep weights on the server as a resident tensor")


def test_what_only_other_servers_have_is_refused_with_words(client):
    for call in (
        lambda: client.register_system_shared_memory("r", "/r", 64),
        lambda: client.get_system_shared_memory_status(),
        lambda: client.unregister_system_shared_memory(),
        lambda: client.get_cuda_shared_memory_status(),
    ):
        status, words = refusal(call)
        assert status == "UNIMPLEMENTED" and "send raw_input_contents" in words
    for call in (lambda: client.load_model("x"), lambda: client.unload_model("x")):
        status, words = refusal(call)
        assert status == "UNIMPLEMENTED" and "resident tensor" in words
    assert refusal(client.get_log_settings)[0] == "UNIMPLEMENTED"


def test_deadlines(client):
    """By gRPC's deadline and by KServe's parameter: a product of an hour on the simulator is not
    begun."""
    a = np.ones((3000, 3000), np.float16)
    inputs = [tensor("A", a), tensor("B", a)]
    parameters = {"device": "sim:sm_90"}
    status, _ = refusal(lambda: client.infer("gemm", inputs, parameters=parameters, client_timeout=0.2))
    assert status == "DEADLINE_EXCEEDED"
    status, words = refusal(lambda: client.infer("gemm", inputs, parameters=parameters, timeout=200_000))
    assert status == "DEADLINE_EXCEEDED", words


def test_the_messages_are_those_of_tritonclient(config_stubs_descriptors):
    """Each of our fields exists there, with the same number and type."""
    ours, compared = config_stubs_descriptors, 0
    for name, message in ours.items():
        if name == "ModelMetadataResponse.PropertiesEntry":
            continue
        theirs = service_pb2.DESCRIPTOR.pool.FindMessageTypeByName(f"inference.{name}")
        for field in message.field:
            if (name, field.name) == ("ModelMetadataResponse", "properties"):
                continue  # Only in the Open Inference Protocol.
            same = theirs.fields_by_name[field.name]
            is_repeated = field.label == field.LABEL_REPEATED
            assert (field.number, field.type) == (same.number, same.type), field
            assert is_repeated == same.is_repeated, field
            compared += 1
    assert compared > 100


@pytest.fixture
def config_stubs_descriptors(tmp_path):
    """The messages of proto/kserve by name, without a descriptor pool, because tritonclient's have
    the same names."""
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc
    from stubs import SOURCE

    out = tmp_path / "kserve.bin"
    code = protoc.main(["protoc", f"-I{SOURCE / 'proto'}", f"--descriptor_set_out={out}", "kserve/v2/inference.proto"])
    assert code == 0
    [file] = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file

    def walk(messages, prefix=""):
        for message in messages:
            yield prefix + message.name, message
            yield from walk(message.nested_type, f"{prefix}{message.name}.")

    return dict(walk(file.message_type))


def test_it_can_be_turned_off(daemons):
    daemon = daemons.start("--lame-duck=1ms", "--devices=cpu", "--services=reflection")
    with triton.InferenceServerClient(daemon.tcp) as client:
        assert refusal(client.is_server_live)[0] == "UNIMPLEMENTED"
