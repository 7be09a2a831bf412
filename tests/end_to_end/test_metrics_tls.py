# SPDX-License-Identifier: Apache-2.0
"""Metrics and probes over TLS and mutual TLS, and the treatment of clients that may not read
them."""

import contextlib
import socket
import ssl
import threading
import urllib.error
import urllib.request

import certificates
import metrics_page
import pytest
from daemon import wait_until

LIMIT_S = 60
REFUSED = (ssl.SSLError, ConnectionError, urllib.error.URLError)


class Site(certificates.World):
    """Two daemons with the same files: the metrics of one require no certificate, those of the
    other do."""

    def __init__(self, daemons, folder):
        super().__init__(folder)
        self.daemons = {
            kind: daemons.start(
                "--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms",
                f"--metrics-listen={kind}:127.0.0.1:0", *flags,
                listen="127.0.0.1:0",
            )
            for kind, flags in (("tls", self.flags), ("mtls", self.flags + self.flags_for_clients))
        }  # fmt: skip

    def address(self, kind):
        address = metrics_page.address(self.daemons[kind])
        assert address.startswith(f"{kind}:127.0.0.1:")
        return address.removeprefix(f"{kind}:")

    def connect(self, kind):
        host, port = self.address(kind).split(":")
        return socket.create_connection((host, int(port)), timeout=LIMIT_S)

    def context(self, pair=None):
        context = ssl.create_default_context(cadata=self.authority.cert_pem.decode())
        if pair:
            context.load_cert_chain(pair.cert_path, pair.key_path)
        return context

    def get(self, kind, path="/metrics", pair=None):
        url = f"https://{self.address(kind)}{path}"
        with urllib.request.urlopen(url, timeout=LIMIT_S, context=self.context(pair)) as answer:
            return answer.read().decode()


@pytest.fixture(scope="module")
def site(gemmd, tmp_path_factory):
    from fixtures import Daemons

    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    yield Site(daemons, tmp_path_factory.mktemp("certificates"))
    daemons.end()


def is_served(site, kind, pair=None):
    return "\ngemmd_build_info{" in site.get(kind, pair=pair)


def is_kept_out(site, pair):
    with contextlib.suppress(*REFUSED):
        return not is_served(site, "mtls", pair)
    return True


def test_those_who_may_read_everything(site):
    for path, beginning in (("/metrics", "# HELP"), ("/metrics/triton", "# HELP"), ("/healthz", "ok")):
        assert site.get("tls", path).startswith(beginning)
        assert site.get("mtls", path, site.client).startswith(beginning)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        site.get("tls", "/other")


@pytest.mark.parametrize("who", certificates.STRANGERS)
def test_mutual_tls_keeps_out(site, who):
    pair = certificates.STRANGERS[who](site)
    with pytest.raises(REFUSED):
        site.get("mtls", pair=pair)
    assert is_served(site, "mtls", site.client)


def test_a_refused_client_is_told_why(site):
    """By an alert, and not by a reset without a reason."""
    with site.connect("mtls") as plain:
        with site.context(site.revoked).wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            with pytest.raises(ssl.SSLError, match="(?i)revoked"):
                secure.recv(1)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2"])
def test_no_version_before_tls_1_3_is_spoken(site, version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, version)
    with site.connect("tls") as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(plain)


def test_plain_text_and_tls_do_not_meet(site):
    with pytest.raises((OSError, urllib.error.URLError)):
        urllib.request.urlopen(f"http://{site.address('tls')}/metrics", timeout=LIMIT_S)
    assert is_served(site, "tls")


@pytest.mark.parametrize("kind", ["tls", "mtls"])
def test_a_crowd_of_bad_peers_holds_up_nobody(site, kind):
    """More peers than places: silent ones, ones that stop in the middle of a handshake, ones that
    send something else, and ones that finish the handshake and are then silent."""
    begun = b"\x16\x03\x01\x02\x00\x01\x00"  # A record of 512 bytes, which never come.
    with contextlib.ExitStack() as stack:
        for number in range(48):
            peer = stack.enter_context(contextlib.closing(site.connect(kind)))
            with contextlib.suppress(*REFUSED):
                match number % 4:
                    case 1:
                        peer.sendall(begun[: 1 + number % 6])
                    case 2:
                        peer.sendall(bytes(number) * 1000)
                    case 3:
                        context = site.context(site.client)
                        secure = context.wrap_socket(peer, server_hostname="127.0.0.1")
                        stack.enter_context(contextlib.closing(secure))
            if number % 8 == 7:
                assert is_served(site, kind, site.client)


def shown_serial(site, kind):
    with site.connect(kind) as plain:
        context = site.context(site.client)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            shown = secure.getpeercert(binary_form=True)
    return certificates.x509.load_der_x509_certificate(shown).serial_number


class Scraper:
    """Scrapes without a pause."""

    def __init__(self, site, kind):
        self.errors, self.scrapes = [], 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(site, kind))
        self._thread.start()

    def _run(self, site, kind):
        while not self._is_over.is_set():
            try:
                assert is_served(site, kind, site.client)
                self.scrapes += 1
            except Exception as error:  # The test reports any error.
                self.errors.append(error)

    def end(self):
        self._is_over.set()
        self._thread.join()


def test_certificates_change_and_no_scrape_fails(site):
    old, fresh = site.server.serial, site.authority.sign("fresh")
    scrapers = [Scraper(site, kind) for kind in site.daemons]
    try:
        for round_number in range(3):
            certificates.replace(site.server.cert_path, fresh.cert_pem)
            certificates.replace(site.server.key_path, fresh.key_pem())
            for kind in site.daemons:
                wait_until(lambda k=kind: shown_serial(site, k) == fresh.serial, LIMIT_S, "the new one")
            site.server.write()
            for kind in site.daemons:
                wait_until(lambda k=kind: shown_serial(site, k) == old, LIMIT_S, "the old one")
            done = [scraper.scrapes for scraper in scrapers]
            wait_until(
                lambda: all(s.scrapes > d for s, d in zip(scrapers, done)), LIMIT_S, "scrapes after it"
            )
    finally:
        for scraper in scrapers:
            scraper.end()
        site.server.write()
    assert [scraper.errors for scraper in scrapers] == [[], []]


def test_a_client_is_revoked_and_an_authority_changes(site):
    leaver, newcomer = site.authority.sign("leaver"), site.stranger.sign("newcomer")
    assert is_served(site, "mtls", leaver)
    assert is_kept_out(site, newcomer)
    site.authority.revoke(site.revocations, site.revoked, leaver)
    both = site.authority.cert_pem + site.stranger.cert_pem
    certificates.replace(site.authority.cert_path, both)
    try:
        wait_until(lambda: is_kept_out(site, leaver), LIMIT_S, "the leaver kept out")
        wait_until(lambda: not is_kept_out(site, newcomer), LIMIT_S, "the newcomer let in")
    finally:
        site.authority.write()
    wait_until(lambda: is_kept_out(site, newcomer), LIMIT_S, "the newcomer kept out")
    assert is_served(site, "mtls", site.client)


@pytest.mark.parametrize(
    "flags, reason",
    [
        (["--metrics-listen=tls:127.0.0.1:0"], "tls-cert: got none, want a file, for tls:127.0.0.1:0"),
        (["--metrics-listen=mtls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={key}"],
         "client-ca: got none"),
        (["--metrics-listen=127.0.0.1:0", "--tls-cert={cert}", "--tls-key={key}"],
         "neither --listen nor --metrics-listen has an address with tls: or mtls:"),
        (["--metrics-listen=tls:127.0.0.1:0", "--tls-cert={cert}", "--tls-key={key}", "--client-ca={cert}"],
         "neither --listen nor --metrics-listen has an address with mtls:"),
        (["--metrics-listen=0.0.0.0:0"], "metrics-listen: got 0.0.0.0:0, want a loopback address"),
    ],
)  # fmt: skip
def test_the_daemon_does_not_start(site, daemons, flags, reason):
    names = {"cert": site.server.cert_path, "key": site.server.key_path}
    given = [flag.format(**names) for flag in flags]
    daemon = daemons.launch("--devices=cpu", "--cpu-threads=1", *given)
    assert daemon.wait() == 1
    assert reason in daemon.events("stop")[0]["reason"]


def test_what_protects_the_metrics_leaves_other_addresses_as_they_were(site, daemons):
    """A plain address of the metrics beyond loopback is served if that is allowed."""
    daemon = daemons.start(
        "--devices=cpu", "--cpu-threads=1", "--lame-duck=1ms",
        "--metrics-listen=0.0.0.0:0", "--insecure-allow-remote",
    )  # fmt: skip
    port = metrics_page.address(daemon).rpartition(":")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=LIMIT_S) as answer:
        assert answer.read() == b"ok\n"
