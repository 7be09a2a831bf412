# SPDX-License-Identifier: Apache-2.0
"""What connections are encrypted with, and whether a token may pass them."""

from __future__ import annotations

import pathlib

import grpc

from gemmd.address import TLS_PREFIXES, is_loopback, is_unix, without_tls
from gemmd.errors import refusal

_MOST_TOKEN_CHARACTERS = 8192


def has_tls(address: str, *options: str) -> bool:
    """Whether the prefix of the address or any option of TLS turns it on."""
    return address.startswith(TLS_PREFIXES) or any(options)


def make_credentials(address: str, ca: str, cert: str, key: str) -> grpc.ChannelCredentials:
    """Reads the files. Raises InvalidArgument, which shows neither key nor token."""
    if is_unix(without_tls(address)):
        raise refusal("address", repr(address), "host:port, since TLS is not spoken over unix sockets")
    own = [None, None]
    if address.startswith("mtls:") or cert or key:
        own = [_read("tls_key", key, b"PRIVATE KEY"), _read("tls_cert", cert, b"CERTIFICATE")]
    return grpc.ssl_channel_credentials(_read("tls_ca", ca, b"CERTIFICATE") if ca else None, *own)


def check_token(token: str, address: str, is_encrypted: bool, uses_proxy: bool) -> None:
    """Raises InvalidArgument where the token is none, or where others could read it."""
    is_good = len(token) <= _MOST_TOKEN_CHARACTERS and all("!" <= c <= "~" for c in token)
    if not is_good:
        want = f"at most {_MOST_TOKEN_CHARACTERS} printable ones of ASCII without spaces"
        raise refusal("token", f"{len(token)} characters", want)
    if not token or is_encrypted or is_unix(address):
        return
    if uses_proxy:
        want = "tls: before it, so that the proxy does not read the token"
        raise refusal("address", repr(address), want)
    if not is_loopback(address):
        want = "tls: before it, or one of loopback, so that nobody else reads the token"
        raise refusal("address", repr(address), want)


def _read(option: str, path: str, mark: bytes) -> bytes:
    want = f"a file of PEM with a {mark.decode()}"
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError:
        raise refusal(option, repr(path), want) from None
    if mark not in data:
        raise refusal(option, repr(path), want)
    return data
