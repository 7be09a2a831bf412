# SPDX-License-Identifier: Apache-2.0
"""PyTorch models whose products run on a daemon. `tests/run.sh torch` runs this in an environment
that has PyTorch."""

import gemmd
import gemmd.torch
import numpy as np
import pytest
import torch

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90,sim:sm_80"]


def integers(*shape, dtype=torch.float32):
    return torch.randint(-3, 4, shape).to(dtype)


class Attention(torch.nn.Module):
    """One layer of a model in small integers, all of whose products are exact."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 8, bias=False)
        self.mix = torch.nn.Parameter(integers(8, 4))
        for parameter in self.parameters():
            parameter.data = integers(*parameter.shape)

    def forward(self, x):
        q, k, v = self.qkv(x).clamp(-3, 3).chunk(3, dim=-1)
        scores = (q @ k.transpose(-1, -2)).clamp(-3, 3)
        mixed = torch.matmul(scores, v).clamp(-3, 3)
        return torch.addmm(self.mix[0], self.out(mixed).clamp(-3, 3).reshape(-1, 8), self.mix)


@pytest.fixture(autouse=True)
def seeded(seed):
    torch.manual_seed(seed)


def test_a_model(client):
    model, x = Attention(), integers(2, 5, 16)
    want = model(x).detach()
    before = client.statistics().tensors.uploads_complete
    with gemmd.torch.offload(client) as offload:
        for _ in range(3):
            got = model(x)
            assert torch.equal(got, want) and not got.requires_grad
    assert offload.products == 3 * 5
    # qkv, out and mix were uploaded once.
    assert client.statistics().tensors.uploads_complete == before + 3
    assert torch.equal(model(x), want)
    assert offload.products == 3 * 5


def test_weights_that_change(client):
    layer, x = torch.nn.Linear(8, 4), integers(3, 8)
    with gemmd.torch.offload(client), torch.no_grad():
        layer.weight.copy_(integers(4, 8))
        layer.bias.zero_()
        first = layer(x)
        layer.weight.add_(1)
        assert torch.equal(layer(x), first + x.sum(dim=1, keepdim=True))
        layer.weight.data = integers(4, 8)
        assert np.array_equal(layer(x).numpy(), x.numpy() @ layer.weight.numpy().T)


@pytest.mark.parametrize("type", [None, "s8"])
def test_weights_whose_leases_end(client, type):
    """They are uploaded again, once. No other missing tensor is a reason for that."""
    model, x = Attention(), integers(2, 5, 16)
    with gemmd.torch.offload(client, type=type) as offload:
        want = model(x)
        before, weights = client.statistics().tensors.uploads_complete, client.tensors()
        assert len(weights) == (2 if type == "s8" else 3)
        for tensor in weights:
            tensor.delete()
        for _ in range(2):
            assert torch.equal(model(x), want)
        assert client.statistics().tensors.uploads_complete == before + len(weights)
    assert offload.products == 3 * 5
    with gemmd.torch.offload(client, kernel="no.such"), pytest.raises(gemmd.NotFound):
        model(x)
    assert client.statistics().tensors.uploads_complete == before + len(weights) + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_types(client, dtype):
    a, b = integers(4, 6, dtype=dtype), integers(6, 5, dtype=dtype)
    want = a @ b
    with gemmd.torch.offload(client) as offload:
        for got in (a @ b, torch.mm(a, b), a.mm(b), torch.matmul(a[0], b)[None], a.matmul(b)):
            assert got.dtype == dtype
            assert torch.equal(got, want[: len(got)])
        assert torch.equal(torch.bmm(a[None], b[None])[0], want)
        vector = torch.matmul(a, b[:, 0])
        assert torch.equal(vector, want[:, 0])
    assert offload.products == 7


def test_products_of_a_chip(client):
    """As on an H100: each product has the bits of the simulated chip."""
    a, b = torch.randn(9, 40), torch.randn(40, 7)
    options = {"device": "sim:sm_90", "deterministic": True}
    with gemmd.torch.offload(client, type="bf16", **options):
        got = a @ b
    arrays = [gemmd.torch.to_array(each.to(torch.bfloat16)) for each in (a, b)]
    want = client.multiply(*arrays, out_type="f32", **options)
    assert want.device == "sim:sm_90"
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy(), want.array)


@pytest.mark.parametrize("name, relative", [("e4m3", 1 / 7), ("e5m2", 1 / 3), ("s8", 1 / 30)])
def test_eight_bits(client, name, relative):
    layer, x = torch.nn.Linear(64, 16), torch.randn(2, 5, 64)
    want = layer(x).detach()
    with gemmd.torch.offload(client, type=name) as offload:
        got = layer(x)
    assert offload.products == 1
    # Each rounding is off by a fraction of the largest magnitudes of its row.
    bound = relative * (x.abs().amax(-1, keepdim=True) * layer.weight.abs().sum(1)).detach()
    assert got.shape == want.shape and bool(((got - want).abs() <= bound).all())
    assert not torch.equal(got, want)


@pytest.mark.parametrize("name", ["e4m3", "s8", "tf32"])
def test_whole_models_on_a_chip_without_f32(client, name):
    """Products between two activations get another type. sm_80 does not multiply f32."""
    model, x = Attention(), integers(2, 5, 16)
    other = None if name == "tf32" else "tf32"
    with gemmd.torch.offload(client, type=name, matmul_type=other, device="sim:sm_90") as offload:
        got = model(x)
    assert offload.products == 5
    if name == "tf32":
        assert torch.equal(got, model(x))  # Small integers are tf32's too.
    assert got.dtype == torch.float32 and got.shape == (10, 4)
    with gemmd.torch.offload(client, device="sim:sm_80"):
        with pytest.raises(gemmd.Unimplemented):
            model(x)


def pruned(weight, dtype):
    """The weight in 2:4 form, as a dense tensor: of magnitudes that are equal in the type the first is kept."""
    groups = weight.detach().to(dtype).unflatten(-1, (-1, 4))
    order = groups.float().abs().argsort(dim=-1, descending=True, stable=True)
    return groups.scatter(-1, order[..., 2:], 0).flatten(-2)


def test_sparse_weights_that_are_already(client):
    """A model whose weights lose nothing, in small integers: exact, and uploaded once."""
    model, x = Attention(), integers(2, 5, 16)
    for layer in (model.qkv, model.out):
        layer.weight.data = pruned(layer.weight, torch.float32)
    want = model(x).detach()
    before = client.statistics().tensors.uploads_complete
    with gemmd.torch.offload(client, type="bf16", sparse=True) as offload:
        for _ in range(2):
            assert torch.equal(model(x), want)
    assert offload.products == 2 * 5
    assert client.statistics().tensors.uploads_complete == before + 2


@pytest.mark.parametrize("device", ["cpu", "sim:sm_90"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sparse_weights_are_pruned(client, dtype, device):
    """The product is that of the pruned weights, whatever a weight is used for beside it."""
    layer, x = torch.nn.Linear(36, 24).to(dtype), integers(3, 5, 36, dtype=dtype)
    weight = pruned(layer.weight, dtype).double()
    want = x.double() @ weight.T + layer.bias.double()
    # Rounded once in f32 per element of a row, and once to the type.
    size = x.double().abs() @ weight.abs().T + layer.bias.double().abs()
    bound = size * 40 * 2.0**-24 + want.abs() * torch.finfo(dtype).eps
    with gemmd.torch.offload(client, sparse=True, device=device) as offload:
        got = layer(x)
        whole = layer.weight @ x[0].T
    assert offload.products == 2
    assert got.dtype == dtype and got.shape == want.shape
    assert bool(((got.double() - want).abs() <= bound.detach()).all())
    dense = layer.weight.double() @ x[0].T.double()
    most = layer.weight.double().abs() @ x[0].T.double().abs() * 40 * 2.0**-24 + dense.abs() * torch.finfo(dtype).eps
    assert bool(((whole.double() - dense).abs() <= most.detach()).all())


def test_f64_has_no_sparse_form(client):
    layer, x = torch.nn.Linear(8, 4).double(), integers(3, 8, dtype=torch.float64)
    with gemmd.torch.offload(client, sparse=True) as offload:
        got = layer(x)
    assert offload.products == 1
    assert bool(((got - layer(x)).abs() <= 1e-12).all())


def test_tf32_is_that_of_the_daemon(client):
    a, b = torch.randn(9, 40), torch.nn.Parameter(torch.randn(40, 7))
    options = {"device": "sim:sm_90", "deterministic": True}
    for weight in (b, b.detach()):  # One is uploaded once, the other is sent with each product.
        with gemmd.torch.offload(client, type="tf32", **options):
            got = a @ weight
        arrays = (a.numpy(), b.detach().numpy())
        want = client.matmul(*arrays, a_type="tf32", b_type="tf32", **options)
        assert np.array_equal(got.numpy(), want)
        assert not np.array_equal(want, arrays[0] @ arrays[1])


def test_what_stays_with_pytorch(client):
    whole = torch.ones(3, 3, dtype=torch.int64)
    with gemmd.torch.offload(client) as offload:
        assert torch.equal(whole @ whole, 3 * whole)
        assert (torch.zeros(0, 3) @ torch.zeros(3, 2)).shape == (0, 2)
        assert torch.addmm(torch.ones(2, 2), torch.ones(2, 3), torch.ones(3, 2), beta=2).sum() == 20
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64))
    assert offload.products == 0


def test_errors_are_told(client):
    with gemmd.torch.offload(client, kernel="no.such"), pytest.raises(gemmd.NotFound):
        torch.ones(2, 2) @ torch.ones(2, 2)
    for wrong in (
        {"type": "f8"},
        {"matmul_type": "bf16"},
        {"type": "s8", "matmul_type": "s8"},
        {"type": "s8", "sparse": True},
        {"sparse": 2},
    ):
        with pytest.raises(gemmd.InvalidArgument) as raised:
            gemmd.torch.offload(client, **wrong)
        assert raised.value.field == list(wrong)[-1]
    with pytest.raises(TypeError, match="did you mean device"):
        gemmd.torch.offload(client, devcie="cpu")
    # The context has ended.
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).sum() == 8


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32, torch.int8]
)
def test_arrays_and_tensors(dtype):
    tensor = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    array = gemmd.torch.to_array(tensor)
    assert array.astype(np.float32).tolist() == tensor.to(torch.float32).tolist()
    assert gemmd.torch.to_tensor(array).dtype == dtype
    assert gemmd.torch.to_tensor(array).tolist() == tensor.tolist()
