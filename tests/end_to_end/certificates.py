# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests: short-lived authorities and what they sign, in PEM files."""

import datetime
import ipaddress
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
NAMES = ("127.0.0.1", "gemmd.test")


def now():
    return datetime.datetime.now(datetime.UTC)


def replace(path, content):
    """Atomically, so that nobody reads half of it."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(content)
    part.replace(path)


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name):
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Pair:
    """A certificate, its key, and their files."""

    def __init__(self, folder, stem, key, certificate):
        self.key, self.certificate = key, certificate
        self.cert_path, self.key_path = folder / f"{stem}.pem", folder / f"{stem}.key"
        self.write()

    @property
    def serial(self):
        return self.certificate.serial_number

    @property
    def cert_pem(self):
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def trusted_pem(self):
        """The same, followed by an empty list of trusted uses."""
        der = self.certificate.public_bytes(serialization.Encoding.DER) + b"\x30\x00"
        return ssl.DER_cert_to_PEM_cert(der).replace("CERTIFICATE", "TRUSTED CERTIFICATE").encode()

    def key_pem(self, passphrase=None):
        protection = (
            serialization.BestAvailableEncryption(passphrase)
            if passphrase
            else serialization.NoEncryption()
        )
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
        )

    def write(self):
        replace(self.cert_path, self.cert_pem)
        replace(self.key_path, self.key_pem())


class Authority(Pair):
    """Signs certificates, the first of which is its own."""

    def __init__(self, folder, stem="ca"):
        self.folder = folder
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"authority {stem}")
        builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now() - DAY).not_valid_after(now() + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        super().__init__(folder, stem, key, builder.sign(key, hashes.SHA256()))

    def sign(self, stem, names=NAMES, start=-DAY, end=DAY, usage=None):
        """A pair for a server or a client, valid from now + start to now + end."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateBuilder(
            self.certificate.subject, _name(stem), key.public_key(), x509.random_serial_number()
        )
        builder = builder.not_valid_before(now() + start).not_valid_after(now() + end)
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        builder = builder.add_extension(alternatives, False)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
        return Pair(self.folder, stem, key, builder.sign(self.key, hashes.SHA256()))

    def revoke(self, path, *pairs, next_update=DAY):
        """Writes the list of revoked certificates; another is due at now + next_update."""
        builder = x509.CertificateRevocationListBuilder(
            self.certificate.subject, now() - DAY, now() + next_update
        )
        for pair in pairs:
            entry = x509.RevokedCertificateBuilder(pair.serial, now() - DAY / 24)
            builder = builder.add_revoked_certificate(entry.build())
        signed = builder.sign(self.key, hashes.SHA256())
        replace(path, signed.public_bytes(serialization.Encoding.PEM))

    def for_servers_only(self, stem):
        return self.sign(stem, usage=ExtendedKeyUsageOID.SERVER_AUTH)


def self_signed(folder, stem):
    """A self-signed pair."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(stem)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now() - DAY).not_valid_after(now() + DAY)
    return Pair(folder, stem, key, builder.sign(key, hashes.SHA256()))


class World:
    """An authority, another one that the daemon does not know, and a certificate of each kind, in a
    folder."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = Authority(folder)
        self.stranger = Authority(folder, "stranger")
        self.server = self.authority.sign("server")
        self.client = self.authority.sign("client")
        self.revoked = self.authority.sign("revoked")
        self.revocations = folder / "revoked.crl"
        self.authority.revoke(self.revocations, self.revoked)
        self.flags = [f"--tls-cert={self.server.cert_path}", f"--tls-key={self.server.key_path}"]
        self.flags_for_clients = [f"--client-ca={self.authority.cert_path}", f"--client-crl={self.revocations}"]


# What a bundle may hold in place of a certificate.
BROKEN = {
    "cut off": lambda pair: pair.cert_pem[:-60],  # Its end is missing, too.
    "scrambled": lambda pair: pair.cert_pem.replace(b"M", b"!"),
    "short": lambda pair: pair.cert_pem[:60] + pair.cert_pem[124:],
    "empty": lambda pair: b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
}

# Clients that must be refused over mutual TLS: what each of them shows.
STRANGERS = {
    "none": lambda world: None,
    "self-signed": lambda world: self_signed(world.folder, "nobody"),
    "wrong authority": lambda world: world.stranger.sign("outsider"),
    "expired": lambda world: world.authority.sign("expired", end=-DAY / 24),
    "not yet valid": lambda world: world.authority.sign("early", start=DAY / 2),
    "revoked": lambda world: world.revoked,
    "for servers only": lambda world: world.authority.for_servers_only("misused"),
}
