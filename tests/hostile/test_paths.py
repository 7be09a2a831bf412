# SPDX-License-Identifier: Apache-2.0
"""Paths in other forms than those of the methods. The gate compares beginnings of paths, and gRPC whole paths, so a
form that the one took for another method than the other would be a way around the rules."""

import metrics_page
import pytest
from callers import EVERYTHING, Trust, bearer
from daemon import PATIENCE_S, wait_until
from http2_peer import message
from raw_peer import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, RawPeer, frame
from served_methods import method_paths

OPEN = b"/grpc.health.v1.Health/Check"
OPEN_OF_KSERVE = b"/inference.GRPCInferenceService/ServerLive"
PERMITTED = b"/gemmd.v1.Registry/GetServerInfo"
UNKNOWN, PERMISSION_DENIED, UNIMPLEMENTED = 2, 7, 12


def forms(path):
    """Values of :path, by name. Those of one form are sent in one call."""
    service, method = path[1:].split(b"/")
    yield "as it is", [path]
    yield "without a slash", [path[1:]]
    yield "two slashes before", [b"/" + path]
    yield "two slashes within", [b"/" + service + b"//" + method]
    yield "a slash behind", [path + b"/"]
    yield "many slashes behind", [path + 200 * b"/"]
    yield "backslashes", [path.replace(b"/", b"\\")]
    yield "a backslash within", [b"/" + service + b"\\" + method]
    yield "a percent-encoded letter", [b"/" + service + b"/%%%02X" % method[0] + method[1:]]
    yield "a percent-encoded letter of the service", [b"/%%%02x" % service[0] + service[1:] + b"/" + method]
    yield "a percent-encoded slash within", [b"/" + service + b"%2F" + method]
    yield "a percent-encoded slash before", [b"%2f" + path[1:]]
    yield "percent-encoded twice", [b"/" + service + b"%252F" + method]
    yield "a percent-encoded NUL behind", [path + b"%00"]
    yield "an overlong slash", [b"/" + service + b"\xc0\xaf" + method]
    yield "a query", [path + b"?x=1"]
    yield "an empty query", [path + b"?"]
    yield "a query of what is open", [OPEN + b"?" + path]
    yield "a fragment", [path + b"#x"]
    yield "a fragment of what is open", [OPEN + b"#" + path]
    yield "a parameter", [path + b";x=1"]
    yield "upper case", [path.upper()]
    yield "lower case", [path.lower()]
    yield "an upper-case service", [b"/" + service.upper() + b"/" + method]
    yield "a NUL behind", [path + b"\0"]
    yield "a NUL before", [b"\0" + path]
    yield "a NUL within", [b"/" + service + b"/\0" + method]
    yield "what is open behind a NUL", [path + b"\0" + OPEN]
    yield "behind what is open and a NUL", [OPEN + b"\0" + path]
    yield "a space behind", [path + b" "]
    yield "a space before", [b" " + path]
    yield "a tab behind", [path + b"\t"]
    yield "a line behind", [path + b"\r\n:path: " + OPEN]
    yield "this directory", [b"/." + path]
    yield "this directory within", [b"/" + service + b"/./" + method]
    yield "the directory above", [b"/x/.." + path]
    yield "above what is open", [OPEN + b"/../.." + path]
    yield "above the service that is open", [b"/grpc.health.v1.Health/.." + path]
    yield "above what is open of KServe", [OPEN_OF_KSERVE + b"/../" + method]
    yield "above what is permitted", [PERMITTED + b"/../.." + path]
    yield "behind what is open", [OPEN + path]
    yield "behind the service that is open", [b"/grpc.health.v1.Health" + path]
    yield "behind what is open of KServe", [OPEN_OF_KSERVE + method]
    yield "behind what is permitted", [PERMITTED + path]
    yield "an address", [b"http://localhost" + path]
    yield "a host", [b"//localhost" + path]
    yield "the method alone", [b"/" + method]
    yield "no method", [b"/" + service]
    yield "an empty method", [b"/" + service + b"/"]
    yield "nothing", [b""]
    yield "no path", []
    yield "an asterisk", [b"*"]
    yield "twice", [path, path]
    yield "after what is open", [OPEN, path]
    yield "before what is open", [path, OPEN]
    yield "after what is permitted", [PERMITTED, path]
    yield "before what is permitted", [path, PERMITTED]


def handler_of(path):
    """Its name in the metrics."""
    _, service, method = path.decode().split("/")
    if service.startswith("inference.") and method not in ("ModelInfer", "ModelStreamInfer"):
        return "GRPCInferenceService"
    return method


def handled(daemon):
    """How often each handler has run."""
    page = metrics_page.scrape(daemon)
    return {labels["method"]: count for labels, count in page.with_labels("gemmd_handler_seconds_count")}


class Caller:
    """Calls with a token, on as many connections as the daemon closes."""

    def __init__(self, address, name):
        self._address = address
        self._token = [(name.encode(), value.encode()) for name, value in bearer(name)]
        self._peer = RawPeer(address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._peer.socket.close()

    def begin(self, paths, part=None):
        """The stream of a call. The headers are sent in parts of that many bytes."""
        if self._peer.closed:
            self._peer = RawPeer(self._address)
        peer = self._peer
        stream = peer.next_stream()
        block = peer.fields(paths, self._token)
        parts = [block[i : i + part] for i in range(0, len(block), part)] if part else [block]
        frames = [
            frame(CONTINUATION if i else HEADERS, END_HEADERS if i + 1 == len(parts) else 0, stream, piece)
            for i, piece in enumerate(parts)
        ]
        peer.send(*frames, frame(DATA, END_STREAM, stream, message(b"")))
        return stream

    def call(self, *how):
        """The status; None without one."""
        stream = self.begin(*how)
        return self._peer.wait(stream).status


def is_denied(path):
    """Whether the rules do not let the clerk call the method."""
    _, service, method = path.decode().split("/")
    if service == "gemmd.v1.Registry":
        return method == "GetStatistics"
    return service != "inference.GRPCInferenceService" or method not in (
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelConfig",
        "RepositoryIndex",
    )


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_no_form_of_a_path_passes_the_rules(daemons, battery, tmp_path, kind):
    trust = Trust(tmp_path)
    trust.write({"clerk": {"may": ["registry"]}, "owner": {"may": EVERYTHING}})
    daemon = daemons.start("--devices=cpu", "--metrics-listen=127.0.0.1:0", *trust.flags)
    denied = [path for path in map(str.encode, method_paths()) if is_denied(path)]
    address = daemon.tcp if kind == "tcp" else daemon.unix
    with Caller(address, "clerk") as clerk, Caller(address, "owner") as owner:
        before = handled(daemon)
        calls = 0
        statuses = {}
        for path in denied:
            for name, paths in forms(path):
                statuses.setdefault(name, set()).add(clerk.call(paths))
                calls += 1
            for part in (1 << 4, 1 << 6):
                statuses.setdefault("in pieces", set()).add(clerk.call([path], part))
                calls += 1
        after = handled(daemon)
        names = {handler_of(path) for path in denied}
        reached = sum(after.get(name, 0) - before.get(name, 0) for name in names)
        battery.holds(
            f"paths of what is denied in {len(statuses)} forms over {kind}, {calls} calls: handlers that ran",
            most=0,
            seen=reached,
        )
        for name, seen in statuses.items():
            if len(dict(forms(denied[0])).get(name, [b""])) > 1:  # What is open may be answered.
                continue
            refusals = {PERMISSION_DENIED, UNIMPLEMENTED, None}
            # gRPC 1.51 answers a call without a path itself, later releases ask the gate.
            assert seen <= ({UNKNOWN, PERMISSION_DENIED} if name == "no path" else refusals), (name, seen)
        assert statuses["as it is"] == statuses["in pieces"] == {PERMISSION_DENIED}

        # The control: these are the handlers that would have run.
        for path in denied:
            owner.begin([path])
        def are_counted():
            now = handled(daemon)
            return all(now.get(name, 0) > after.get(name, 0) for name in names)

        wait_until(are_counted, PATIENCE_S, "the owner's calls counted")
