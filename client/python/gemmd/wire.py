# SPDX-License-Identifier: Apache-2.0
"""Serializes and parses messages with long bytes fields, without the copies of message objects. A message object copies
the bytes of a matrix when the field is set and again when serialized. Here protobuf serializes only the small fields,
and the long ones are placed between them: fields may have any order, and a nested message may be split into several
pieces.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """An unsigned number as protobuf writes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@functools.lru_cache(1024)
def head(number: int, size: int) -> bytes:
    """The tag and length before a field of `size` bytes."""
    return varint(number << 3 | _LENGTH) + varint(size)


def nested(outer: int, message: bytes, inner: int, data: memoryview) -> list[Buffer]:
    """The field `outer`, a nested message: serialized except for the bytes of its field `inner`."""
    before = message + head(inner, data.nbytes)
    return [head(outer, len(before) + data.nbytes) + before, data]


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """An unsigned number, and the position after it."""
    value = shift = 0
    while True:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def fields(view: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """The fields of a serialized message: the number, the whole field, and its contents, which are empty unless the
    field is length-prefixed."""
    at = 0
    while at < len(view):
        start = at
        tag, at = read_varint(view, at)
        contents = view[:0]
        match tag & 7:
            case 0:
                _, at = read_varint(view, at)
            case 1:
                at += 8
            case 2:
                size, at = read_varint(view, at)
                contents = view[at : at + size]
                at += size
            case 5:
                at += 4
            case kind:
                raise ValueError(f"a field of kind {kind}")
        if at > len(view):
            raise ValueError("a field that is longer than its message")
        yield tag >> 3, view[start:at], contents


def start_of(view: memoryview, path: Sequence[int]) -> int | None:
    """Where the contents of a nested field begin; `path` lists the field numbers from the outermost. None if the view,
    which may be just the first bytes of a message, ends before that."""
    at = 0
    try:
        for number in path:
            while True:
                tag, at = read_varint(view, at)
                match tag & 7:
                    case 0:
                        _, at = read_varint(view, at)
                    case 2:
                        size, at = read_varint(view, at)
                        if tag >> 3 == number:
                            break
                        at += size
                    case 1 | 5:
                        at += 8 if tag & 7 == 1 else 4
                    case kind:
                        raise ValueError(f"a field of kind {kind}")
    except IndexError:
        return None
    return at


def without(view: memoryview, number: int) -> tuple[bytes, memoryview | None]:
    """A serialized message without one bytes field, and a view of those bytes."""
    rest, taken = [], None
    for field, whole, contents in fields(view):
        if field == number:
            taken = contents
        else:
            rest.append(whole)
    return b"".join(rest), taken
