# SPDX-License-Identifier: Apache-2.0
"""Tokens that were signed once with an Ed25519 key that no longer exists: they are valid only for
the servers of the tests, which have its public part. The good one has the subject alice, the
audience gemmd and the issuer https://issuer.test, and expires in the year 2286. Also tokens that a
test signs itself."""

import base64
import json
import time

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

KEY_X = "b7VkXG1PU_YtIQkYkhI5Tw_be9B9ReBoDdZ7IZdg0ec"
SIGNED = {
    "good": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImdlbW1kIiwiaXNzIjoi"
        "aHR0cHM6Ly9pc3N1ZXIudGVzdCIsImV4cCI6OTk5OTk5OTk5OX0.JiVtCJANonn3lMmqFED6wj63a_RhR_r8"
        "KvtjsMN4h-Zs2SvG_BZnikOQAjFwF8Li8u-1XOWUpQknAXBbHw1DBA"
    ),
    "no key's id": (
        "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImdlbW1kIiwiaXNzIjoiaHR0cHM6Ly9pc3N"
        "1ZXIudGVzdCIsImV4cCI6OTk5OTk5OTk5OX0.xQl6T3uu90bW3Ti1BrNCrLu_RgDkU4FtC5_cjd0WETRnzkx"
        "UufaSL3XBranedUr2OAl-TQckwyRWsFFVNWftDg"
    ),
    "another key's id": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsyIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImdlbW1kIiwiaXNzIjoi"
        "aHR0cHM6Ly9pc3N1ZXIudGVzdCIsImV4cCI6OTk5OTk5OTk5OX0.RQkJYF1A2NGDgTtb_l567A2MYAexR9fi"
        "s7XCMuyzH48qwillyzEg6d9xEgDd50wuIw62dUZ5oP7HaBQITBVXCw"
    ),
    "another audience": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6Im90aGVyIiwiaXNzIjoi"
        "aHR0cHM6Ly9pc3N1ZXIudGVzdCIsImV4cCI6OTk5OTk5OTk5OX0.Rsg5ULA8PdAKjyY85CRfMA-_pD6uonkd"
        "lYgI8GG84FtZmaUwzguNrZYy6oAKrYr6dGh7fFvqkKO-y9cZBMOvCw"
    ),
    "no audience": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbGljZSIsImlzcyI6Imh0dHBzOi8vaXNzdWVy"
        "LnRlc3QiLCJleHAiOjk5OTk5OTk5OTl9.N2l2LROTYNisZw_y7AMogo5nRfFeToh3-01MQX2NHvzOCfLivMw"
        "ZKsWeh9EOom61t2mITHJMvcZ-8Q3QzPTdDQ"
    ),
    "another issuer": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImdlbW1kIiwiaXNzIjoi"
        "aHR0cHM6Ly9vdGhlci50ZXN0IiwiZXhwIjo5OTk5OTk5OTk5fQ.MPweAH-psjJNRVXcp90_2CAs7B-P4kOp0"
        "x-xCfxyaN4QkEh7-WNYlwu8rzbB3CjtXH0VWlb-4cnvhOMprPMnDA"
    ),
    "expired": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImdlbW1kIiwiaXNzIjoi"
        "aHR0cHM6Ly9pc3N1ZXIudGVzdCIsImV4cCI6MTcwMDAwMDAwMH0.WN2vR3ehU2WcNWjPJWR2cnaoKkhuxkgc"
        "EesoYat383NcAg-PioVsQqPoMHMfVG2PqINmsXTgSlH1M0koPAHUBg"
    ),
    "no expiry": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImdlbW1kIiwiaXNzIjoi"
        "aHR0cHM6Ly9pc3N1ZXIudGVzdCJ9.4CL0RiE63cDw1PY5prBuJaMsMAvjKQJDSpzi_OBsBEdyDjZWyUWPc3m"
        "Xrq9nDqWpHN_Ttq1Hm7o_H6DyJYfbCw"
    ),
    "not good yet": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImdlbW1kIiwiaXNzIjoi"
        "aHR0cHM6Ly9pc3N1ZXIudGVzdCIsImV4cCI6OTk5OTk5OTk5OSwibmJmIjo5OTk5OTk5OTk4fQ.mVZIUSTsO"
        "soF1a0mrH1ucuxTN0rq9cPK6vk21iilkbZvjHljp8sDZX5dCQBG_ZdbxjlmRSLVn35GolvNyQx6CQ"
    ),
    "a user's name": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJ1aWQ6MCIsImF1ZCI6ImdlbW1kIiwiaXNzIjoi"
        "aHR0cHM6Ly9pc3N1ZXIudGVzdCIsImV4cCI6OTk5OTk5OTk5OX0.55Exu71nOEisRYXPMRLDb5R3Bc4DEgoK"
        "5PENJsx6Ipax9leBg5hH26BXkCRS-ay70_UbJ77wB-aHIfhP_yE6AA"
    ),
    "no subject": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJhdWQiOiJnZW1tZCIsImlzcyI6Imh0dHBzOi8vaXNzdWVy"
        "LnRlc3QiLCJleHAiOjk5OTk5OTk5OTl9.i0yArM-StjygUtkdbU-g4IEwQzLCn_MB52Dl-hCED4kMlkPjuRq"
        "tR63XF9RP0zcQ7gOXevvCHv4clPjuFgKnCA"
    ),
    "something critical": (
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIiwiY3JpdCI6WyJleHAiXX0.eyJzdWIiOiJhbGljZSIsImF1ZCI6"
        "ImdlbW1kIiwiaXNzIjoiaHR0cHM6Ly9pc3N1ZXIudGVzdCIsImV4cCI6OTk5OTk5OTk5OX0.StSavVj_8RLi"
        "eWxNz_cmj2RgGFau35fCF0ioEqetNrjCD5ywuR8RtNdIQ1v9Kt8LKaZ_od0q1yCfbXuLUUeqAg"
    ),
    "another algorithm": (
        "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImdlbW1kIiwiaXNzIjoi"
        "aHR0cHM6Ly9pc3N1ZXIudGVzdCIsImV4cCI6OTk5OTk5OTk5OX0.20aOq76MGUnSed00UrZqJ_nOS7HevvA_"
        "PYVLy6Wi9mqTbt3yKTZ-0xCzhRnPAVaB9XnMxkEmAjGPb4wI_xtAAg"
    ),
}


def _encoded(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Signer:
    """An issuer for tests, with its own key."""

    def __init__(self, name):
        self.name = name
        self._key = ed25519.Ed25519PrivateKey.generate()

    def public(self):
        """The key as a member of a JWKS."""
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        x = self._key.public_key().public_bytes(*raw)
        return {"kty": "OKP", "crv": "Ed25519", "kid": self.name, "x": _encoded(x)}

    def token(self, **claims):
        """A token for alice that expires in an hour, unless the claims say otherwise."""
        held = {"sub": "alice", "aud": "gemmd", "exp": time.time() + 3600} | claims
        held |= {name: int(held[name]) for name in ("exp", "nbf") if name in held}
        text = _encoded({"alg": "EdDSA", "kid": self.name}) + "." + _encoded(held)
        return f"{text}.{_encoded(self._key.sign(text.encode()))}"
