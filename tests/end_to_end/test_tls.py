# SPDX-License-Identifier: Apache-2.0
"""Who is admitted over TLS and mutual TLS, to gRPC and to the metrics, and what happens to everybody else."""

import contextlib
import datetime
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import certificates
import grpc
import metrics_page
import pytest
from daemon import PATIENCE_S, wait_until

HANDSHAKE_TIMEOUT_S = 1
HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
REFUSED = (grpc.RpcError, ssl.SSLError, ConnectionError, urllib.error.URLError)
DAEMON = ("--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms")

# The files are checked each second, and by gRPC again each second; the rest is for busy machines.
RELOAD_LIMIT_S = PATIENCE_S


class Endpoint:
    """An address of the site that speaks TLS (its kind is `tls`) or mutual TLS (`mtls`)."""

    def __init__(self, site, address):
        self._site = site
        self.address = address
        self.kind, _, self.authority = address.partition(":")
        self.port = int(address.rsplit(":", 1)[1])

    def connect(self):
        return contextlib.closing(socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S))

    def secured(self, plain, pair):
        context = ssl.create_default_context(cadata=self._site.authority.cert_pem.decode())
        context.set_alpn_protocols(self.protocols)
        if pair:
            context.load_cert_chain(pair.cert_path, pair.key_path)
        return contextlib.closing(context.wrap_socket(plain, server_hostname="127.0.0.1"))

    def shown_serial(self):
        """The serial number of the certificate that a new connection is shown."""
        with self.connect() as plain, self.secured(plain, self._site.client) as secure:
            shown = secure.getpeercert(binary_form=True)
        return certificates.x509.load_der_x509_certificate(shown).serial_number

    def is_served(self, pair=None):
        """Whether a new connection gets an answer. Raises one of REFUSED if it is refused."""
        with self.session(pair) as call:
            return call()

    def is_refused(self, pair):
        with contextlib.suppress(*REFUSED):
            return not self.is_served(pair)
        return True


class Grpc(Endpoint):
    protocols = ["h2"]

    @contextlib.contextmanager
    def session(self, pair=None):
        """A separate connection, for calls."""
        own = (pair.key_pem(), pair.cert_pem) if pair else (None, None)
        credentials = grpc.ssl_channel_credentials(self._site.authority.cert_pem, *own)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        with grpc.secure_channel(self.authority, credentials, options) as channel:
            yield lambda: channel.unary_unary(HEALTH)(b"", timeout=PATIENCE_S) == SERVING

    def ask_plainly(self):
        with grpc.insecure_channel(self.authority) as plain:
            plain.unary_unary(HEALTH)(b"", timeout=PATIENCE_S)


class Metrics(Endpoint):
    protocols = ["http/1.1"]

    def get(self, path="/metrics", pair=None):
        with self.connect() as plain, self.secured(plain, pair) as secure:
            secure.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            answer = b"".join(iter(lambda: secure.recv(1 << 16), b""))
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split()[1]), body

    @contextlib.contextmanager
    def session(self, pair=None):
        """Scrapes; each has a connection."""
        yield lambda: "\ngemmd_build_info{" in self.get(pair=pair)[1]

    def ask_plainly(self):
        urllib.request.urlopen(f"http://{self.authority}/metrics", timeout=PATIENCE_S)


class Site(certificates.World):
    """Daemons with the same certificates. One serves gRPC at all kinds of addresses; each of two others serves
    metrics at one. `endpoints` are by protocol and kind."""

    def __init__(self, daemons, folder, *flags):
        super().__init__(folder)
        both = [*self.flags, *self.flags_for_clients]
        self.daemon = daemons.start(
            *DAEMON, *flags, *both, "--metrics-listen=127.0.0.1:0",
            listen="127.0.0.1:0,tls:127.0.0.1:0,mtls:127.0.0.1:0",
        )  # fmt: skip
        made = [Grpc(self, address) for address in self.daemon.addresses if "tls:" in address]
        for kind, files in (("tls", self.flags), ("mtls", both)):
            daemon = daemons.start(*DAEMON, *files, f"--metrics-listen={kind}:127.0.0.1:0", listen="127.0.0.1:0")
            made.append(Metrics(self, metrics_page.address(daemon)))
        self.endpoints = {(type(each).__name__.lower(), each.kind): each for each in made}
        assert len(self.endpoints) == 4

    def address(self, kind):
        return self.endpoints["grpc", kind].address

    def _await(self, what, is_so):
        for endpoint in self.endpoints.values():
            wait_until(lambda e=endpoint: is_so(e), RELOAD_LIMIT_S, f"{what} at {endpoint.address}")

    def await_shown(self, serial):
        self._await("the certificate", lambda endpoint: endpoint.shown_serial() == serial)

    def await_refused(self, pair):
        self._await("a client refused", lambda endpoint: endpoint.kind == "tls" or endpoint.is_refused(pair))

    def await_served(self, pair):
        self._await("a client served", lambda endpoint: not endpoint.is_refused(pair))

    def expect_served(self, pair):
        for endpoint in self.endpoints.values():
            assert endpoint.is_served(pair)

    def is_refused(self, pair):
        return all(e.is_refused(pair) for e in self.endpoints.values() if e.kind == "mtls")


@pytest.fixture(scope="module")
def site(gemmd, tmp_path_factory):
    from fixtures import Daemons

    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    # Longer than the daemon's default of five seconds, which one handshake may take on a busy
    # machine.
    yield Site(daemons, tmp_path_factory.mktemp("certificates"), "--handshake-timeout=10m")
    daemons.end()


protocols = pytest.mark.parametrize("protocol", ["grpc", "metrics"])
kinds = pytest.mark.parametrize("kind", ["tls", "mtls"])


@protocols
def test_those_who_may_get_in_do(site, protocol):
    assert site.endpoints[protocol, "tls"].is_served()
    assert site.endpoints[protocol, "mtls"].is_served(site.client)


def test_metrics_have_all_their_paths(site):
    for kind, pair in (("tls", None), ("mtls", site.client)):
        endpoint = site.endpoints["metrics", kind]
        for path, beginning in (("/metrics", "# HELP"), ("/metrics/triton", "# HELP"), ("/healthz", "ok")):
            code, body = endpoint.get(path, pair)
            assert code == 200 and body.startswith(beginning)
        assert endpoint.get("/other", pair)[0] == 404


@protocols
@pytest.mark.parametrize("who", certificates.STRANGERS)
def test_mutual_tls_keeps_out(site, protocol, who):
    endpoint = site.endpoints[protocol, "mtls"]
    with pytest.raises(REFUSED) as caught:
        endpoint.is_served(certificates.STRANGERS[who](site))
    if protocol == "grpc":
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert endpoint.is_served(site.client)


def test_a_client_that_the_metrics_refuse_is_told_why(site):
    """By an alert, and not by a reset without a reason. gRPC gives none."""
    endpoint = site.endpoints["metrics", "mtls"]
    with endpoint.connect() as plain, endpoint.secured(plain, site.revoked) as secure:
        with pytest.raises(ssl.SSLError, match="(?i)revoked"):
            secure.recv(1)


def handshake(endpoint, version):
    """The agreed version; the client accepts any cipher, also old ones."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(endpoint.protocols)
    context.minimum_version = context.maximum_version = version
    with endpoint.connect() as plain, context.wrap_socket(plain) as secure:
        return secure.version()


@protocols
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2"])
def test_no_version_before_tls_1_3_is_spoken(site, protocol, version):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(site.endpoints[protocol, "tls"], getattr(ssl.TLSVersion, version))


@protocols
def test_tls_1_3_is_spoken(site, protocol):
    assert handshake(site.endpoints[protocol, "tls"], ssl.TLSVersion.TLSv1_3) == "TLSv1.3"


@protocols
def test_plain_text_and_tls_do_not_meet(site, protocol):
    endpoint = site.endpoints[protocol, "tls"]
    with pytest.raises((*REFUSED, OSError)):
        endpoint.ask_plainly()
    assert endpoint.is_served()


def test_tls_does_not_meet_plain_text(site):
    with pytest.raises(grpc.RpcError):
        Grpc(site, f"tls:{site.daemon.tcp}").is_served()


BEGUN = b"\x16\x03\x01\x02\x00\x01\x00"  # A record of 512 bytes, which never come.


@protocols
@kinds
def test_a_crowd_of_bad_peers_holds_up_nobody(site, protocol, kind):
    """More peers than the metrics have places: silent ones, ones that stop in the middle of a handshake, ones that
    send something else, and ones that finish the handshake and are then silent."""
    endpoint = site.endpoints[protocol, kind]
    with contextlib.ExitStack() as stack:
        waiting = []
        for number in range(48):
            peer = stack.enter_context(endpoint.connect())
            with contextlib.suppress(*REFUSED):
                match number % 4:
                    case 0:
                        waiting.append(peer)
                    case 1:
                        peer.sendall(BEGUN[: 1 + number % 6])
                        waiting.append(peer)
                    case 2:
                        peer.sendall(bytes(number) * 1000)
                    case 3:
                        stack.enter_context(endpoint.secured(peer, site.client))
            if number % 8 == 7:
                assert endpoint.is_served(site.client)
        for peer in waiting if protocol == "grpc" else ():
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                peer.recv(1)  # The connection is still open.


def test_half_a_handshake_ends(daemons, tmp_path):
    """With gRPC. HttpTlsTest checks the fixed limit of the metrics, with a clock of its own."""
    world = certificates.World(tmp_path)
    daemon = daemons.start(
        *DAEMON, *world.flags, *world.flags_for_clients, f"--handshake-timeout={HANDSHAKE_TIMEOUT_S}s",
        listen="tls:127.0.0.1:0,mtls:127.0.0.1:0",
    )  # fmt: skip
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        peers = []
        for number in range(16):
            peers.append(stack.enter_context(Grpc(world, daemon.addresses[number % 2]).connect()))
            peers[-1].sendall(BEGUN[: number % 8])
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                assert peer.recv(4096) == b""
        # Not at once, which would have another reason.
        assert time.monotonic() - start > HANDSHAKE_TIMEOUT_S / 2


class Callers:
    """Calls without pause to each endpoint: in one session, and in a new one each time."""

    def __init__(self, site):
        self._client, self._is_over = site.client, threading.Event()
        self.errors, self.calls = [], []
        self._threads = []
        for endpoint in site.endpoints.values():
            for work in (self._stay, self._return):
                self.calls.append(0)
                arguments = (len(self.calls) - 1, endpoint)
                self._threads.append(threading.Thread(target=work, args=arguments))
        for thread in self._threads:
            thread.start()

    def _stay(self, which, endpoint):
        with endpoint.session(self._client) as call:
            while not self._is_over.is_set():
                self._count(which, call)

    def _return(self, which, endpoint):
        while not self._is_over.is_set():
            self._count(which, lambda: endpoint.is_served(self._client))

    def _count(self, which, work):
        try:
            assert work()
            self.calls[which] += 1
        except Exception as error:  # The test reports any error.
            self.errors.append(error)

    def await_more(self):
        before = list(self.calls)
        wait_until(lambda: all(map(int.__gt__, self.calls, before)), PATIENCE_S, "calls after it")

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
        assert site.endpoints["grpc", "tls"].shown_serial() == old
        certificates.replace(site.server.key_path, fresh.key_pem())
        await_events("certificate_loaded", loaded + 1)
        site.await_shown(fresh.serial)
        # Invalid files, one after the other.
        gone = site.authority.sign("gone", end=-certificates.DAY / 24)
        bad = [b"", fresh.cert_pem[:-40], gone.cert_pem]
        for number, content in enumerate(bad):
            certificates.replace(site.server.cert_path, content)
            await_events("certificate_refused", refused + 2 + number)
        site.server.cert_path.unlink()
        await_events("certificate_refused", refused + 2 + len(bad))
        site.await_shown(fresh.serial)
        # Back to the pair in use: nothing to report.
        certificates.replace(site.server.cert_path, fresh.cert_pem)
        for next_pair in (site.server, fresh, site.server):
            certificates.replace(site.server.cert_path, next_pair.cert_pem)
            certificates.replace(site.server.key_path, next_pair.key_pem())
            site.await_shown(next_pair.serial)
            callers.await_more()
    finally:
        callers.end()
        site.server.write()
    page = metrics_page.scrape(site.daemon)
    ends = site.server.certificate.not_valid_after_utc.timestamp()
    assert page.value("gemmd_tls_certificate_not_after_timestamp_seconds") == ends
    loads = "gemmd_tls_certificate_loads_total"

    def is_counted_and_told(outcome):
        counted = metrics_page.scrape(site.daemon).value(loads, outcome=outcome)
        return counted == len(events(f"certificate_{outcome}"))

    for outcome in ("loaded", "refused"):
        wait_until(lambda outcome=outcome: is_counted_and_told(outcome), RELOAD_LIMIT_S, outcome)
    assert not callers.errors
    assert min(callers.calls) >= 5
    reasons = [event["reason"] for event in events("certificate_refused")[refused:]]
    assert "the key of the first certificate" in reasons[0]
    # Each change is reported once; there may be one more between the two files of each of the last three pairs.
    assert len(reasons) <= 5 + len(bad)


def test_a_certificate_that_begins_soon_is_shown_once_it_does(site):
    """Until then it is refused only because of its dates; the files are not written again."""
    soon = site.authority.sign("soon", start=datetime.timedelta(seconds=6))
    try:
        certificates.replace(site.server.key_path, soon.key_pem())
        certificates.replace(site.server.cert_path, soon.cert_pem)
        site.await_shown(soon.serial)
    finally:
        site.server.write()
    site.await_shown(site.server.serial)


def test_an_authority_of_clients_changes(site):
    newcomer = site.stranger.sign("newcomer")
    assert site.is_refused(newcomer)
    both = site.authority.cert_pem + site.stranger.trusted_pem
    certificates.replace(site.authority.cert_path, both)
    try:
        site.await_served(newcomer)
        site.expect_served(site.client)
    finally:
        site.authority.write()

    site.await_refused(newcomer)
    site.expect_served(site.client)


def test_a_client_is_revoked(site):
    leaver = site.authority.sign("leaver")
    site.expect_served(leaver)
    site.authority.revoke(site.revocations, site.revoked, leaver)
    site.await_refused(leaver)
    # A list of another authority is refused: the previous one stays in use.
    refused = len(site.daemon.events("certificate_refused"))
    site.stranger.revoke(site.revocations)
    wait_until(
        lambda: len(site.daemon.events("certificate_refused")) > refused, RELOAD_LIMIT_S, "refused"
    )
    assert site.is_refused(leaver)
    site.expect_served(site.client)


@pytest.mark.parametrize("state", ["early", "cut off", "gone"])
def test_a_client_is_revoked_though_the_next_certificate_cannot_be_shown(site, state):
    early = site.authority.sign("next", start=certificates.DAY / 24)
    leaver, newcomer = site.authority.sign("leaver"), site.stranger.sign("newcomer")
    site.expect_served(leaver)
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
        site.await_refused(leaver)
        site.await_served(newcomer)
        site.expect_served(site.client)
        site.await_shown(site.server.serial)
    finally:
        site.server.write()
        site.authority.write()
        site.authority.revoke(site.revocations, site.revoked)
    site.await_served(leaver)


def test_a_certificate_is_shown_though_the_list_of_revocations_is_broken(site):
    fresh = site.authority.sign("fresh")
    list_before = site.revocations.read_bytes()
    try:
        certificates.replace(site.revocations, list_before[:-40])
        certificates.replace(site.server.key_path, fresh.key_pem())
        certificates.replace(site.server.cert_path, fresh.cert_pem)
        site.await_shown(fresh.serial)
        assert site.is_refused(site.revoked)
    finally:
        certificates.replace(site.revocations, list_before)
        site.server.write()
    site.await_shown(site.server.serial)


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
    by_name = f"--address=tls:localhost:{site.endpoints['grpc', 'tls'].port}"
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
        *DAEMON, f"--tls-cert={expired.cert_path}", f"--tls-key={expired.key_path}",
        "--metrics-listen=tls:127.0.0.1:0", listen="tls:127.0.0.1:0",
    )  # fmt: skip
    assert daemon.awaited_events("certificate_not_valid")
    (address,) = daemon.addresses
    refused = run(gemmctl, f"--address={address}", f"--tls-ca={site.authority.cert_path}")
    assert refused.returncode == 3
    with pytest.raises(ssl.SSLError, match="expired"):
        Metrics(site, metrics_page.address(daemon)).get()


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


PAIR = ["--tls-cert={cert}", "--tls-key={key}"]


@pytest.mark.parametrize(
    "flags, reason",
    [
        (["--listen=tls:127.0.0.1:0"], "tls-cert: got none"),
        (["--metrics-listen=tls:127.0.0.1:0"], "tls-cert: got none, want a file, for tls:127.0.0.1:0"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={cert}"], "tls-key: got none"),
        (["--listen=mtls:127.0.0.1:0", *PAIR], "client-ca: got none"),
        (["--metrics-listen=mtls:127.0.0.1:0", *PAIR], "client-ca: got none"),
        (["--listen=127.0.0.1:0", *PAIR], "has an address with tls:"),
        (["--metrics-listen=127.0.0.1:0", *PAIR],
         "neither --listen nor --metrics-listen has an address with tls: or mtls:"),
        (["--metrics-listen=tls:127.0.0.1:0", *PAIR, "--client-ca={cert}"],
         "neither --listen nor --metrics-listen has an address with mtls:"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={other}"], "want the key of"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={locked}"], "without a passphrase"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert={key}", "--tls-key={key}"],
         "want complete certificates in PEM"),
        (["--listen=tls:127.0.0.1:0", "--tls-cert=/", "--tls-key={key}"], "a readable file"),
        (["--listen=tls:127.0.0.1:0", *PAIR, "--client-crl={cert}"], "client-ca: got none"),
        (["--listen=mtls:127.0.0.1:0", *PAIR, "--client-ca={cert}", "--client-crl={cert}"],
         "want complete revocation lists in PEM"),
        (["--metrics-listen=0.0.0.0:0"], "metrics-listen: got 0.0.0.0:0, want a loopback address"),
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
    listen = "" if any(flag.startswith("--listen=") for flag in flags) else None
    daemon = daemons.launch("--devices=cpu", "--cpu-threads=1", *given, listen=listen)
    assert daemon.wait() == 1
    assert reason in daemon.events("stop")[0]["reason"]


def test_what_protects_the_metrics_leaves_other_addresses_as_they_were(daemons):
    """A plain address of the metrics beyond loopback is served if that is allowed."""
    daemon = daemons.start(*DAEMON, "--metrics-listen=0.0.0.0:0", "--insecure-allow-remote")
    port = metrics_page.address(daemon).rpartition(":")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE_S) as answer:
        assert answer.read() == b"ok\n"
