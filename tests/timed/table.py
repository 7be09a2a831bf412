#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what the battery measured: attack, bound and what was seen, of all files that ran with --rows=FOLDER.

    tests/hostile/table.py build/release/hostile_rows
"""

import json
import pathlib
import sys

MOST_ROWS = 1000
MOST_CHARACTERS = 110  # Of an attack.


def texts(rows):
    """The lines of a table."""
    rows = [dict(row, attack=row["attack"][:MOST_CHARACTERS]) for row in rows]
    width = max((len(row["attack"]) for row in rows), default=0)
    bound_width = max((len(row["bound"]) for row in rows), default=0)
    for row in rows[:MOST_ROWS]:
        mark = "" if row["held"] else "  BROKEN"
        yield f"{row['attack']:<{width}}  {row['bound']:>{bound_width}}  {row['seen']}{mark}"
    if len(rows) > MOST_ROWS:
        yield f"and {len(rows) - MOST_ROWS} more"


def main():
    rows = []
    for file in sorted(pathlib.Path(sys.argv[1]).glob("*.jsonl")):
        rows += [json.loads(line) for line in file.read_text().splitlines()]
    print(f"What the battery of hostile peers measured, {len(rows)} rows: attack, bound, seen")
    for text in texts(rows):
        print(text)


if __name__ == "__main__":
    main()
