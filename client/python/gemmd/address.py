# SPDX-License-Identifier: Apache-2.0
"""The address of a server, or of several: HOST:PORT, unix:PATH and gRPC's other schemes, with tls: or mtls: before it
where connections are encrypted."""

from __future__ import annotations

import ipaddress

from gemmd.errors import refusal

TLS_PREFIXES = ("tls:", "mtls:")
# Addresses that may stand for several servers, which calls then go round.
_SEVERAL = ("dns:", "ipv4:", "ipv6:")
_LONGEST_PATH = 107  # sockaddr_un has room for that, and a zero.
_MAX_PORT_DIGITS = 5  # int() refuses thousands of them with an error of its own.
_WANT_ANY = "host:port (port 1 to 65535), tls:host:port or unix:/path"


def without_tls(address: str) -> str:
    """The address that gRPC knows."""
    for prefix in TLS_PREFIXES:
        if address.startswith(prefix):
            return address.removeprefix(prefix)
    return address


def is_unix(address: str) -> bool:
    """Whether an address without tls: leads to a unix socket."""
    return address.startswith(("unix:", "unix-abstract:"))


def is_loopback(address: str) -> bool:
    """Whether an address without tls: leads to this machine whatever a resolver says."""
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
    """Whether an address without tls: may stand for several servers."""
    return address.startswith(_SEVERAL)


def check_address(address: str) -> None:
    """Catches what gRPC would tell only with the first call, in words of its own. Raises InvalidArgument, which says
    what would be right where that can be known."""
    target = without_tls(address)
    is_graphic = all("!" <= c <= "~" for c in address)
    if not address or not is_graphic or without_tls(target) != target:
        want = _WANT_ANY
    else:
        want = _want_of(target)
    if want:
        raise refusal("address", repr(address), want)


# Each of the following says what the address should be, or look like; empty: it is good.


def _want_of(address: str) -> str:
    for scheme, rest_wants in _SCHEMES.items():
        if address.startswith(scheme):
            return rest_wants(address.removeprefix(scheme))
    scheme, is_url, rest = address.partition("://")
    if not is_url:
        return _want_of_host_and_port(address)
    # As browsers have it.
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
    if name.startswith("//"):  # Then the name server to ask, if any.
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
