# SPDX-License-Identifier: Apache-2.0
"""The memory of messages: reused once nobody holds it, and never before."""

import resource
import subprocess
import sys
import threading

import gemmd
import numpy as np
import pytest
from gemmd import memory
from gemmd.memory import Messages
from gemmd.product import build_request
from gemmd.transfer import OutgoingChunk, serialize_put
from gemmd.v1 import resident_pb2

LONG = 1 << 20


def join(messages, value, size=LONG):
    return messages.join([b"head", np.full(size, value, np.uint8).data])


def is_whole(message, value, size=LONG):
    return message[:4] == b"head" and message[4:] == bytes([value]) * size


@pytest.mark.parametrize("size", [0, 1, memory._LONG_BYTES - 4, memory._LONG_BYTES, LONG + 3])
def test_pieces_of_every_kind(size, numbers):
    data = numbers.integers(0, 256, size, np.uint8)
    pieces = [b"a", bytearray(b"bc"), data.data, b"", memoryview(b"d")]
    assert Messages().join(pieces) == b"abc" + data.tobytes() + b"d"


def test_memory_is_used_again(numbers):
    messages = Messages()
    first = join(messages, 1)
    where = id(first)
    del first
    # Other memory of this size stays in use meanwhile.
    other = bytearray(LONG)
    second = join(messages, 2)
    assert id(second) == where and is_whole(second, 2)
    assert len(other) == LONG


def test_what_somebody_has_stays():
    messages = Messages()
    held = [join(messages, value) for value in range(4)]
    view = memoryview(join(messages, 4))
    array = np.frombuffer(join(messages, 5), np.uint8)
    for value in range(6, 20):
        assert is_whole(join(messages, value), value)
    for value, message in enumerate(held):
        assert is_whole(message, value)
    assert is_whole(bytes(view), 4) and is_whole(array.tobytes(), 5)


def test_only_the_same_length_takes_its_place():
    messages = Messages()
    where = id(join(messages, 1))
    assert is_whole(join(messages, 2, LONG - 1), 2, LONG - 1)
    assert is_whole(join(messages, 3, LONG + 1), 3, LONG + 1)
    assert id(join(messages, 4)) == where


def test_what_is_kept_has_bounds(monkeypatch):
    messages = Messages()
    for size in range(LONG, LONG + 100):
        join(messages, 1, size)
    assert len(messages._kept) == memory._MAX_KEPT
    monkeypatch.setattr(memory, "_MAX_KEPT_BYTES", 3 * LONG)
    for size in range(LONG, LONG + 10):
        join(messages, 1, size)
    assert sum(len(kept[0]) for kept in messages._kept) <= 3 * LONG
    join(messages, 1, 4 * LONG)
    assert not messages._kept
    join(messages, 1)
    messages.forget()
    assert not messages._kept


def test_threads_never_share_a_message():
    messages = Messages()
    wrong = []

    def work(value):
        held = []
        for turn in range(50):
            held.append(join(messages, value + turn % 5, LONG // 8))
            if not all(message[4:5] == message[-1:] for message in held):
                wrong.append(value)
            held = held[-(value % 3) :] if value % 3 else []

    threads = [threading.Thread(target=work, args=(10 * value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_request_and_a_chunk_take_the_memory_of_the_last(numbers):
    a = numbers.random((512, 512), np.float32)
    where = id(build_request(a, a, {}).serialize())
    request = build_request(a + 1, a, {})
    message = request.serialize()
    assert id(message) == where
    # The operands are copied once: until then the request has only views of them.
    views = [np.frombuffer(piece, np.uint8) for piece in request.pieces() if len(piece) == a.nbytes]
    assert [np.shares_memory(view, a) for view in views] == [False, True]
    where = id(serialize_put(OutgoingChunk(2 * LONG, a.data)))
    chunk = serialize_put(OutgoingChunk(3 * LONG, (a + 2).data))
    assert id(chunk) == where
    parsed = resident_pb2.PutRequest.FromString(chunk).chunk
    assert parsed.offset == 3 * LONG and parsed.data == (a + 2).tobytes()


def test_a_client_gives_it_back(daemon):
    array = np.ones((512, 512), np.float32)
    with gemmd.Client(daemon.tcp) as client:
        client.matmul(array, array)
        assert memory.messages._kept
    assert not memory.messages._kept


def test_results_are_the_users_own(client, numbers):
    """Memory that a user holds stays unchanged while the client continues."""
    a = numbers.integers(-4, 4, (256, 256)).astype(np.float32)
    held = [(client.matmul(a, a + n, writable=bool(n % 2)), a @ (a + n)) for n in range(6)]
    kept = client.put(a)
    got = [kept.get() for _ in range(3)]
    got[0][:] = 7
    assert all(np.array_equal(seen, want) for seen, want in held)
    assert np.array_equal(got[1], a) and np.array_equal(got[2], a)


# Counts the page faults of a step that allocates and frees what equal steps before it allocated and
# freed. The first of them writes only half of it: the system provides zeros.
COUNTING = """
import resource
from gemmd.memory import {call} as prepare

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    bytes({size}).translate(None)

prepare({argument})
step()
step()
before = faults()
step()
print(faults() - before)
"""


def faults_of(stubs, call, argument, size):
    program = COUNTING.format(call=call, argument=argument, size=size)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": stubs}
    ended = subprocess.run(
        [sys.executable, "-B", "-c", program], check=True, capture_output=True, text=True, env=environment
    )
    return int(ended.stdout)


def test_malloc_keeps_what_it_was_told_to(pytestconfig):
    size = 96 << 20
    pages = 2 * size // resource.getpagesize()
    assert faults_of(pytestconfig.stubs, "teach_malloc", "", size) >= pages // 2
    assert faults_of(pytestconfig.stubs, "keep_memory", 1 << 30, size) < pages // 50


def test_malloc_learns_the_size_of_chunks(pytestconfig):
    size = 8 << 20
    assert faults_of(pytestconfig.stubs, "teach_malloc", "", size) < 2 * size // resource.getpagesize() // 50


@pytest.mark.parametrize("value", [-1, 2**31, 1.5, "1", None, True])
def test_keep_memory_refuses_what_is_no_size(value):
    with pytest.raises(gemmd.InvalidArgument, match="max_bytes: got"):
        gemmd.keep_memory(value)
