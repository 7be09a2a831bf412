# SPDX-License-Identifier: Apache-2.0
"""Checks callers' values and converts them to the plain types that messages and gRPC take. gRPC ignores options of
unexpected types, and messages round, wrap or raise errors that do not name the field. Every function raises
InvalidArgument.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gemmd.errors import InvalidArgument, refusal

_LONGEST_SHOWN = 80
_METADATA_KEY = re.compile("[0-9a-z_.-]+")


def whole(field: str, value: Any, least: int, most: int) -> int:
    """A whole number of any numeric type, from `least` to `most`."""
    want = f"a whole number from {least} to {most}"
    try:
        number = _plain_number(value)
        # The range is checked first: int() of a huge Decimal would take all memory.
        if least <= number <= most and number == int(number):
            return int(number)
    except (TypeError, ValueError, ArithmeticError, RuntimeError):
        pass
    raise refused(field, value, want)


def real(
    field: str,
    value: Any,
    want: str = "a number",
    fits: Callable[[float], bool] = lambda number: True,
) -> float:
    """A number of any real type that fits. Infinity and NaN are allowed."""
    try:
        number = float(_plain_number(value))
        if fits(number):
            return number
    except (TypeError, ValueError, ArithmeticError, RuntimeError):
        pass
    raise refused(field, value, want)


def flag(field: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise refused(field, value, "True or False")
    return bool(value)


def text(field: str, value: Any) -> str:
    """A str that messages accept."""
    if not isinstance(value, str):
        raise refused(field, value, "text")
    if not value.isprintable():  # Surrogates are not printable.
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refused(field, value, "text that has an encoding in UTF-8") from None
        if "\0" in value:
            raise refused(field, value, "text without NUL")
    return value


def secret(field: str, value: Any) -> str:
    """A str for metadata. No error text contains it."""
    if not isinstance(value, str):
        raise refusal(field, f"a value of type {type(value).__name__}", "text")
    if not _is_ascii(value):
        raise refusal(field, f"{len(value)} characters", "printable ASCII characters")
    return value


def file_name(field: str, value: Any) -> str:
    """The path of a file, as a str; bytes that are not UTF-8 become surrogates."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise refused(field, value, "text")
    return path


def array(field: str, value: Any, dtype: Any = None) -> np.ndarray:
    """Converts any array-like value to an array; of real numbers of `dtype`, if given."""
    try:
        given = np.asarray(value)
        if dtype is None:
            return given
        if given.dtype.kind not in "cmMSU":
            with np.errstate(over="ignore"):
                return given.astype(dtype, copy=False)
    except (TypeError, ValueError, OverflowError):  # Such as lists of different lengths.
        pass
    raise refused(field, value, "an array" if dtype is None else "an array of real numbers")


def pairs(field: str, value: Any) -> list[tuple[str, Any]]:
    """Pairs of a name and a value. No error text contains a value, which may be a secret."""
    want = "a pair of a name and a value"
    try:
        items = list(value)
    except TypeError:
        raise refusal(field, f"a value of type {type(value).__name__}", f"a list, each of it {want}") from None
    for number, item in enumerate(items):
        if not (isinstance(item, (tuple, list)) and len(item) == 2):
            raise refusal(f"{field}[{number}]", f"a value of type {type(item).__name__}", want)
        text(f"{field}[{number}]", item[0])
    return [(name, each) for name, each in items]


def metadata(field: str, value: Any) -> list[tuple[str, str | bytes]]:
    """Metadata as gRPC accepts it. No error text contains a value, which may be a secret."""
    if isinstance(value, tuple) and not value:
        return []
    checked = pairs(field, value)
    for number, (key, each) in enumerate(checked):
        if not _METADATA_KEY.fullmatch(key):
            raise refused(f"{field}[{number}]", key, "a name of a-z, 0-9, _, - and .")
        is_good = isinstance(each, bytes) if key.endswith("-bin") else isinstance(each, str) and _is_ascii(each)
        if not is_good:
            want = "bytes for a name that ends with -bin, otherwise text of printable ASCII"
            raise refusal(f"{field}[{number}]", f"another value of type {type(each).__name__} for {key}", want)
    return checked


def no_effect(options: Mapping[str, Any], names: Iterable[str], beside: str) -> None:
    """Refuses the named options, which have no effect together with `beside`."""
    for name in names:
        if options.get(name) is not None:
            raise refused(f"{name} beside {beside}", options[name], f"no {name}: it has no effect there")


def _is_ascii(value: str) -> bool:
    return value.isascii() and value.isprintable()


def refused(field: str, value: Any, want: str) -> InvalidArgument:
    """The exception for a value, which its text shows shortened."""
    try:
        shown = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits.
        shown = f"a value of type {type(value).__name__}"
    if len(shown) > _LONGEST_SHOWN:
        shown = shown[:_LONGEST_SHOWN] + "..."
    return refusal(field, shown, want)


def _plain_number(value: Any) -> Any:
    """A number that Python compares exactly. Raises TypeError for everything else: bool, text (which int() and float()
    would parse) and arrays with axes."""
    if isinstance(value, (np.generic, np.ndarray)):
        if value.ndim or value.dtype.kind in "bcmMOSU":
            raise TypeError
        return int(value) if value.dtype.kind in "iu" else float(value)
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError
    return value
