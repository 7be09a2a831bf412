# SPDX-License-Identifier: Apache-2.0
"""Values of wrong types and out of range: each is an InvalidArgument that names the field, and is
refused by the client, since gRPC ignores some of them and messages round or wrap others."""

import asyncio
import concurrent.futures
import decimal
import fractions
import math

import gemmd
import ml_dtypes
import numpy as np
import pytest
from gemmd import joint, methods
from gemmd.channel import Settings, checked_timeout
from gemmd.part import OwnedTensor
from gemmd.product import Answer, build_request
from gemmd.requests import chain_request, keep_alive_request, keep_message, tensor_ref
from gemmd.transfer import Upload, lanes_for
from gemmd.v1 import gemm_pb2, resident_pb2, tensors_pb2

ONE = np.ones((1, 1), np.float32)
S8 = np.ones((1, 1), np.int8)
HUGE = 10**5000
TWO = np.array([1.0, 2.0])
REF = tensors_pb2.TensorRef(handle=b"x")


def type_name(value):
    """An id for a test: Python does not print integers of thousands of digits."""
    return type(value).__name__


def refused(call, *arguments, **keywords):
    with pytest.raises(gemmd.InvalidArgument) as raised:
        call(*arguments, **keywords)
    return raised.value


@pytest.mark.parametrize(
    "field, values",
    [
        ("max_message_bytes", [True, np.bool_(True), 1.5, 0, -1, 2**31, HUGE, "5", None, [1], math.nan, math.inf, 1j]),
        ("max_attempts", [True, 2.5, 0, 6, "2", None, TWO]),
        ("keepalive_s", ["20", None, True, [20], TWO, math.nan, HUGE]),
        ("timeout", ["5", [1], True, None, TWO, HUGE, math.nan]),
        ("use_proxy", ["no", None, 0]),
        ("wait_when_full", ["no", None]),
        ("wait_for_ready", ["no", None]),
        ("address", [1, None, b"h:1", "h:" + 5000 * "1"]),
        ("tls_ca", [1, None, b"x"]),
        ("tls_cert", [1]),
        ("tls_key", [1]),
        ("tls_server_name", [1]),
        ("token", [1, b"a.secret"]),
        ("session", [1, b"a.secret"]),
    ],
)
def test_settings(field, values):
    for value in values:
        for kind in (gemmd.Client, gemmd.aio.Client):
            error = refused(kind, **({"address": "h:1"} | {field: value}))
            assert error.field == field, error
            assert len(str(error)) < 300 or field == "address"
            assert "a.secret" not in str(error)


@pytest.mark.parametrize("value", [10**9, 1e9, np.int64(10**9), np.float32(1e9), np.array(10**9), fractions.Fraction(10**9)])
def test_a_whole_number_of_any_type_counts(value):
    """gRPC would ignore all but the first, so its limit would be 4 MiB."""
    options = dict(Settings("h:1", max_message_bytes=value).options())
    for name in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert type(options[name]) is int and options[name] == 10**9


def test_attempts_and_times_of_any_type():
    for three in (3, 3.0, np.int64(3), np.float16(3), decimal.Decimal(3), ml_dtypes.bfloat16(3)):
        settings = Settings("h:1", max_attempts=three, timeout=three, keepalive_s=10 * three)
        assert type(settings.max_attempts) is int and settings.max_attempts == 3
        assert '"maxAttempts": 3,' in dict(settings.options())["grpc.service_config"]
        assert (settings.timeout, settings.keepalive_s) == (3, 30)


def test_timeouts_of_calls():
    for timeout in ("5", [1], TWO, True, None):
        assert refused(checked_timeout, timeout).field == "timeout"


@pytest.mark.parametrize("value", [True, 1.5, "1", 17, -1, [1], None])
def test_connections(value):
    assert refused(lanes_for, 1, value).field == "connections"
    if value is not None:
        assert refused(Upload.of, ONE, {"connections": value}).field == "connections"


def test_connections_of_any_type():
    assert [lanes_for(1, asked) for asked in (0, 3, 3.0, np.int8(3))] == [1, 3, 3, 3]


@pytest.mark.parametrize("lease", ["5", b"5", [1], True, TWO, math.nan, math.inf, 1e308, 9.3e9, -1, -1e-12, HUGE], ids=type_name)
def test_bad_leases(lease):
    for call in (
        lambda: keep_message({"lease": lease}),
        lambda: keep_alive_request(REF, lease, None),
        lambda: Upload.of(ONE, {"lease": lease}),
    ):
        error = refused(call)
        assert (error.field, error.want) == ("lease", "seconds from 0 (the server's own) to 9000000000")


@pytest.mark.parametrize(
    "lease, ns",
    [(None, 0), (0, 0), (0.0, 0), (1e-10, 1), (1.5, 1_500_000_000), (np.int64(2), 2_000_000_000), (9e9, 9 * 10**18)],
)
def test_leases(lease, ns):
    assert keep_message({"lease": lease}).lease_ns == ns
    assert keep_alive_request(REF, lease, None).lease_ns == ns


def test_how_a_tensor_is_kept():
    for field, value in (("name", 1), ("pinned", "no")):
        assert refused(keep_message, {field: value}).field == field
    assert refused(Upload.of, ONE, {"device": 1}).field == "device"
    assert keep_message({"name": None, "pinned": None}) == tensors_pb2.NewTensor()


@pytest.mark.parametrize(
    "field, values, want",
    [
        ("alpha", [10**400, HUGE, "5", TWO, None, True, 1j], "a number"),
        ("beta", [10**400, "5", TWO, True], "a number"),
        ("kernel", [1, None], "text"),
        ("device", [1, None], "text"),
        ("request_id", [1, None], "text"),
        ("fast_accumulation", [None, "no"], "True or False"),
        ("deterministic", [None, "no"], "True or False"),
        ("batch_invariant", [None, "no"], "True or False"),
        ("out", [1.0, [[1.0]]], "an array"),
        ("verify", ["sometimes", "unspecified"], "one of checksum, duplicate, none, sampled"),
        ("priority", ["high", "unspecified"], "one of low, normal"),
    ],
)
def test_options_of_products(field, values, want):
    for value in values:
        for c in ({}, {"c": ONE}):
            error = refused(build_request, ONE, ONE, c | {field: value})
            assert (error.field, error.want) == (field, want)


def test_numbers_of_products():
    for two in (2, np.float16(2), np.array(2), ml_dtypes.bfloat16(2), fractions.Fraction(2)):
        message = build_request(ONE, ONE, {"alpha": two, "beta": two, "c": ONE}).message
        assert (message.alpha, message.beta) == (2, 2)
    message = build_request(ONE, ONE, {"deterministic": np.bool_(True), "beta": None, "c": ONE}).message
    assert message.require_deterministic and message.beta == 1


@pytest.mark.parametrize(
    "scale", ["2", True, [True], 1e39, [1, -1e39], 1e-50, HUGE, 10**40, [[1], [1, 2]]], ids=type_name
)
def test_scales(scale):
    """Values that float32 would turn into infinity or 0 are refused as well."""
    for field in ("a_scale", "b_scale"):
        assert refused(build_request, S8, S8, {field: scale}).field == field
    assert refused(Upload.of, S8, {"scale": scale}).field == "scale"


@pytest.mark.parametrize("scale", [0, 0.0, 2**64, math.inf, 1e-45, np.float16(2), ml_dtypes.bfloat16(2), [1, 2]])
def test_scales_that_float32_has(scale):
    message = build_request(S8, S8, {"a_scale": scale}).lent["a"][0]
    assert list(message.scale.values) == np.float32(scale).reshape(-1).tolist()


@pytest.mark.parametrize("block", [(1.5, 8), (1, 2**63), (1,), (1, 8, 8), 5, (True, 8), ("1", 8), (0, 8), (1, -1)])
def test_blocks(block):
    assert refused(gemmd.quantize, ONE, "e4m3", block=block).field == "block"
    if isinstance(block, tuple) and len(block) == 2:
        scale = gemmd.BlockScale(ONE, rows=block[0], k=block[1])
        assert refused(build_request, S8, S8, {"a_scale": scale}).field in ("scale.rows", "scale.k")


def test_blocks_of_any_numeric_type():
    scale = gemmd.quantize(ONE, "e4m3", block=(np.int64(1), 8.0)).scale
    assert (type(scale.rows), scale.rows, type(scale.k), scale.k) == (int, 1, int, 8)


@pytest.mark.parametrize("kind", [gemmd.Client, gemmd.aio.Client])
def test_pinned_only_where_the_server_says_so(daemon, kind):
    """As before, a tensor whose renewal failed is deleted with its last reference."""

    async def awaited(result):
        return await result if asyncio.iscoroutine(result) else result

    async def main():
        client = kind(daemon.tcp)
        tensor = await awaited(client.put(ONE))
        with pytest.raises(gemmd.InvalidArgument, match="lease: got -1"):
            await awaited(tensor.keep_alive(pinned=True, lease=-1))
        assert tensor._finalizer.alive
        await awaited(tensor.keep_alive(pinned=True))
        assert not tensor._finalizer.alive
        await awaited(tensor.delete())
        again = await awaited(client.put(ONE))
        await awaited(client._call(methods.DELETE, again.ref, None))
        with pytest.raises(gemmd.NotFound):
            await awaited(again.keep_alive(pinned=True))
        assert again._finalizer.alive
        await awaited(client.close())

    asyncio.run(main())


def test_leases_of_calls(client):
    tensor = client.put(ONE)
    for call in (
        lambda: client.put(ONE, lease="5"),
        lambda: client.chain(ONE, ONE, lease="5"),
        lambda: client.compress(tensor, lease="5"),
        lambda: tensor.keep_alive(lease="5"),
    ):
        assert refused(call).field == "lease"


def test_matrices_beyond_a_batch(client):
    batch = client.put(np.ones((3, 1, 1), np.float32))
    for index in (3, -4):
        with pytest.raises(gemmd.OutOfRange) as raised:
            batch[index]
        assert (raised.value.field, raised.value.got) == ("index of matrices", str(index))
    assert len(list(batch)) == 3  # Iteration ends with an IndexError.


VIEW = OwnedTensor(None, resident_pb2.TensorInfo(handle=b"x", spec=resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F32, rows=1, columns=1)))
EIGHT = gemmd.quantize(ONE, "e4m3")


@pytest.mark.parametrize(
    "call, options, ignored, beside",
    [
        *[
            (chain_request, {"into": VIEW} | option, *option, "into")
            for option in ({"name": "d"}, {"pinned": False}, {"lease": 0}, {"order": "C"})
        ],
        (chain_request, {"out": ONE}, "out", "a D that stays on the server"),
        (chain_request, {"writable": True}, "writable", "a D that stays on the server"),
        (build_request, {"out": ONE.copy(), "order": "F"}, "order", "out"),
        (build_request, {"out": ONE.copy(), "writable": False}, "writable", "out"),
    ],
)
def test_options_without_effect(call, options, ignored, beside):
    error = refused(call, ONE, ONE, options)
    assert (error.field, error.want) == (f"{ignored} beside {beside}", f"no {ignored}: it has no effect there")
    rest = {name: value for name, value in options.items() if name != ignored}
    assert call(ONE, ONE, rest)


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda: build_request(EIGHT, ONE, {"a_scale": 2}), "a_scale beside a, which has factors"),
        (lambda: build_request(ONE, EIGHT, {"b_type": "e4m3"}), "b_type beside b, which has a type"),
        (lambda: build_request(VIEW, ONE, {"a_type": "tf32"}), "a_type beside a, which has a type"),
        (lambda: build_request(gemmd.pack24(ONE), ONE, {"a_type": "tf32"}), "a_type beside a, which has a type"),
        (lambda: Upload.of(EIGHT, {"scale": 2}), "scale beside an array that has factors"),
        (lambda: Upload.of(gemmd.pack24(ONE), {"element_type": "tf32"}), "element_type beside what pack24 has made"),
        (lambda: Upload.of(gemmd.pack24(ONE), {"sparse": False}), "sparse beside what pack24 has made"),
        (lambda: gemmd.quantize(ONE, "e4m3", block=(1, 8), per="row"), "per beside block"),
        (lambda: gemmd.quantize(ONE, "e4m3", factors="ue8m0"), "factors beside no block"),
        (lambda: gemmd.quantize(ONE, "e4m3", k_axis=0), "k_axis beside no block"),
        (lambda: Settings("unix:/x", use_proxy=True), "use_proxy beside address unix:/x"),
    ],
)
def test_arguments_without_effect(call, field):
    assert refused(call).field == field


@pytest.mark.parametrize("value", ["\ud800", "a\0b", b"a", 1])
def test_text_that_no_message_can_have(value):
    for field in ("kernel", "device", "request_id"):
        assert refused(build_request, ONE, ONE, {field: value}).field == field
    assert refused(keep_message, {"name": value}).field == "name"
    assert refused(Upload.of, ONE, {"device": value}).field == "device"
    for field in ("activation", "bit_operation", "priority", "verify", "out_type", "accumulation_type", "order", "a_type"):
        assert refused(build_request, ONE, ONE, {field: value}).field.removesuffix(".dtype") == field
    if value != b"a":  # That is a valid handle.
        assert refused(tensor_ref, value).field == "tensor"
    for field in ("type", "per", "factors"):
        arguments = {"type": "e4m3", "block": (1, 8)} | {field: value}
        assert refused(gemmd.quantize, ONE, **arguments).field.removesuffix(".dtype").split()[0] == field
    scale = gemmd.BlockScale(ONE, type=value)
    assert refused(build_request, S8, S8, {"a_scale": scale}).field == "scale.type"
    for kind in (gemmd.Client, gemmd.aio.Client):
        for field in ("address", "tls_server_name", "token", "session", "tls_ca"):
            error = refused(kind, **({"address": "tls:h:1"} | {field: value}))
            assert error.field == field
            assert field not in ("token", "session") or repr(value) not in str(error)
        assert refused(kind, "h:1", channel_options=[("a", 1), (value, 1)]).field == "channel_options[1]"
        with pytest.raises((gemmd.InvalidArgument, TypeError), match="pattern"):
            client = kind("127.0.0.1:1", timeout=1)
            client._open_session = lambda _: opened(kind)
            result = client.tensors(value)
            if asyncio.iscoroutine(result):
                asyncio.run(result)


def opened(kind):
    """The first calls of a client, without a server."""
    if kind is gemmd.aio.Client:
        return asyncio.sleep(0)


@pytest.mark.parametrize(
    "metadata, field",
    [
        (1, "metadata"),
        ("a.secret", "metadata[0]"),
        ({"ab": "a.secret"}, "metadata[0]"),
        ([("a", "1"), ("b", "a.secret", "")], "metadata[1]"),
        ([("a", "1"), (1, "2")], "metadata[1]"),
        ([("a", "1"), ("\ud800", "2")], "metadata[1]"),
        ([("A", "1")], "metadata[0]"),
        ([("", "1")], "metadata[0]"),
        ([("a", "a.secret\ud800")], "metadata[0]"),
        ([("a", "a.secret\n")], "metadata[0]"),
        ([("a", "a.secret\0")], "metadata[0]"),
        ([("a", b"a.secret")], "metadata[0]"),
        ([("a-bin", "a.secret")], "metadata[0]"),
        ([("a", 1)], "metadata[0]"),
    ],
)
def test_metadata(metadata, field):
    for kind in (gemmd.Client, gemmd.aio.Client):
        error = refused(kind, "h:1", metadata=metadata)
        assert error.field == field and "a.secret" not in str(error)
    with gemmd.Client("127.0.0.1:1") as client:
        assert refused(client.matmul, ONE, ONE, metadata=metadata).field == field
    given = (("a", "1 x"), ("b-bin", b"\0\xff"))
    assert Settings("h:1", metadata=given).call_metadata == list(given)


@pytest.mark.parametrize("field", ["sparse", "sha256"])
def test_flags_of_uploads(field):
    for value in ("no", 0, []):
        assert refused(Upload.of, ONE, {field: value}).field == field


@pytest.mark.parametrize(
    "dtype, bad, good",
    [(np.int32, "f32", "s8"), (bool, "f64", "b1"), (np.int8, "bf16", "s32"), (ml_dtypes.bfloat16, None, "f32"), (np.float64, None, "bf16")],
)
def test_arrays_that_do_not_take_d(dtype, bad, good):
    """Before it is computed."""
    out = np.ones((1, 1), dtype)
    assert bad is None or refused(build_request, ONE, ONE, {"out": out, "out_type": bad}).field == "out.dtype"
    for fitting in (good, dtype):
        assert build_request(ONE, ONE, {"out": out, "out_type": fitting})


@pytest.mark.parametrize("index", [True, np.True_, "0", 0.0, None, np.array([0, 1]), [0]])
def test_matrices_that_are_no_number(index):
    spec = resident_pb2.TensorSpec(type=tensors_pb2.ELEMENT_TYPE_F32, rows=1, columns=1, matrices=3)
    part = OwnedTensor(None, resident_pb2.TensorInfo(handle=b"x", spec=spec))._part
    assert refused(lambda: part[index]).field == "index of matrices"
    assert part[np.int8(1), ...].matrices.first == part[..., :, :].matrices.first + 1


def queued(queue, *requests):
    futures = [concurrent.futures.Future() for _ in requests]
    for request, future in zip(requests, futures, strict=True):
        queue.add(request, future)
    return futures


def test_messages_of_several_products_are_no_longer_than_the_limit():
    """gRPC would end the whole stream."""
    for most in (200, 1000, 10**9):
        queue = joint.Queue(most)
        queued(queue, *(build_request(np.ones((1, k), np.float32), np.ones((k, 1), np.float32), {}) for k in range(16)))
        sizes = []
        while taken := queue.take():
            sizes.append((len(taken), len(joint.serialize_joint(taken))))
        assert sum(count for count, _ in sizes) == 16
        assert all(count == 1 or size <= most for count, size in sizes)
    assert len(sizes) == 1  # And at the maximum length.


def test_an_answer_that_cannot_be_read_is_that_of_its_product_alone():
    queue = joint.Queue(1 << 20)
    first, second = queued(queue, build_request(ONE, ONE, {}), build_request(ONE, ONE, {}))
    answer = gemm_pb2.MultiplyResponse(d=tensors_pb2.Matrix(rows=1, columns=1, batch=1, type=99, data=b"1234"))
    queue.answer("7", gemmd.Unavailable("nobody asked"))
    queue.answer("0", Answer.parse(answer.SerializeToString()))
    assert isinstance(first.exception(0), Exception)
    answer.d.type, answer.d.order = tensors_pb2.ELEMENT_TYPE_F32, tensors_pb2.ORDER_ROW_MAJOR
    queue.answer("1", Answer.parse(answer.SerializeToString()))
    assert second.result(0).array.shape == (1, 1)


RAGGED = [[1], [1, 2]]


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda: build_request(RAGGED, ONE, {}), "a"),
        (lambda: build_request(ONE, RAGGED, {}), "b"),
        (lambda: build_request(ONE, ONE, {"c": RAGGED}), "c"),
        (lambda: build_request(ONE, ONE, {"bias": RAGGED}), "bias"),
        (lambda: Upload.of(RAGGED, {}), "array"),
        (lambda: gemmd.pack24(RAGGED), "dense"),
        *[
            (lambda values=values, options=options: gemmd.quantize(values, "e4m3", **options), "values")
            for values in (RAGGED, "a", [["1"]], [[1j]], [[None]], [[HUGE]])
            for options in ({}, {"block": (1, 1)})
        ],
        (lambda: gemmd.quantize(ONE, "e4m3", per=["row"]), "per"),
        (lambda: gemmd.quantize(ONE, "e4m3", block=(1, 1), k_axis=True), "k_axis"),
        (lambda: VIEW["a":], "slice of rows"),
        (lambda: VIEW[:, ::0], "slice of columns"),
    ],
)
def test_what_is_no_array(call, field):
    assert refused(call).field == field
