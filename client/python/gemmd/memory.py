# SPDX-License-Identifier: Apache-2.0
"""Reused memory for long messages. Fresh memory costs a page fault per 4 KiB, which takes longer than copying the 4
KiB.
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

_LONG_BYTES = 64 << 10  # malloc reuses the memory of shorter messages anyway.
_MAX_KEPT_BYTES = 128 << 20
_MAX_KEPT = 16
_LONGEST_LEARNED_BYTES = 31 << 20
_LONG_RESULT_BYTES = 1 << 20
_MAX_RESULT_BYTES = 1 << 30
_MAX_OF_INT = 2**31 - 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # Parameters of glibc's mallopt.

# Creates an uninitialized bytes object, as C extensions do before filling it.
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.argtypes, _address_of.restype = (ctypes.py_object,), ctypes.c_void_p
_view_of = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_view_of.restype = ctypes.py_object
_PYBUF_WRITE = 0x200


class Messages:
    """Joins pieces into messages, and reuses the memory of recent ones. gRPC takes a message as a `bytes` object, and
    copies it. Once no other reference to the object exists, a message of the same length overwrites it. Any thread may
    use this object, and so may a forked child: there is no lock.
    """

    def __init__(self) -> None:
        self._kept: deque[list[bytes]] = deque()  # Each in a list of its own.
        # The reference count of an object that only such a list holds.
        self._idle = _references([_new_bytes(None, _LONG_BYTES)])

    def join(self, pieces: Sequence[Buffer]) -> bytes:
        """Joins the pieces into one message. Releases the GIL while copying long pieces."""
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
        """Drops all kept messages."""
        self._kept.clear()

    def _take(self, size: int) -> bytes:
        for _ in range(len(self._kept)):
            try:
                kept = self._kept.popleft()
            except IndexError:  # Other threads took them.
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
    """Memory for the results of long calls, in use while any array of it lives. After that, it is kept for the next
    result of the same length; meanwhile the system may reclaim its pages under memory pressure (Linux: MADV_FREE). Any
    thread may use this object.
    """

    def __init__(self) -> None:
        self._kept: deque[mmap.mmap] = deque()

    def take(self, size: int) -> np.ndarray:
        """An uninitialized array of `size` bytes."""
        if size < _LONG_RESULT_BYTES or not hasattr(mmap, "MADV_FREE"):
            return np.empty(size, np.uint8)
        pages = self._take(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        array = np.frombuffer(pages, np.uint8, size)
        # It is the base of all its views, and of their views.
        weakref.finalize(array, self._keep, pages).atexit = False
        return array

    def forget(self) -> None:
        """Drops all kept memory."""
        self._kept.clear()

    def _take(self, size: int) -> mmap.mmap:
        for _ in range(len(self._kept)):
            try:
                pages = self._kept.popleft()
            except IndexError:  # Other threads took them.
                break
            if len(pages) == size:
                return pages
            self._kept.append(pages)
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # A huge page costs one fault; some systems lack them.
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
    """Makes malloc keep freed blocks of up to 31 MiB, such as gRPC's for each chunk of a tensor: by default, glibc maps
    fresh memory for a block longer than all blocks freed so far."""
    np.empty(_LONGEST_LEARNED_BYTES, np.uint8)


def keep_memory(max_bytes: int = 1 << 30) -> bool:
    """Makes malloc keep freed blocks of up to `max_bytes` for the next allocation of this process, whether by gRPC,
    NumPy or other code. The process keeps up to twice `max_bytes`. Without this, each product of 64 MiB costs gRPC 64
    MiB of fresh memory. Returns False, without effect, if the C library is not glibc.
    """
    max_bytes = whole("max_bytes", max_bytes, 0, _MAX_OF_INT)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # Other C libraries lack it, and Windows has no such handle.
        return False
    kept = min(2 * max_bytes, _MAX_OF_INT)
    return bool(mallopt(_M_MMAP_THRESHOLD, max_bytes) and mallopt(_M_TRIM_THRESHOLD, kept))
