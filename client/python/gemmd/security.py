# SPDX-License-Identifier: Apache-2.0
"""TLS credentials of connections, and whether a token may be sent over them."""

from __future__ import annotations

import base64
import pathlib
import re
import ssl
import warnings

import grpc

from gemmd.address import TLS_PREFIXES, is_loopback, is_unix, without_tls
from gemmd.errors import refusal

_MAX_TOKEN_CHARACTERS = 8192
_WHOLE = "complete certificates in PEM"


def has_tls(address: str, *options: str) -> bool:
    """Whether the prefix of the address or any TLS option turns TLS on."""
    return address.startswith(TLS_PREFIXES) or any(options)


def make_credentials(address: str, ca: str, cert: str, key: str) -> grpc.ChannelCredentials:
    """Reads the files. Raises InvalidArgument, whose text contains neither key nor token."""
    if is_unix(without_tls(address)):
        raise refusal("address", repr(address), "host:port, since TLS is not spoken over unix sockets")
    own = [None, None]
    if address.startswith("mtls:") or cert or key:
        own = [_read("tls_key", key, b"PRIVATE KEY"), _read_chain(cert)]
    return grpc.ssl_channel_credentials(_read_authorities(ca) if ca else None, *own)


def check_token(token: str, address: str, is_encrypted: bool, uses_proxy: bool) -> None:
    """Raises InvalidArgument if the token is malformed, or if others could read it."""
    is_good = len(token) <= _MAX_TOKEN_CHARACTERS and all("!" <= c <= "~" for c in token)
    if not is_good:
        want = f"at most {_MAX_TOKEN_CHARACTERS} printable ASCII characters without spaces"
        raise refusal("token", f"{len(token)} characters", want)
    if not token or is_encrypted or is_unix(address):
        return
    if uses_proxy:
        want = "tls: before it, so that the proxy does not read the token"
        raise refusal("address", repr(address), want)
    if not is_loopback(address):
        want = "tls: before it, or one of loopback, so that nobody else reads the token"
        raise refusal("address", repr(address), want)


def _read_chain(path: str) -> bytes:
    data = _read("tls_cert", path, b"CERTIFICATE")
    if not all(_is_whole(block) for block in _certificates(data)):
        raise refusal("tls_cert", repr(path), _WHOLE)
    return data


def _read_authorities(path: str) -> bytes:
    """Skips malformed certificates with a warning: gRPC would silently stop reading at the first."""
    blocks = _certificates(_read("tls_ca", path, b"CERTIFICATE"))
    are_whole = [_is_whole(block) for block in blocks]
    if not any(are_whole):
        raise refusal("tls_ca", repr(path), _WHOLE)
    if not all(are_whole):
        broken = ", ".join(str(i) for i, is_whole in enumerate(are_whole, 1) if not is_whole)
        got = f"{path!r}, whose certificate {broken} is broken and left out"
        warnings.warn(f"tls_ca: got {got}, want {_WHOLE}", RuntimeWarning, stacklevel=2)
    return b"".join(block for block, is_whole in zip(blocks, are_whole, strict=True) if is_whole)


def _certificates(pem: bytes) -> list[bytes]:
    """The certificate blocks, each up to the next block, because a block may lack its end."""
    return re.findall(
        rb"-----BEGIN (?:\w+ )?CERTIFICATE-----.*?(?=-----BEGIN |\Z)", pem, re.DOTALL
    )


def _is_whole(block: bytes) -> bool:
    parts = re.match(rb"-----BEGIN (.*?)-----(.*?)-----END \1-----", block, re.DOTALL)
    if parts is None:
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        der = base64.b64decode(b"".join(parts[2].split()), validate=True)
        # In a TRUSTED CERTIFICATE, trust settings follow the certificate.
        context.load_verify_locations(cadata=der[: _length_of_der(der)])
    except (ValueError, ssl.SSLError):
        return False
    return True


def _length_of_der(der: bytes) -> int:
    """The size of the first DER value. Its length is one byte, or a byte with the number of length bytes that
    follow."""
    first = der[1] if len(der) > 1 else 0
    end = 2 + (first & 0x7F if first >= 0x80 else 0)
    return end + (int.from_bytes(der[2:end]) if end > 2 else first)


def _read(option: str, path: str, mark: bytes) -> bytes:
    want = f"a file of PEM with a {mark.decode()}"
    try:
        data = pathlib.Path(path).read_bytes()
    except (OSError, ValueError):  # ValueError for an invalid path, such as one with NUL.
        raise refusal(option, repr(path), want) from None
    if mark not in data:
        raise refusal(option, repr(path), want)
    return data
