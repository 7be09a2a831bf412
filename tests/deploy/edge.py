# SPDX-License-Identifier: Apache-2.0
"""The edge on loopback: two daemons that know callers by signed tokens, behind Envoy with the
configuration of its overlay, with short-lived certificates and keys."""

import base64
import contextlib
import json
import time

import grpc
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

import certificates
from callers import EVERYTHING
from daemon import Daemon
from envoy import Envoy
from manifests import Overlay, flag
from replicas import free_port

CALLERS = ("alice", "bob")
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def encoded(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, size):
    return encoded(value.to_bytes(size, "big"))


class Ecdsa:
    """ES256 of RFC 7518."""

    algorithm = "ES256"

    def __init__(self):
        self._key = ec.generate_private_key(ec.SECP256R1())

    def public(self):
        point = self._key.public_key().public_numbers()
        return {"kty": "EC", "crv": "P-256", "x": number(point.x, 32), "y": number(point.y, 32)}

    def sign(self, text):
        r, s = utils.decode_dss_signature(self._key.sign(text, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


class Rsa:
    """RS256 of RFC 7518."""

    algorithm = "RS256"

    def __init__(self):
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def public(self):
        numbers = self._key.public_key().public_numbers()
        return {"kty": "RSA", "n": number(numbers.n, 256), "e": number(numbers.e, 3)}

    def sign(self, text):
        return self._key.sign(text, padding.PKCS1v15(), hashes.SHA256())


class Issuer:
    def __init__(self, name, audience):
        self._name = name
        self._audience = audience
        self.keys = {"e": Ecdsa(), "r": Rsa()}

    def key_set(self):
        public = {kid: {"kid": kid, "alg": key.algorithm} for kid, key in self.keys.items()}
        return {"keys": [public[kid] | key.public() for kid, key in self.keys.items()]}

    def token(self, subject="alice", kid="e", key=None, header=None, **claims):
        """A valid token, unless the arguments say otherwise; a claim that is None is left out."""
        key = key or self.keys[kid]
        held = {"iss": self._name, "aud": self._audience, "sub": subject}
        held |= {"exp": int(time.time()) + 3600} | claims
        held = {name: value for name, value in held.items() if value is not None}
        text = encoded(header or {"alg": key.algorithm, "kid": kid}) + "." + encoded(held)
        return f"{text}.{encoded(key.sign(text.encode()))}"


def bearer(token):
    return [("authorization", f"Bearer {token}")]


class Edge:
    def __init__(self, program, tree, folder, edit=lambda config: None):
        arguments = Overlay("edge").daemon_arguments()
        self.issuer = Issuer(flag(arguments, "jwt-issuer"), flag(arguments, "jwt-audience"))
        self.world = certificates.World(folder)
        self.tls, trust, config = folder / "tls", folder / "trust", folder / "envoy"
        for made in (self.tls, trust, config):
            made.mkdir()
        self._shown = 0
        self.show(self.world.server)
        (trust / "client_ca.pem").write_bytes(self.world.authority.cert_pem)
        (trust / "jwks.json").write_text(json.dumps(self.issuer.key_set()))
        rules = {"identities": {name: {"may": EVERYTHING} for name in CALLERS}}
        (trust / "rules.yaml").write_text(json.dumps(rules))
        mine = [word.replace("/etc/gemmd-trust", str(trust)) for word in arguments]
        mine = [word for word in mine if word.startswith(("--rules", "--jwt"))]
        flags = ["--devices=cpu", "--cpu-threads=1", "--metrics-listen=127.0.0.1:0", *mine]
        mounts = {"/etc/gemmd-tls": self.tls, "/etc/gemmd-trust": trust}
        self.daemons = []
        with contextlib.ExitStack() as failing:
            failing.callback(self.end)
            for name in ("a", "b"):
                audit = f"--audit-log={folder / name}.audit"
                listen = f"127.0.0.1:{free_port()}"
                self.daemons.append(
                    Daemon(tree / "bin/gemmd", folder / name, audit, *flags, listen=listen)
                )
            ports = [daemon.wait_until_ready().port for daemon in self.daemons]
            self.envoy = Envoy(program, config, ports, "edge", mounts, edit)
            failing.pop_all()
        self.port = self.envoy.ports["grpc"]

    def show(self, pair):
        """Replaces Envoy's certificate as the kubelet does: the files are links into a folder
        behind a link, and that link is replaced."""
        self._shown += 1
        version = self.tls / f"..{self._shown}"
        version.mkdir()
        (version / "tls.key").write_bytes(pair.key_pem())
        (version / "tls.crt").write_bytes(pair.cert_pem)
        link = self.tls / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.tls / "..data")
        for name in ("tls.key", "tls.crt"):
            with contextlib.suppress(FileExistsError):
                (self.tls / name).symlink_to(f"..data/{name}")

    def channel(self, client=None):
        shown = (client.key_pem(), client.cert_pem) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(self.world.authority.cert_pem, *shown)
        options = [("grpc.use_local_subchannel_pool", 1), *UNLIMITED]
        return grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, options)

    def audited(self):
        """The lines of the daemons' audit logs, unordered."""
        lines = []
        for daemon in self.daemons:
            path = daemon.folder.with_name(f"{daemon.folder.name}.audit")
            lines += [json.loads(line) for line in path.read_text().splitlines()]
        return lines

    def end(self):
        for daemon in self.daemons:
            daemon.kill()


def edge_fixture(edit=lambda config: None):
    """One edge for all tests of a module."""

    @pytest.fixture(scope="module")
    def edge(tree, module_program, tmp_path_factory):
        edge = Edge(module_program, tree, tmp_path_factory.mktemp("edge"), edit)
        yield edge
        edge.end()

    return edge


@pytest.fixture
def channel(edge):
    """A channel to the module's edge, without a certificate."""
    with edge.channel() as channel:
        yield channel
