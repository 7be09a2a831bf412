# SPDX-License-Identifier: Apache-2.0
"""Connections to a server: addresses, and gRPC options."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypedDict

import grpc

from gemmd.address import check_address, is_unix, may_name_several, without_tls
from gemmd.checks import file_name, flag, metadata, no_effect, pairs, real, secret, text, whole
from gemmd.errors import Error, refusal
from gemmd.security import check_token, has_tls, make_credentials

Metadata: TypeAlias = Sequence[tuple[str, str]]

_MAX_MESSAGE_BYTES = 2**31 - 1
_MAX_ATTEMPTS = 5  # gRPC's own limit.
_MAX_KEEPALIVE_S = 86400
_MAX_TIMEOUT_S = 366 * 86400


class ClientOptions(TypedDict, total=False):
    """Options of a client; all are optional. Defaults follow each description."""

    timeout: float  #: Default timeout of a call in seconds, retries included. 60.
    max_message_bytes: int  #: The longest message sent or received. 512 MiB.
    max_attempts: int  #: Attempts per call, 1 to 5. 5.
    keepalive_s: float  #: About the time to detect a dead server, in seconds, at least 10. 20.
    metadata: Metadata  #: Sent with every call.
    tls_ca: str  #: PEM file of trusted CA certificates. This option and the next three turn TLS on, as the
    #: address prefix ``tls:`` does. Malformed certificates are skipped with a warning. gRPC's default roots.
    tls_cert: str  #: PEM file of the client's certificate, for an ``mtls:`` address. None.
    tls_key: str  #: PEM file of its private key. None.
    tls_server_name: str  #: Name that the server's certificate must contain. The host of the address.
    token: str  #: The caller's token, sent only over TLS, loopback and unix sockets. None.
    use_proxy: bool  #: Connect through the proxy named by ``$grpc_proxy``, ``$https_proxy`` or ``$http_proxy``;
    #: a token then needs TLS. False, which ignores these variables.
    credentials: grpc.ChannelCredentials | None  #: gRPC credentials, instead of TLS from files. None.
    wait_when_full: bool  #: Retry a product that is refused because the queue is full, after the delay that
    #: the server asks for, as long as its timeout allows. False.
    wait_for_ready: bool  #: Ride out restarts of the server: a call waits up to its timeout for a connection, and is
    #: also retried (``max_attempts``) on CANCELLED. Not for products that overwrite their own C, because that status
    #: does not tell whether the server computed them. False.
    session: str  #: The token of a session to join. A new session, once a call needs one.
    channel_options: Sequence[tuple[str, Any]]  #: gRPC channel arguments; the client's own take precedence. None.


@dataclass(frozen=True)
class Settings:
    """The options of a client, with defaults filled in."""

    address: str
    timeout: float = 60.0
    max_message_bytes: int = 512 << 20
    max_attempts: int = _MAX_ATTEMPTS
    keepalive_s: float = 20.0
    metadata: Metadata = ()
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    token: str = field(default="", repr=False)
    use_proxy: bool = False
    credentials: grpc.ChannelCredentials | None = None
    wait_when_full: bool = False
    wait_for_ready: bool = False
    session: str = ""
    channel_options: Sequence[tuple[str, Any]] = ()

    def __post_init__(self) -> None:
        checks: dict[str, Callable[[str, Any], Any]] = {
            "address": text,
            "timeout": lambda _, value: checked_timeout(value),
            "max_message_bytes": lambda *given: whole(*given, 1, _MAX_MESSAGE_BYTES),
            "max_attempts": lambda *given: whole(*given, 1, _MAX_ATTEMPTS),
            "keepalive_s": _checked_keepalive,
            "tls_ca": file_name,
            "tls_cert": file_name,
            "tls_key": file_name,
            "tls_server_name": text,
            "token": secret,
            "use_proxy": flag,
            "wait_when_full": flag,
            "wait_for_ready": flag,
            "session": secret,
            "metadata": metadata,
            "channel_options": pairs,
        }
        for name, check in checks.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        for number, (name, value) in enumerate(self.channel_options):
            if isinstance(value, str):
                text(f"channel_options[{number}]: {name}", value)
        check_address(self.address)
        if self.use_proxy and is_unix(self.target):
            no_effect({"use_proxy": True}, ["use_proxy"], f"address {self.address}")
        files = (self.tls_ca, self.tls_cert, self.tls_key)
        is_encrypted = has_tls(self.address, *files, self.tls_server_name)
        if is_encrypted and self.credentials is not None:
            raise refusal("credentials", "those of gRPC", "none beside TLS by files or tls:")
        is_encrypted_anyhow = is_encrypted or self.credentials is not None
        check_token(self.token, self.address, is_encrypted_anyhow, self.use_proxy)
        if is_encrypted:
            object.__setattr__(self, "credentials", make_credentials(self.address, *files))

    @property
    def target(self) -> str:
        """The address without tls: or mtls:, as gRPC expects it."""
        return without_tls(self.address)

    @functools.cached_property
    def call_metadata(self) -> list[tuple[str, str]]:
        """Metadata sent with every call."""
        return [*self.metadata, *self.authorization]

    @property
    def authorization(self) -> list[tuple[str, str]]:
        """The caller's token, as metadata."""
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def options(self) -> list[tuple[str, Any]]:
        """gRPC options of a connection."""
        retry_bytes = min(_MAX_MESSAGE_BYTES, self.max_message_bytes + (64 << 10))
        name = self.tls_server_name
        return [
            *self.channel_options,
            *([("grpc.ssl_target_name_override", name)] if name else []),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.service_config", self._service_config()),
            # A call whose messages exceed this buffer is not retried. The buffer shares the message's bytes; it does
            # not copy them.
            ("grpc.per_rpc_retry_buffer_size", retry_bytes),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 5000),
            ("grpc.keepalive_time_ms", int(self.keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", 10000),
            ("grpc.http2.ping_timeout_ms", 10000),  # gRPC 1.75 heeds this one instead.
            # The number of pings without data is unlimited, or a long computation would go unwatched.
            ("grpc.http2.max_pings_without_data", 0),
            # Random matrices do not compress, and a compressed answer could be a bomb.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            # By default gRPC uses the proxies of the environment, even for loopback.
            ("grpc.enable_http_proxy", int(self.use_proxy)),
            # $GRPC_ADDRESS_HTTP_PROXY names another proxy, for addresses in a list; this empty list disables it.
            *([] if self.use_proxy else [("grpc.address_http_proxy_enabled_addresses", "")]),
            # Channels with equal options would otherwise share one connection.
            ("grpc.use_local_subchannel_pool", 1),
        ]

    def _service_config(self) -> str:
        config: dict[str, Any] = {}
        if may_name_several(self.target):
            config["loadBalancingConfig"] = [{"round_robin": {}}]
            config["healthCheckConfig"] = {"serviceName": "gemmd.v1.Gemm"}
        waits = {"waitForReady": True} if self.wait_for_ready else {}
        retries: dict[str, Any] = {}
        if self.max_attempts > 1:
            retries["retryPolicy"] = {
                "maxAttempts": self.max_attempts,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                # gRPC's server answers CANCELLED to calls that arrive while it stops.
                "retryableStatusCodes": ["UNAVAILABLE", *(["CANCELLED"] if self.wait_for_ready else [])],
            }
        if waits or retries:
            # gRPC does not retry transfers: it could only repeat the first message. The client itself resumes a broken
            # transfer where it stopped.
            moves = [{"service": "gemmd.v1.Tensors", "method": name} for name in ("Put", "Get")]
            config["methodConfig"] = [{"name": [{}], **waits, **retries}, {"name": moves, **waits}]
        return json.dumps(config)


def _checked_keepalive(field: str, value: Any) -> float:
    # The server closes connections with pings that come faster than every 10 s.
    return real(field, value, f"10 to {_MAX_KEEPALIVE_S}", lambda s: 10 <= s <= _MAX_KEEPALIVE_S)


def checked_timeout(timeout: Any) -> float:
    """The timeout as a float. Raises InvalidArgument, a ValueError, for an invalid time: gRPC itself would end such a
    call at once, or never."""
    if type(timeout) is float and 0 < timeout <= _MAX_TIMEOUT_S:
        return timeout
    want = f"a number of seconds above 0, at most {_MAX_TIMEOUT_S} (a year)"
    return real("timeout", timeout, want, lambda s: 0 < s <= _MAX_TIMEOUT_S)


class Deadline:
    """When a call has to end, retries included; counted from the start of the call. Raises as `checked_timeout`."""

    def __init__(self, timeout: float) -> None:
        self._end = time.monotonic() + checked_timeout(timeout)

    def left(self) -> float:
        """The remaining seconds, never below 0."""
        return max(0.0, self._end - time.monotonic())


def pause_before_retry(error: Error, deadline: Deadline, settings: Settings) -> float | None:
    """The seconds to wait before a refused call is retried; None if it must not be."""
    if not settings.wait_when_full or error.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    if error.pushback_s is None or error.pushback_s >= deadline.left():
        return None
    return error.pushback_s
