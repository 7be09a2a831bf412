# SPDX-License-Identifier: Apache-2.0
"""A wall clock for one daemon, which a test sets while the daemon runs; the machine's own clock is
not changed. Programs that the daemon starts use the machine's clock."""

import mmap
import struct

HOUR_S = 3600


class WallClock:
    """`library` is the one made from wall_clock.cc."""

    def __init__(self, library, folder):
        path = folder / "wall_clock"
        path.write_bytes(bytes(8))
        with open(path, "r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "GEMMD_WALL_CLOCK": str(path)}

    def set(self, hours):
        """This many hours from the machine's clock."""
        self._offset[:] = struct.pack("=q", round(hours * HOUR_S * 1e9))
