#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what was measured: attack or figure, bound, seen and verdict, of all tests that kept rows in a folder.

    tests/timed/table.py build/release/hostile_rows

It ends with 1 if a bound is broken or if there are no rows.
"""

import json
import pathlib
import sys

MAX_ROWS = 1000
MAX_CHARACTERS = 110  # Of an attack.


def texts(rows):
    """Returns the lines of a table."""
    rows = [dict(row, attack=row["attack"][:MAX_CHARACTERS]) for row in rows]
    widths = {
        column: max((len(row[column]) for row in rows), default=0) for column in ("attack", "bound", "seen")
    }
    for row in rows[:MAX_ROWS]:
        verdict = "held" if row["held"] else "BROKEN"
        yield (
            f"{row['attack']:<{widths['attack']}}  {row['bound']:>{widths['bound']}}  "
            f"{row['seen']:>{widths['seen']}}  {verdict}"
        )
    if len(rows) > MAX_ROWS:
        yield f"and {len(rows) - MAX_ROWS} more"


def main():
    rows = []
    for file in sorted(pathlib.Path(sys.argv[1]).glob("*.jsonl")):
        rows += [json.loads(line) for line in file.read_text().splitlines()]
    print(f"{len(rows)} rows: attack or figure, bound, seen, verdict")
    for text in texts(rows):
        print(text)
    broken = sum(not row["held"] for row in rows)
    print(f"{len(rows) - broken} held, {broken} broken")
    return 1 if broken or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
