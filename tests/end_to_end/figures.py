# SPDX-License-Identifier: Apache-2.0
"""Values that tests measure, each with its bound, kept by `battery.holds` and `timed` for the
table."""

import dataclasses
import json


@dataclasses.dataclass
class Line:
    file: str  # "test_memory"
    attack: str
    bound: str
    seen: str
    held: bool
    is_timed: bool


class Figures:
    """The values measured so far. Counts always decide. Values that depend on a clock or on the
    resident size of a process decide only in the timed run, when no other work uses the
    processors."""

    def __init__(self, is_timed):
        self.is_timed = is_timed
        self.lines = []
        self.file = ""

    def holds(self, attack, *, most=None, least=None, seen, unit=""):
        """Requires that a count is at most, or at least, the bound; NaN fails."""
        self._judge(attack, most, least, seen, unit, is_timed=False)

    def timed(self, attack, *, most=None, least=None, seen, unit=""):
        """Requires the same of a time, with --timed; does nothing without it."""
        if self.is_timed:
            self._judge(attack, most, least, seen, unit, is_timed=True)

    def _judge(self, attack, most, least, seen, unit, is_timed):
        assert (most is None) != (least is None), "one bound, please"
        held = seen <= most if least is None else seen >= least
        bound = f"<= {most:g}" if least is None else f">= {least:g}"
        self.lines.append(
            Line(self.file, attack, f"{bound} {unit}".strip(), f"{seen:.4g} {unit}".strip(), bool(held), is_timed)
        )
        assert held, f"{attack}: got {seen:g} {unit}, want {bound}"

    def keep(self, folder, part):
        """Writes a file of JSON lines for each test file, or part of one, for
        tests/timed/table.py."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in {line.file for line in self.lines}:
            rows = [json.dumps(dataclasses.asdict(line)) for line in self.lines if line.file == file]
            name = f"{file}.{part}" if part else file
            (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
