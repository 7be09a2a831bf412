# SPDX-License-Identifier: Apache-2.0
"""Memory for long messages, used again and again.

Memory that is new to a process costs a page fault for each 4 KiB, which takes longer than to copy the 4 KiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np

from gemmd.checks import whole
from gemmd.wire import Buffer

_LONG_BYTES = 64 << 10  # malloc keeps the memory of shorter messages anyway.
_MAX_KEPT_BYTES = 128 << 20
_MAX_KEPT = 16
_LONGEST_LEARNED_BYTES = 31 << 20
_LONG_RESULT_BYTES = 1 << 20
_MAX_RESULT_BYTES = 1 << 30
_MAX_OF_INT = 2**31 - 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # Of glibc's mallopt.

# A bytes object whose contents are not set yet: what C code calls to make one and to fill it.
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.argtypes, _address_of.restype = (ctypes.py_object,), ctypes.c_void_p
_view_of = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_view_of.restype = ctypes.py_object
_PYBUF_WRITE = 0x200


class Messages:
    """Makes messages of pieces, and keeps the memory of the last ones.

    gRPC takes a message as a `bytes` object, and copies it. Once nobody else has the object, a message of the
    same length takes its place; whoever has one keeps it as it is. Any thread may use it, and a forked child too:
    there is no lock.
    """

    def __init__(self) -> None:
        self._kept: deque[list[bytes]] = deque()  # Each alone in a list.
        # What is counted for an object that only such a list has.
        self._idle = _references([_new_bytes(None, _LONG_BYTES)])

    def join(self, pieces: Sequence[Buffer]) -> bytes:
        """The pieces in one message. Other threads run while a long one is copied."""
        sizes = [memoryview(piece).nbytes for piece in pieces]
        size = sum(sizes)
        if size < _LONG_BYTES:
            return b"".join(pieces)
        message = self._take(size)
        into = np.frombuffer(_view_of(_address_of(message), size, _PYBUF_WRITE), np.uint8)
        end = 0
        for piece, count in zip(pieces, sizes, strict=True):
            begin, end = end, end + count
            np.copyto(into[begin:end], np.frombuffer(piece, np.uint8))
        self._keep(message)
        return message

    def forget(self) -> None:
        """Keeps none of the messages so far."""
        self._kept.clear()

    def _take(self, size: int) -> bytes:
        for _ in range(len(self._kept)):
            try:
                kept = self._kept.popleft()
            except IndexError:  # Other threads have taken them.
                break
            if len(kept[0]) == size and _references(kept) == self._idle:
                return kept[0]
            self._kept.append(kept)
        return _new_bytes(None, size)

    def _keep(self, message: bytes) -> None:
        self._kept.append([message])
        kept = self._kept.copy()
        left = sum(len(each[0]) for each in kept)
        while left > _MAX_KEPT_BYTES or len(kept) > _MAX_KEPT:
            left -= len(kept.popleft()[0])
            with contextlib.suppress(IndexError):
                self._kept.popleft()


def _references(kept: list[bytes]) -> int:
    return sys.getrefcount(kept[0])


class Results:
    """Memory for what long calls bring, which its user has for as long as an array of it lives.

    What nobody has any more is kept for the next one of the same length. Until then the system may take its pages,
    without writing them anywhere, as soon as it has no others (Linux: MADV_FREE). Any thread may use it.
    """

    def __init__(self) -> None:
        self._kept: deque[mmap.mmap] = deque()

    def take(self, size: int) -> np.ndarray:
        """An array of so many bytes, whose contents are not set."""
        if size < _LONG_RESULT_BYTES or not hasattr(mmap, "MADV_FREE"):
            return np.empty(size, np.uint8)
        pages = self._take(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        array = np.frombuffer(pages, np.uint8, size)
        # Each view of it, and each view of that, has it as its base.
        weakref.finalize(array, self._keep, pages).atexit = False
        return array

    def forget(self) -> None:
        """Keeps none of the memory so far."""
        self._kept.clear()

    def _take(self, size: int) -> mmap.mmap:
        for _ in range(len(self._kept)):
            try:
                pages = self._kept.popleft()
            except IndexError:  # Other threads have taken them.
                break
            if len(pages) == size:
                return pages
            self._kept.append(pages)
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # A huge page costs one fault; some systems have none.
            pages.madvise(mmap.MADV_HUGEPAGE)
        return pages

    def _keep(self, pages: mmap.mmap) -> None:
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_FREE)
            self._kept.append(pages)
        while sum(map(len, self._kept.copy())) > _MAX_RESULT_BYTES:
            with contextlib.suppress(IndexError):
                self._kept.popleft()


messages = Messages()
results = Results()


def teach_malloc() -> None:
    """Has malloc keep blocks of up to 31 MiB when they are freed, such as those that gRPC takes for each chunk of a
    tensor: glibc maps fresh memory for a block that is longer than all that were freed so far."""
    np.empty(_LONGEST_LEARNED_BYTES, np.uint8)


def keep_memory(max_bytes: int = 1 << 30) -> bool:
    """Has malloc keep blocks of up to `max_bytes` when they are freed, for the next array or message of this process,
    be it gRPC's, NumPy's or anybody else's. The process keeps up to twice `max_bytes` so.

    Without it each product of 64 MiB costs gRPC 64 MiB of fresh memory. False where the C library is not glibc,
    which then does as before.
    """
    max_bytes = whole("max_bytes", max_bytes, 0, _MAX_OF_INT)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # Other C libraries lack it, and Windows has no such handle.
        return False
    kept = min(2 * max_bytes, _MAX_OF_INT)
    return bool(mallopt(_M_MMAP_THRESHOLD, max_bytes) and mallopt(_M_TRIM_THRESHOLD, kept))
