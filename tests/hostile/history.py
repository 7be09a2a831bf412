# SPDX-License-Identifier: Apache-2.0
"""The values that one writer gave a variable and the values that others read of it, and whether
both are consistent."""

import bisect
import dataclasses
import heapq
import itertools
import math


@dataclasses.dataclass
class Write:
    """A version that was written to a name; None: the name was deleted. A failed write may take
    effect at any time after its beginning, even after later ones, since it was on another
    connection."""

    value: int | None
    began: float
    ended: float = math.inf


@dataclasses.dataclass
class Read:
    how: str
    value: int | None
    began: float
    ended: float


class Deletes:
    """The deletions of a variable, sorted by their beginnings, so that a read need not look at all
    of them."""

    def __init__(self, writes):
        by_start = sorted((write.began, i) for i, write in enumerate(writes) if write.value is None)
        self._starts = [began for began, _ in by_start]
        self._newest = list(itertools.accumulate((i for _, i in by_start), max))
        failed = (writes[i].ended == math.inf for _, i in by_start)
        self._has_failed = list(itertools.accumulate(failed, max))

    def before(self, time):
        """The index of the newest write that began before `time`, or None, and whether any of those
        failed."""
        count = bisect.bisect_left(self._starts, time)
        return (self._newest[count - 1], self._has_failed[count - 1]) if count else (None, False)


def check_history(writes, reads):
    """Checks that the reads are consistent with one variable that a single writer sets: no read
    sees a value older than a write that had ended when the read began, or a value from after its
    own end, or an older value than a read that had ended when it began. Failed writes may be seen
    at any time after they began."""
    at = {write.value: i for i, write in enumerate(writes) if write.value is not None}
    deletes = Deletes(writes)
    # Writes that had ended when a read began are processed once: reads are in the order of their
    # beginnings.
    ends = [(write.ended, i) for i, write in enumerate(writes)]
    heapq.heapify(ends)
    newest = -1
    for read in sorted(reads, key=lambda read: read.began):
        while ends and ends[0][0] < read.began:
            newest = max(newest, heapq.heappop(ends)[1])
        assert read.value is None or read.value in at, f"{read}: a value that nobody wrote"
        if read.value is None:
            version, may_have_failed = deletes.before(read.ended)
        else:
            version = at[read.value] if writes[at[read.value]].began < read.ended else None
            may_have_failed = version is not None and writes[version].ended == math.inf
        if may_have_failed:
            continue
        if read.value is None and newest == -1:
            continue  # Nothing was written yet.
        assert version is not None, f"{read}: a value from later"
        assert version >= newest, f"{read}: version {version}, want {newest} or later"
        if read.value is not None:
            heapq.heappush(ends, (read.ended, version))
