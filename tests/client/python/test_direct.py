# SPDX-License-Identifier: Apache-2.0
"""Long calls without grpcio: their results and errors, their memory, and peers that behave in ways
that only grpcio understands."""

import contextlib
import resource
import socket
import struct
import threading

import gemmd
import numpy as np
import pytest
from daemon import wait_until
from gemmd import direct
from gemmd.channel import Deadline, Settings
from gemmd.memory import Results
from gemmd.product import build_request
from gemmd.v1 import gemm_pb2, tensors_pb2

GEMMD_FLAGS = ["--devices=cpu"]
MIB = 1 << 20
PATIENCE_S = 20
PATH = "/gemmd.v1.Gemm/Multiply"


def pair(numbers, m, k, n):
    return (numbers.integers(-4, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))


def keep_from_grpcio(client):
    """No product of this client may use grpcio."""
    client._calls[PATH] = None


@pytest.mark.parametrize("where", ["tcp", "unix"])
@pytest.mark.parametrize("shape", [(1024, 256, 8), (8, 3, 70000), (600, 700, 800)])
def test_long_products(daemon, numbers, where, shape):
    a, b = pair(numbers, *shape)
    with gemmd.Client(getattr(daemon, where)) as client:
        keep_from_grpcio(client)
        for turn in range(3):
            d = client.matmul(a + turn, b, bias=np.ones(shape[2], np.float32))
            assert np.array_equal(d, (a + turn) @ b + 1)
            # It stays where it was received.
            assert d.flags.aligned and d.flags.writeable and not d.flags.owndata
        metadata = [("x-any", "value"), ("x-bin", b"\xff")]
        product = client.multiply(a, b, request_id="mine", device="cpu", metadata=metadata)
        assert (product.request_id, product.device) == ("mine", "cpu")
        out = np.empty((shape[2], shape[0]), np.float32).T
        assert client.matmul(a, b, out=out) is out
        assert np.array_equal(out, a @ b)
        assert len(client._direct._idle) == 1


def test_refusals(client, numbers):
    keep_from_grpcio(client)
    a, b = pair(numbers, 600, 700, 800)
    for _ in range(2):
        with pytest.raises(gemmd.NotFound) as refused:
            client.matmul(a, b, device="cuda:9")
        assert refused.value.field == "device"
    assert len(client._direct._idle) == 1
    with pytest.raises(gemmd.DeadlineExceeded):
        client.matmul(a, b, timeout=1e-4)
    assert np.array_equal(client.matmul(a, b), a @ b)


def test_answers_have_a_limit(daemon):
    a = np.ones((600, 1), np.float32)
    with gemmd.Client(daemon.tcp, max_message_bytes=MIB) as client:
        with pytest.raises(gemmd.ResourceExhausted, match="max_message_bytes"):
            client.matmul(a, a.T)
        assert client.matmul(a[:8], a.T).shape == (8, 600)


def test_what_grpcio_alone_does(daemon, numbers):
    a, b = pair(numbers, 600, 700, 800)
    for settings in ({"max_attempts": 1}, {"channel_options": [("grpc.lb_policy_name", "pick_first")]}):
        with gemmd.Client(daemon.tcp, **settings) as client:
            assert np.array_equal(client.matmul(a, b), a @ b)
            assert not client._direct._idle


def test_many_threads(client, numbers):
    a, b = pair(numbers, 600, 200, 500)
    want, wrong = a @ b, []

    def work():
        for _ in range(5):
            if not np.array_equal(client.matmul(a, b), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(direct._MAX_CONNECTIONS + 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not client._direct._used and len(client._direct._idle) <= direct._MAX_CONNECTIONS


def test_tensors_come_past_grpcio(client, numbers, monkeypatch):
    array = numbers.integers(0, 256, (40, MIB), np.uint8)
    tensor = client.put(array)
    parsed = []
    parse_get = gemmd.moving.parse_get
    monkeypatch.setattr(gemmd.moving, "parse_get", lambda message: parsed.append(len(message)) or parse_get(message))
    for connections in (1, 3):
        assert np.array_equal(tensor.get(connections=connections), array)
    assert np.array_equal(tensor[7:9].get(), array[7:9])
    assert parsed and max(parsed) < 4096  # Chunks were received into their final place.
    # Also those of a server that writes a field after the bytes.
    monkeypatch.undo()
    monkeypatch.setattr(gemmd.moving, "chunk_of", lambda *_: None)
    assert np.array_equal(tensor.get(), array)


def test_memory_is_used_again(client, numbers):
    a, b = pair(numbers, 4096, 1, 4096)
    wide, tall = pair(numbers, 4, 4 * MIB, 1)
    tensor = client.put(wide)
    for call in (lambda: client.matmul(a, b), lambda: client.matmul(wide, tall), tensor.get):
        call(), call()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        call()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 64 * MIB // resource.getpagesize() // 20


def test_results_belong_to_who_has_them(monkeypatch):
    results = Results()
    first = results.take(2 * MIB)
    first[:] = 1
    view = first[5:].view(np.uint8).reshape(1, -1)
    del first
    second = results.take(2 * MIB)
    second[:] = 2
    assert view.min() == view.max() == 1
    where = view.ctypes.data - 5
    del view
    third = results.take(2 * MIB)
    third[:] = 3
    assert third.ctypes.data == where and second.min() == second.max() == 2
    del second, third
    monkeypatch.setattr("gemmd.memory._MAX_RESULT_BYTES", 3 * MIB)
    held = [results.take(size * MIB) for size in (1, 2, 3, 1, 4)]
    del held
    assert sum(map(len, results._kept)) <= 3 * MIB
    results.forget()
    assert not results._kept


class Peer:
    """Answers a call on each connection with bytes, and sends no more. With `stays`, it does not
    announce the end."""

    def __init__(self, *answers, stays=False):
        self._answers = answers
        self._stays = stays
        self.connections = 0
        self.received = b""
        self._peer = socket.socket()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.settings = Settings("127.0.0.1:%d" % self._listener.getsockname()[1], max_message_bytes=MIB)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A call that has failed may have left its connection open.
        for one in (self._listener, self._peer):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self):
        with contextlib.suppress(OSError):
            for answer in self._answers:
                while not self._answer(answer):
                    pass

    def _answer(self, answer):
        """Whether a connection had a request. Clients of other tests may try a port that their server had before."""
        self._peer, _ = self._listener.accept()
        self.received = b""
        with self._peer as peer, contextlib.suppress(OSError):
            while not is_request(self.received):
                data = peer.recv(1 << 16)
                if not data:
                    return False
                self.received += data
            self.connections += 1
            peer.sendall(answer)
            if not self._stays:
                peer.shutdown(socket.SHUT_WR)
            while data := peer.recv(1 << 16):
                self.received += data
        return is_request(self.received)


def is_request(received):
    """Whether the bytes contain a whole request."""
    at = 24
    while at + 9 <= len(received):
        size, kind, flags = int.from_bytes(received[at : at + 3]), received[at + 3], received[at + 4]
        at += 9 + size
        if kind == direct._DATA and flags & direct._END_STREAM:
            return at <= len(received)
    return False


def frame(kind, flags=0, payload=b"", stream=1):
    return direct._frame(kind, flags, stream, payload)


REQUEST = build_request(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), {})
D = np.arange(4, dtype=np.float32)
RESPONSE = gemm_pb2.MultiplyResponse(kernel="any")
RESPONSE.d.data, RESPONSE.d.type = D.tobytes(), tensors_pb2.ELEMENT_TYPE_F32
RESPONSE.d.order = tensors_pb2.ORDER_ROW_MAJOR
RESPONSE.d.batch, RESPONSE.d.rows, RESPONSE.d.columns = 1, 2, 2
MESSAGE = RESPONSE.SerializeToString()
HEADERS = frame(direct._HEADERS, 4, b"\x88" + direct._header("content-type", "application/grpc"))
DATA = frame(direct._DATA, 0, struct.pack(">BI", 0, len(MESSAGE)) + MESSAGE)
PING = frame(direct._PING, 0, b"12345678", stream=0)


def trailers(status, *more):
    return frame(direct._HEADERS, 5, b"".join(direct._header(*f) for f in (("grpc-status", status), *more)))


GOOD = frame(direct._SETTINGS, 0, struct.pack(">HI", 4, 1 << 20), stream=0) + PING + HEADERS + DATA + trailers("0")


def multiply(pool):
    deadline = Deadline(PATIENCE_S)
    with pool.connection(deadline) as connection:
        return direct.multiply(connection, PATH, REQUEST, [], deadline)


def in_frames(message, size):
    whole = struct.pack(">BI", 0, len(message)) + message
    return b"".join(frame(direct._DATA, 0, whole[at : at + size]) for at in range(0, len(whole), size))


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        HEADERS + in_frames(MESSAGE, 1) + trailers("0"),
        HEADERS + frame(direct._DATA) + in_frames(MESSAGE, 7) + PING + trailers("0", ("x", "y")),
        # A table size update, values of the static table, and a compressed value that is not
        # needed.
        frame(direct._HEADERS, 4, b"\x20\x88\x5f\x10application/grpc\x0f\x0d\x81\x00") + DATA + trailers("0"),
        GOOD + frame(direct._RST_STREAM, 0, bytes(4)),
        HEADERS + DATA + frame(99, 0, b"unknown") + trailers("0"),
        frame(direct._GOAWAY, 0, struct.pack(">II", 2**31 - 1, 0), stream=0) + HEADERS + DATA + trailers("0"),
    ],
)
def test_answers(answer):
    with Peer(answer) as peer:
        pool = direct.Pool(peer.settings)
        product = REQUEST.result(multiply(pool))
        assert product.kernel == "any" and np.array_equal(product.array, D.reshape(2, 2))
        pool.close()


LOST = [
    b"",
    HEADERS,
    HEADERS + DATA,
    HEADERS + DATA[:-3],
    HEADERS + in_frames(MESSAGE, 9)[:18] + trailers("0"),
    HEADERS + trailers("14"),
    HEADERS + trailers("12"),
    HEADERS + frame(direct._RST_STREAM, 0, bytes(4)),
    frame(direct._GOAWAY, 0, bytes(8), stream=0),
]
UNKNOWN = [
    frame(direct._HEADERS, 4, b"\xc0") + DATA + trailers("0"),  # A header of the dynamic table.
    frame(direct._HEADERS, 4, b"\x00\x81\x00\x00"),  # A compressed name.
    frame(direct._HEADERS, 4, b"\x00\x7f"),
    frame(direct._HEADERS, 0, b"\x88"),
    frame(direct._HEADERS, 12, b"\x00\x88"),
    frame(direct._HEADERS, 5, b"\x8d"),  # Not found.
    HEADERS + trailers("x"),
    HEADERS + trailers("0"),
    HEADERS + DATA + DATA + trailers("0"),
    HEADERS + frame(direct._DATA, 8, b"\x00") + trailers("0"),
    HEADERS + frame(direct._DATA, 0, b"\x01\x00\x00\x00\x00") + trailers("0"),
    frame(direct._SETTINGS, 0, b"1", stream=0),
    frame(99, 0, bytes(direct._MAX_CONTROL_BYTES + 1)),
]


@pytest.mark.parametrize(("answer", "is_off"), [*((each, False) for each in LOST), *((each, True) for each in UNKNOWN)])
def test_calls_that_are_grpcios(answer, is_off):
    with Peer(answer, GOOD) as peer:
        pool = direct.Pool(peer.settings)
        with pytest.raises(direct.Unusable):
            multiply(pool)
        assert not pool._idle and not pool._used
        if is_off:  # Later calls use grpcio, too.
            with pytest.raises(direct.Lost):
                multiply(pool)
            assert peer.connections == 1
        else:
            assert np.array_equal(REQUEST.result(multiply(pool)).array, D.reshape(2, 2))
        pool.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (HEADERS + trailers("3", ("grpc-message", "a: got %C3%A9, want b")), gemmd.InvalidArgument),
        (frame(direct._HEADERS, 5, b"\x88" + direct._header("grpc-status", "8")), gemmd.ResourceExhausted),
        (HEADERS + frame(direct._DATA, 0, struct.pack(">BI", 0, MIB + 1)), gemmd.ResourceExhausted),
        (HEADERS + in_frames(b"\x0b", 9) + trailers("0"), gemmd.Internal),
        (HEADERS + in_frames(MESSAGE[:-1], 99) + trailers("0"), gemmd.Internal),
    ],
)
def test_errors(answer, kind):
    with Peer(answer) as peer:
        pool = direct.Pool(peer.settings)
        with pytest.raises(kind) as raised:
            multiply(pool)
        assert kind is not gemmd.InvalidArgument or raised.value.got == "\xe9"
        pool.close()


def test_answers_that_are_damaged(numbers):
    answers = []
    for _ in range(300):
        damaged = bytearray(GOOD)
        for _ in range(numbers.integers(1, 4)):
            damaged[numbers.integers(len(GOOD))] = numbers.integers(256)
        answers.append(bytes(damaged[: numbers.integers(1, len(GOOD) + 1)]))
    with Peer(*answers) as peer:
        for _ in answers:
            with contextlib.suppress(direct.Unusable, gemmd.Error):
                pool = direct.Pool(peer.settings)
                multiply(pool)
            pool.close()
        assert peer.connections == len(answers)


def test_idle_connections_answer():
    """A draining server waits for that."""
    with Peer(HEADERS + DATA + trailers("0") + PING, stays=True) as peer:
        pool = direct.Pool(peer.settings)
        multiply(pool)
        want = frame(direct._PING, direct._ACK, b"12345678", stream=0)
        wait_until(lambda: want in peer.received, PATIENCE_S, "an answer to a ping")
        assert len(pool._idle) == 1
        pool.close()


def test_connections_that_stay_idle_end(monkeypatch):
    monkeypatch.setattr(direct, "_MAX_IDLE_S", 0)
    with Peer(HEADERS + DATA + trailers("0") + PING, stays=True) as peer:
        pool = direct.Pool(peer.settings)
        multiply(pool)
        wait_until(lambda: not pool._is_watched, PATIENCE_S, "the end of it")
        assert not pool._idle


def test_the_end_of_a_client_ends_its_calls():
    with Peer(HEADERS, stays=True) as peer:
        pool = direct.Pool(peer.settings)
        ended = []

        def work():
            with pytest.raises(gemmd.Cancelled):
                multiply(pool)
            ended.append(1)

        thread = threading.Thread(target=work)
        thread.start()
        wait_until(lambda: pool._used, PATIENCE_S, "a call under way")
        pool.close()
        thread.join(PATIENCE_S)
        assert ended


def test_a_server_that_falls_silent(monkeypatch):
    monkeypatch.setattr(direct, "_ANSWER_S", 0.05)
    monkeypatch.setattr(direct.Connection, "_notice_loss", lambda *_: None)
    with Peer(HEADERS, stays=True) as peer:
        object.__setattr__(peer.settings, "keepalive_s", 0.05)
        pool = direct.Pool(peer.settings)
        with pytest.raises(direct.Lost):
            multiply(pool)
        wait_until(lambda: frame(direct._PING, 0, bytes(8), stream=0) in peer.received, PATIENCE_S, "a ping")
        pool.close()
