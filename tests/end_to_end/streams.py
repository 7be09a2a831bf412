# SPDX-License-Identifier: Apache-2.0
"""Products of Gemm.MultiplyStream, however they are grouped into messages."""

import itertools

from gemmd.v1 import gemm_pb2


def joint(requests, size=1):
    """Messages of `size` products each; the last one may have fewer."""
    requests = iter(requests)
    while together := list(itertools.islice(requests, size)):
        yield gemm_pb2.MultiplyStreamRequest(requests=together)


def answers_in(messages):
    """The answers one by one, as they arrive."""
    for message in messages:
        yield from message.answers
