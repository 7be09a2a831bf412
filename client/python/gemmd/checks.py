# SPDX-License-Identifier: Apache-2.0
"""Values that callers give, as the plain types that messages and gRPC take.

gRPC ignores an option of another type than it expects, and messages round, wrap or raise errors that do not name
the field. So each value is checked here first. Every function raises InvalidArgument.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmd.errors import InvalidArgument, refusal

_LONGEST_SHOWN = 80


def whole(field: str, value: Any, least: int, most: int) -> int:
    """A whole number of any numeric type, from `least` to `most`."""
    want = f"a whole number from {least} to {most}"
    try:
        number = _plain_number(value)
        # The range comes first: int() of a huge Decimal would take all memory.
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
    """A number of any real type that fits. Infinity and NaN are numbers too."""
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
    """A str."""
    if not isinstance(value, str):
        raise refused(field, value, "text")
    return value


def secret(field: str, value: Any) -> str:
    """A str that no error shows."""
    if not isinstance(value, str):
        raise refusal(field, f"a value of type {type(value).__name__}", "text")
    return value


def file_name(field: str, value: Any) -> str:
    """The path of a file, as a str."""
    return text(field, os.fspath(value) if isinstance(value, os.PathLike) else value)


def refused(field: str, value: Any, want: str) -> InvalidArgument:
    """The exception for a value, which it shows shortened."""
    try:
        shown = repr(value)
    except ValueError:  # Python shows no integer of thousands of digits.
        shown = f"a value of type {type(value).__name__}"
    if len(shown) > _LONGEST_SHOWN:
        shown = shown[:_LONGEST_SHOWN] + "..."
    return refusal(field, shown, want)


def _plain_number(value: Any) -> Any:
    """A number that Python compares exactly. Raises TypeError for everything else, such as bool, text, which int()
    and float() would read, and arrays with axes."""
    if isinstance(value, (np.generic, np.ndarray)):
        if value.ndim or value.dtype.kind in "bcmMOSU":
            raise TypeError
        return int(value) if value.dtype.kind in "iu" else float(value)
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError
    return value
