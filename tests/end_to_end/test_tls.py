# SPDX-License-Identifier: Apache-2.0
"""Who is admitted over TLS and mutual TLS, and what happens to everybody else."""

import contextlib
import datetime
import socket
import ssl
import subprocess
import threading
import time

import certificates
import grpc
import pytest
from daemon import PATIENCE_S, wait_until
from metrics_page import scrape

HANDSHAKE_TIMEOUT_S = 1
HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"

# The files are checked each second, and by gRPC again each second; the rest is for busy machines.
RELOAD_LIMIT_S = PATIENCE_S


class Site(certificates.World):
    """A daemon with all kinds of addresses, and its certificates."""

    def __init__(self, daemons, folder, *flags):
        super().__init__(folder)
        self.daemon = daemons.start(
            "--devices=cpu",
            "--cpu-threads=1",
            "--lame-duck=1ms",
            *flags,
            *self.flags,
            *self.flags_for_clients,
            "--metrics-listen=127.0.0.1:0",
            listen="127.0.0.1:0,tls:127.0.0.1:0,mtls:127.0.0.1:0",
        )

    def address(self, kind):
        return next(a for a in self.daemon.addresses if a.startswith(f"{kind}:"))

    def port(self, kind):
        return int(self.address(kind).rsplit(":", 1)[1])


@pytest.fixture(scope="module")
def site(gemmd, tmp_path_factory):
    from fixtures import Daemons

    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    # Longer than the daemon's default of five seconds, which one handshake may take on a busy
    # machine.
    yield Site(daemons, tmp_path_factory.mktemp("certificates"), "--handshake-timeout=10m")
    daemons.end()


def credentials(site, pair=None):
    own = (pair.key_pem(), pair.cert_pem) if pair else (None, None)
    return grpc.ssl_channel_credentials(site.authority.cert_pem, *own)


@contextlib.contextmanager
def channel(site, kind, pair=None):
    """A separate connection."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    target = f"127.0.0.1:{site.port(kind)}"
    with grpc.secure_channel(target, credentials(site, pair), options) as made:
        yield made


def call(made):
    return made.unary_unary(HEALTH)(b"", timeout=PATIENCE_S)


def is_served(site, kind="mtls", pair=None):
    with channel(site, kind, pair) as made:
        return call(made) == SERVING


def refusal(site, pair):
    with channel(site, "mtls", pair) as made, pytest.raises(grpc.RpcError) as caught:
        call(made)
    return caught.value.code()


def is_refused(site, pair):
    with contextlib.suppress(grpc.RpcError):
        return not is_served(site, "mtls", pair)
    return True


def test_those_who_may_get_in_do(site):
    assert is_served(site, "tls")
    assert is_served(site, "mtls", site.client)


@pytest.mark.parametrize("who", certificates.STRANGERS)
def test_mutual_tls_keeps_out(site, who):
    assert refusal(site, certificates.STRANGERS[who](site)) is grpc.StatusCode.UNAVAILABLE
    assert is_served(site, "mtls", site.client)


def handshake(site, version):
    """The agreed version; the client accepts any cipher, also old ones."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", site.port("tls")), timeout=PATIENCE_S) as plain:
        with context.wrap_socket(plain) as secure:
            return secure.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2"])
def test_no_version_before_tls_1_3_is_spoken(site, version):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(site, getattr(ssl.TLSVersion, version))


def test_tls_1_3_is_spoken(site):
    assert handshake(site, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"


def test_plain_text_and_tls_do_not_meet(site):
    with grpc.insecure_channel(f"127.0.0.1:{site.port('tls')}") as plain:
        with pytest.raises(grpc.RpcError):
            call(plain)
    with grpc.secure_channel(f"127.0.0.1:{site.daemon.port}", credentials(site)) as secure:
        with pytest.raises(grpc.RpcError):
            call(secure)
    assert is_served(site, "tls")


@contextlib.contextmanager
def half_handshakes(site):
    """Silent peers, and peers that stop in the middle of their first record."""
    begun = b"\x16\x03\x01\x02\x00\x01\x00"  # A record of 512 bytes, which never come.
    with contextlib.ExitStack() as stack:
        peers = []
        for number in range(16):
            kind = "tls" if number % 2 else "mtls"
            peer = socket.create_connection(("127.0.0.1", site.port(kind)), timeout=PATIENCE_S)
            peers.append(stack.enter_context(contextlib.closing(peer)))
            peer.sendall(begun[: number % 8])
        yield peers


def test_half_a_handshake_holds_up_nobody(site):
    with half_handshakes(site) as peers:
        for _ in range(3):
            assert is_served(site, "mtls", site.client)
        for peer in peers:
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                peer.recv(1)  # The connection is still open.


def test_half_a_handshake_ends(daemons, tmp_path):
    site = Site(daemons, tmp_path, f"--handshake-timeout={HANDSHAKE_TIMEOUT_S}s")
    start = time.monotonic()
    with half_handshakes(site) as peers:
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                assert peer.recv(4096) == b""
        # Not at once, which would have another reason.
        assert time.monotonic() - start > HANDSHAKE_TIMEOUT_S / 2


def shown_serial(site):
    """The serial number of the certificate that a new connection is shown."""
    pem = ssl.get_server_certificate(("127.0.0.1", site.port("tls")), timeout=PATIENCE_S)
    return certificates.x509.load_pem_x509_certificate(pem.encode()).serial_number


class Callers:
    """Calls without pause: on one connection, and on a new one each time."""

    def __init__(self, site):
        self._site, self._is_over = site, threading.Event()
        self.errors, self.calls = [], [0, 0]
        self._threads = [
            threading.Thread(target=self._stay), threading.Thread(target=self._return)
        ]
        for thread in self._threads:
            thread.start()

    def _stay(self):
        with channel(self._site, "mtls", self._site.client) as made:
            while not self._is_over.is_set():
                self._count(0, lambda: call(made))

    def _return(self):
        while not self._is_over.is_set():
            self._count(1, lambda: is_served(self._site, "mtls", self._site.client))

    def _count(self, which, work):
        try:
            work()
            self.calls[which] += 1
        except grpc.RpcError as error:
            self.errors.append(error)

    def end(self):
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def test_certificates_change_under_load_and_no_call_is_lost(site):
    def events(name):
        return site.daemon.events(name)

    def await_events(name, count):
        wait_until(lambda: len(events(name)) >= count, RELOAD_LIMIT_S, f"{count} {name}")

    old, loaded = site.server.serial, len(events("certificate_loaded"))
    refused = len(events("certificate_refused"))
    fresh = site.authority.sign("fresh")
    callers = Callers(site)
    try:
        # First only the certificate, which has another key: the old pair stays in use.
        certificates.replace(site.server.cert_path, fresh.cert_pem)
        await_events("certificate_refused", refused + 1)
        assert shown_serial(site) == old
        certificates.replace(site.server.key_path, fresh.key_pem())
        await_events("certificate_loaded", loaded + 1)
        wait_until(lambda: shown_serial(site) == fresh.serial, RELOAD_LIMIT_S, "the new one shown")
        # Invalid files, one after the other.
        gone = site.authority.sign("gone", end=-certificates.DAY / 24)
        bad = [b"", fresh.cert_pem[:-40], gone.cert_pem]
        for number, content in enumerate(bad):
            certificates.replace(site.server.cert_path, content)
            await_events("certificate_refused", refused + 2 + number)
        site.server.cert_path.unlink()
        await_events("certificate_refused", refused + 2 + len(bad))
        assert shown_serial(site) == fresh.serial
        # Back to the pair in use: nothing to report.
        certificates.replace(site.server.cert_path, fresh.cert_pem)
        site.server.write()
        wait_until(lambda: shown_serial(site) == old, RELOAD_LIMIT_S, "the first one again")
    finally:
        callers.end()
        site.server.write()
    page = scrape(site.daemon)
    ends = site.server.certificate.not_valid_after_utc.timestamp()
    assert page.value("gemmd_tls_certificate_not_after_timestamp_seconds") == ends
    loads = "gemmd_tls_certificate_loads_total"

    def is_counted_and_told(outcome):
        return scrape(site.daemon).value(loads, outcome=outcome) == len(events(f"certificate_{outcome}"))

    for outcome in ("loaded", "refused"):
        wait_until(lambda outcome=outcome: is_counted_and_told(outcome), RELOAD_LIMIT_S, outcome)
    assert not callers.errors
    assert min(callers.calls) >= 5
    reasons = [event["reason"] for event in events("certificate_refused")[refused:]]
    assert "the key of the first certificate" in reasons[0]
    # Each change is reported once; there may be one more between the two files of the last pair.
    assert len(reasons) <= 3 + len(bad)


def test_a_certificate_that_begins_soon_is_shown_once_it_does(site):
    """Until then it is refused only because of its dates; the files are not written again."""
    soon = site.authority.sign("soon", start=datetime.timedelta(seconds=6))
    try:
        certificates.replace(site.server.key_path, soon.key_pem())
        certificates.replace(site.server.cert_path, soon.cert_pem)
        wait_until(lambda: shown_serial(site) == soon.serial, RELOAD_LIMIT_S, "the one that has begun")
    finally:
        site.server.write()
    wait_until(lambda: shown_serial(site) == site.server.serial, RELOAD_LIMIT_S, "the first one again")


def test_an_authority_of_clients_changes(site):
    newcomer = site.stranger.sign("newcomer")
    both = site.authority.cert_pem + site.stranger.trusted_pem
    certificates.replace(site.authority.cert_path, both)
    try:

        def is_let_in():
            with contextlib.suppress(grpc.RpcError):
                return is_served(site, "mtls", newcomer)

        wait_until(is_let_in, RELOAD_LIMIT_S, "the newcomer let in")
        assert is_served(site, "mtls", site.client)
    finally:
        site.authority.write()

    wait_until(lambda: is_refused(site, newcomer), RELOAD_LIMIT_S, "the newcomer kept out")
    assert is_served(site, "mtls", site.client)


def test_a_client_is_revoked(site):
    leaver = site.authority.sign("leaver")
    assert is_served(site, "mtls", leaver)
    site.authority.revoke(site.revocations, site.revoked, leaver)

    wait_until(lambda: is_refused(site, leaver), RELOAD_LIMIT_S, "the leaver kept out")
    # A list of another authority is refused: the previous one stays in use.
    refused = len(site.daemon.events("certificate_refused"))
    site.stranger.revoke(site.revocations)
    wait_until(
        lambda: len(site.daemon.events("certificate_refused")) > refused, RELOAD_LIMIT_S, "refused"
    )
    assert is_refused(site, leaver)
    assert is_served(site, "mtls", site.client)


@pytest.mark.parametrize("state", ["early", "cut off", "gone"])
def test_a_client_is_revoked_though_the_next_certificate_cannot_be_shown(site, state):
    early = site.authority.sign("next", start=certificates.DAY / 24)
    leaver, newcomer = site.authority.sign("leaver"), site.stranger.sign("newcomer")
    assert is_served(site, "mtls", leaver)
    try:
        if state == "early":
            certificates.replace(site.server.key_path, early.key_pem())
            certificates.replace(site.server.cert_path, early.cert_pem)
        elif state == "cut off":
            certificates.replace(site.server.cert_path, early.cert_pem[:-40])
        else:
            site.server.cert_path.unlink()
        both = site.authority.cert_pem + site.stranger.cert_pem
        certificates.replace(site.authority.cert_path, both)
        site.authority.revoke(site.revocations, site.revoked, leaver)
        wait_until(lambda: is_refused(site, leaver), RELOAD_LIMIT_S, "the leaver kept out")
        wait_until(lambda: not is_refused(site, newcomer), RELOAD_LIMIT_S, "the newcomer let in")
        assert is_served(site, "mtls", site.client)
        assert shown_serial(site) == site.server.serial
    finally:
        site.server.write()
        site.authority.write()
        site.authority.revoke(site.revocations, site.revoked)
    wait_until(lambda: not is_refused(site, leaver), RELOAD_LIMIT_S, "the old list")


def test_a_certificate_is_shown_though_the_list_of_revocations_is_broken(site):
    fresh = site.authority.sign("fresh")
    list_before = site.revocations.read_bytes()
    try:
        certificates.replace(site.revocations, list_before[:-40])
        certificates.replace(site.server.key_path, fresh.key_pem())
        certificates.replace(site.server.cert_path, fresh.cert_pem)
        wait_until(lambda: shown_serial(site) == fresh.serial, RELOAD_LIMIT_S, "the new one shown")
        assert is_refused(site, site.revoked)
    finally:
        certificates.replace(site.revocations, list_before)
        site.server.write()
    wait_until(lambda: shown_serial(site) == site.server.serial, RELOAD_LIMIT_S, "the first one again")


def run(gemmctl, *flags, environment=None):
    return subprocess.run(
        [gemmctl, "--timeout=60s", *flags, "health"],
        env=environment or {}, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False,
    )  # fmt: skip


def test_gemmctl_shows_and_checks_certificates(site, gemmctl):
    ca = f"--tls-ca={site.authority.cert_path}"
    own = [f"--tls-cert={site.client.cert_path}", f"--tls-key={site.client.key_path}"]
    tls, mtls = (f"--address={site.address(kind)}" for kind in ("tls", "mtls"))
    assert run(gemmctl, tls, ca).returncode == 0
    assert run(gemmctl, mtls, ca, *own).returncode == 0
    variables = {
        "GEMMD_ADDRESS": site.address("mtls"),
        "GEMMD_TLS_CA": str(site.authority.cert_path),
        "GEMMD_TLS_CERT": str(site.client.cert_path),
        "GEMMD_TLS_KEY": str(site.client.key_path),
    }
    assert run(gemmctl, environment=variables).returncode == 0

    # The server must prove its identity: another authority, the system's authorities, another name.
    assert run(gemmctl, tls, f"--tls-ca={site.stranger.cert_path}").returncode == 3
    assert run(gemmctl, tls).returncode == 3
    by_name = f"--address=tls:localhost:{site.port('tls')}"
    # gRPC's default resolver leaks ten bytes, which AddressSanitizer reports.
    native = {"GRPC_DNS_RESOLVER": "native"}
    assert run(gemmctl, by_name, ca, environment=native).returncode == 3
    named = run(gemmctl, by_name, ca, "--tls-server-name=gemmd.test", environment=native)
    assert named.returncode == 0
    assert run(gemmctl, tls, ca, "--tls-server-name=other.test").returncode == 3
    # Without a certificate: refused by the client if the address requires one.
    without = run(gemmctl, mtls, ca)
    assert without.returncode == 2 and "options.tls.certificate_file" in without.stderr


@pytest.mark.parametrize("state", certificates.BROKEN)
def test_a_broken_authority_hides_no_other_from_gemmctl(site, gemmctl, tmp_path, state):
    broken = certificates.BROKEN[state](site.stranger)
    bundle = tmp_path / "bundle.pem"
    for good in (site.authority.cert_pem, site.authority.trusted_pem):
        bundle.write_bytes(site.stranger.cert_pem + broken + b"# The next one.\n" + good)
        for command in ("health", "doctor"):
            tls = [f"--address={site.address('tls')}", f"--tls-ca={bundle}"]
            served = subprocess.run(
                [gemmctl, "--timeout=60s", *tls, command],
                env={}, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False,
            )  # fmt: skip
            assert served.returncode == 0, served
            assert served.stderr.count(f'got "{bundle}", whose certificate 2 is broken') == 1
    bundle.write_bytes(broken)
    refused = run(gemmctl, f"--address={site.address('tls')}", f"--tls-ca={bundle}")
    assert refused.returncode == 2
    assert f'options.tls.ca_file: got "{bundle}", want certificates in PEM' in refused.stderr
    # Without its own chain, servers would not trust it.
    bundle.write_bytes(site.client.cert_pem + broken)
    own = [f"--tls-cert={bundle}", f"--tls-key={site.client.key_path}"]
    ca = f"--tls-ca={site.authority.cert_path}"
    refused = run(gemmctl, f"--address={site.address('mtls')}", ca, *own)
    assert refused.returncode == 2 and "complete certificates" in refused.stderr


def test_a_client_takes_no_certificate_that_has_expired(site, daemons, gemmctl):
    expired = site.authority.sign("expired-server", end=-certificates.DAY / 24)
    daemon = daemons.start(
        "--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms",
        f"--tls-cert={expired.cert_path}", f"--tls-key={expired.key_path}",
        listen="tls:127.0.0.1:0",
    )  # fmt: skip
    assert daemon.awaited_events("certificate_not_valid")
    (address,) = daemon.addresses
    refused = run(gemmctl, f"--address={address}", f"--tls-ca={site.authority.cert_path}")
    assert refused.returncode == 3


def test_a_token_goes_where_nobody_else_reads_it(site, gemmctl, tmp_path):
    secret = "eyJhbGciOi.secret"
    file = tmp_path / "token"
    file.write_text(secret + "\n")
    tls = [f"--address={site.address('tls')}", f"--tls-ca={site.authority.cert_path}"]
    flag = f"--token-file={file}"
    assert run(gemmctl, *tls, flag).returncode == 0
    assert run(gemmctl, f"--address={site.daemon.tcp}", flag).returncode == 0
    far = run(gemmctl, "--address=192.0.2.1:1", flag)
    assert far.returncode == 2 and "tls: before it" in far.stderr
    file.write_text(f"{secret} {secret}")
    bad = run(gemmctl, *tls, flag)
    assert bad.returncode == 2 and "options.token: got" in bad.stderr
    for text in (far.stderr, bad.stderr, site.daemon.stderr()):
        assert "secret" not in text
    file.write_text("")
    assert "--token-file: got" in run(gemmctl, *tls, flag).stderr


@pytest.mark.parametrize(
    "flags, reason",
    [
        (["--listen=tls:127.0.0.1:0"], "tls-cert: got none"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={cert}"], "tls-key: got none"),
        (["--listen=mtls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={key}"], "client-ca: got none"),
        (["--listen=127.0.0.1:0", "--tls-cert={cert}", "--tls-key={key}"], "has an address with tls:"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={other}"], "want the key of"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={locked}"], "without a passphrase"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={key}", "--tls-key={key}"],
         "want complete certificates in PEM"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert=/", "--tls-key={key}"], "a readable file"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={key}", "--client-crl={cert}"],
         "client-ca: got none"),
        (["--listen=mtls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={key}", "--client-ca={cert}",
          "--client-crl={cert}"], "want complete revocation lists in PEM"),
    ],
)  # fmt: skip
def test_the_daemon_does_not_start(site, daemons, tmp_path, flags, reason):
    locked = tmp_path / "locked.key"
    locked.write_bytes(site.server.key_pem(b"passphrase"))
    names = {
        "cert": site.server.cert_path,
        "key": site.server.key_path,
        "other": site.client.key_path,
        "locked": locked,
    }
    given = [flag.format(**names) for flag in flags]
    daemon = daemons.launch("--devices=cpu", "--cpu-threads=1", *given, listen="")
    assert daemon.wait() == 1
    assert reason in daemon.events("stop")[0]["reason"]
