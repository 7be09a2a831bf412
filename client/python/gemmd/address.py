# SPDX-License-Identifier: Apache-2.0
"""Addresses of one server or several: HOST:PORT, unix:PATH and other gRPC schemes, with the prefix tls: or mtls: for
encrypted connections."""

from __future__ import annotations

import ipaddress

from gemmd.errors import refusal

TLS_PREFIXES = ("tls:", "mtls:")
# Schemes that may name several servers, which then take calls in turn.
_SEVERAL = ("dns:", "ipv4:", "ipv6:")
_LONGEST_PATH = 107  # sockaddr_un has 108 bytes, including the final zero.
_MAX_PORT_DIGITS = 5  # int() refuses thousands of digits with another error.
_WANT_ANY = "host:port (port 1 to 65535), tls:host:port or unix:/path"


def without_tls(address: str) -> str:
    """The address without tls: or mtls:, as gRPC expects it."""
    for prefix in TLS_PREFIXES:
        if address.startswith(prefix):
            return address.removeprefix(prefix)
    return address


def is_unix(address: str) -> bool:
    """Whether an address (without tls:) is a unix socket."""
    return address.startswith(("unix:", "unix-abstract:"))


def is_loopback(address: str) -> bool:
    """Whether an address (without tls:) is this machine, known without a resolver."""
    for scheme in _SEVERAL:
        address = address.removeprefix(scheme)
    host = address.removeprefix("///").rpartition(":")[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def may_name_several(address: str) -> bool:
    """Whether an address (without tls:) may name several servers."""
    return address.startswith(_SEVERAL)


def check_address(address: str) -> None:
    """Catches errors that gRPC would report only with the first call, and less clearly. Raises InvalidArgument, with
    the correct form if it can be guessed."""
    target = without_tls(address)
    is_graphic = all("!" <= c <= "~" for c in address)
    if not address or not is_graphic or without_tls(target) != target:
        want = _WANT_ANY
    else:
        want = _want_of(target)
    if want:
        raise refusal("address", repr(address), want)


# Each of the following functions returns what the address should look like, or "" if it is valid.


def _want_of(address: str) -> str:
    for scheme, rest_wants in _SCHEMES.items():
        if address.startswith(scheme):
            return rest_wants(address.removeprefix(scheme))
    scheme, is_url, rest = address.partition("://")
    if not is_url:
        return _want_of_host_and_port(address)
    # Accepts an address copied from a browser.
    rest = rest.partition("/")[0]
    if _want_of_host_and_port(rest):
        return _WANT_ANY
    return repr(("tls:" if scheme.endswith("s") else "") + rest)


def _want_of_host_and_port(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and len(port) <= _MAX_PORT_DIGITS and 0 < int(port) < 65536):
        return _WANT_ANY
    is_bracketed = host.startswith("[")
    name = host[1:-1] if is_bracketed and host.endswith("]") else host
    if not name or any(c in name for c in "/[]@\"\\"):
        return _WANT_ANY
    if ":" in name and not is_bracketed:
        return "[host]:port for an address of IPv6, as in '[::1]:8470'"
    return ""


def _want_of_unix(path: str) -> str:
    if path.startswith("//") and not path.startswith("///"):
        rest = path.removeprefix("//")
        return repr(f"unix:/{rest}") if rest else _WANT_ANY
    return _want_of_path(path.removeprefix("//"))


def _want_of_path(path: str) -> str:
    if not path:
        return "something after the scheme"
    if len(path) <= _LONGEST_PATH:
        return ""
    return f"a path of at most {_LONGEST_PATH} bytes, not {len(path)}"


def _want_of_dns(name: str) -> str:
    if name.startswith("//"):  # An optional name server follows.
        whole = name.removeprefix("//")
        _, is_whole, name = whole.partition("/")
        if not is_whole:
            return repr(f"dns:///{whole}")
    return "" if name else "something after the scheme"


def _want_of_list(addresses: str) -> str:
    if any(_want_of_host_and_port(one) for one in addresses.split(",")):
        return "addresses with ports, as in 'ipv4:10.0.0.1:8470,10.0.0.2:8470'"
    return ""


_SCHEMES = {
    "unix:": _want_of_unix,
    "unix-abstract:": _want_of_path,
    "dns:": _want_of_dns,
    "ipv4:": _want_of_list,
    "ipv6:": _want_of_list,
}
