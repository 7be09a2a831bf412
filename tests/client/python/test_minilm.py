# SPDX-License-Identifier: Apache-2.0
"""A model with its trained weights. `tests/run.sh torch` runs this."""

import minilm
import pytest

GEMMD_FLAGS = ["--devices=cpu,sim:sm_90"]
# About three times as far from 1 as the smallest cosines of the eight sentences were. A layer whose
# weights are all a tenth too large gives 0.9989, one whose weights are transposed 0.70.
LEAST = {
    "f64": 1 - 1e-6,
    "f32": 1 - 1e-6,
    "tf32": 1 - 1.5e-5,
    "f16": 1 - 1e-6,
    "bf16": 1 - 6e-5,
    minilm.SPARSE: 1 - 3e-5,
    "e4m3": 0.991,
    "e5m2": 0.969,
    "s8": 0.991,
}


@pytest.fixture(scope="module")
def model():
    return minilm.MiniLm(minilm.model_folder())


def test_it_is_the_model(model):
    """Sentences with the same meaning are neighbours in the list, and each is nearest to the
    other."""
    vectors = model(minilm.SENTENCES)
    likeness = vectors @ vectors.T
    likeness.fill_diagonal_(-1)
    assert likeness.argmax(1).tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


def test_pruning_changes_the_model(model):
    """So a product of whole weights is none of the pruned ones."""
    vectors, pruned = model(minilm.SENTENCES), model.pruned()(minilm.SENTENCES)
    assert bool(((vectors * pruned).sum(-1) < LEAST[minilm.SPARSE] - 1e-3).all())


@pytest.mark.parametrize("device", ("cpu", "sim:sm_90"))
@pytest.mark.parametrize("type", minilm.TYPES)
def test_embeddings(client, model, type, device):
    found, products = minilm.cosines(client, model, type, device)
    assert products == minilm.PRODUCTS
    assert bool((found >= LEAST[type]).all()), found
