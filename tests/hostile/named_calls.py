# SPDX-License-Identifier: Apache-2.0
"""Calls that take a name or a pattern."""

import grpc
import numpy as np
import pytest
from gemmd.v1 import instructions_pb2, registry_pb2
from product import Product

DEADLINE_S = 60
LONGEST_NAME = 128
# What the questions of one peer may hold: QuestionBytes'.
QUESTIONS_OF_PEER = 32 << 20


def refusal(call, request):
    """The code and the text of an error."""
    with pytest.raises(grpc.RpcError) as raised:
        call(request, timeout=DEADLINE_S)
    return raised.value.code(), raised.value.details()


def small_product(**fields):
    request = Product(a=np.ones((1, 2, 2)), b=np.ones((1, 2, 2))).request()
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def listings(registry, pattern):
    """Each method that lists by a pattern, and its request."""
    return [
        (registry.ListKernels, registry_pb2.ListKernelsRequest(name_pattern=pattern)),
        (registry.ListInstructions, instructions_pb2.ListInstructionsRequest(name_pattern=pattern)),
    ]


def named(registry, gemm, name):
    """Each call that takes a name, with the name of the field."""
    fragment = instructions_pb2.DescribeFragmentRequest(instruction=name, operand=1)
    instructions = instructions_pb2.ListInstructionsRequest(chip=name)
    yield "instruction", registry.DescribeFragment, fragment
    yield "chip", registry.ListInstructions, instructions
    for field in ("kernel", "device", "request_id"):
        product = small_product(**{field: name})
        yield field, gemm.Multiply, product
        yield field, registry.Explain, registry_pb2.ExplainRequest(request=product)
