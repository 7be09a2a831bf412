# SPDX-License-Identifier: Apache-2.0
"""What one writer gave a variable and what others read of it, and whether both belong together."""

import bisect
import dataclasses
import heapq
import itertools
import math


@dataclasses.dataclass
class Write:
    """A version that a name was given; None: it was deleted. A write that failed may come about at
    any time after its beginning, also after later ones: it was on another connection."""

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
    """Those of a variable, by their beginnings, so that a read needs to look at none one by one."""

    def __init__(self, writes):
        by_start = sorted((write.began, i) for i, write in enumerate(writes) if write.value is None)
        self._starts = [began for began, _ in by_start]
        self._newest = list(itertools.accumulate((i for _, i in by_start), max))
        failed = (writes[i].ended == math.inf for _, i in by_start)
        self._has_failed = list(itertools.accumulate(failed, max))

    def before(self, time):
        """The number of the newest write of those that began before then, None where there is none; and
        whether any of them failed."""
        count = bisect.bisect_left(self._starts, time)
        return (self._newest[count - 1], self._has_failed[count - 1]) if count else (None, False)


def check_history(writes, reads):
    """Whether the reads are those of one variable that a single writer sets: none sees a value from
    before a write that had ended when it began, or from after its own end, and none sees an older
    value than another one that had ended when it began. Writes that failed may be seen at any time
    after they began."""
    at = {write.value: i for i, write in enumerate(writes) if write.value is not None}
    deletes = Deletes(writes)
    # What had ended when a read began is looked at once: reads come in the order of their beginnings.
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
