# SPDX-License-Identifier: Apache-2.0
"""Callers with names: files of rules and tokens, and calls of the callers in them."""

import hashlib
import json

import grpc
import numpy as np
from gemmd.v1 import gemm_pb2, gemm_pb2_grpc, tensors_pb2
from signed_tokens import KEY_X
from tensors import DEADLINE_S

PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

EVERYTHING = ["multiply", "tensors", "statistics", "registry", "reflection", "administer"]
POISON = "poison-d41d8cd98f00b204"  # The prefix of each static token; no log may contain it.


def token_of(name):
    return f"{POISON}-{name}"


class Trust:
    """The files of a daemon's rules."""

    def __init__(self, folder):
        self.rules_file = folder / "rules.json"
        self.tokens_file = folder / "tokens"
        self.keys_file = folder / "keys.json"
        key = {"kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": KEY_X}
        self.keys_file.write_text(json.dumps({"keys": [key]}))
        self.flags = [
            "--lame-duck=1ms",
            f"--rules={self.rules_file}",
            f"--tokens={self.tokens_file}",
            f"--jwt-keys={self.keys_file}",
            "--jwt-audience=gemmd",
            "--jwt-issuer=https://issuer.test",
        ]

    def write(self, rules, tokens=None):
        self.rules_file.write_text(json.dumps({"identities": rules}))
        names = rules if tokens is None else tokens
        self.tokens_file.write_text(
            "".join(
                f"{name}: {hashlib.sha256(token_of(name).encode()).hexdigest()}\n"
                for name in names
                if not name.startswith("uid:") and name != "anonymous"
            )
        )


def bearer(name):
    return [("authorization", f"Bearer {token_of(name)}")]


def product(size=4, device=""):
    values = np.ones((size, size), np.float32).tobytes()
    operand = tensors_pb2.Operand(type=tensors_pb2.ELEMENT_TYPE_F32, data=values)
    return gemm_pb2.MultiplyRequest(
        m=size, n=size, k=size, a=operand, b=operand, device=device
    )


def multiply(channel, metadata, **keywords):
    stub = gemm_pb2_grpc.GemmStub(channel)
    return stub.Multiply(product(**keywords), metadata=metadata, timeout=DEADLINE_S)


def call(channel, path, metadata):
    """Sends an empty message to any method. Returns the status code and the text."""
    stub = channel.stream_stream(path, lambda data: data, lambda data: data)
    answers = stub(iter([b""]), metadata=metadata, timeout=DEADLINE_S)
    is_answered = False
    try:
        for _ in answers:
            is_answered = True
            answers.cancel()
    except grpc.RpcError as error:
        # A call that was answered and then cancelled by this client has succeeded.
        if not is_answered:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""
