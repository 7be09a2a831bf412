# SPDX-License-Identifier: Apache-2.0
"""The examples of the READMEs run unchanged."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
READMES = ("README.md", "client/python/README.md")
EXAMPLES = [
    pytest.param(example, id=f"{readme}-{number}")
    for readme in READMES
    for number, example in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / readme).read_text(), re.DOTALL)
    )
]


def test_there_are_examples():
    assert len(EXAMPLES) >= len(READMES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(daemon, example):
    assert "127.0.0.1:8470" in example
    exec(compile(example.replace("127.0.0.1:8470", daemon.tcp), "README", "exec"), {})
