# SPDX-License-Identifier: Apache-2.0
"""Who may end what: a forked child has copies of its parent's clients, streams and tensors, and none of them is
its own."""

from __future__ import annotations

import os

from gemmd.errors import FailedPrecondition


class Owner:
    """The process that made something."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether that is this process, not its parent."""
        return self._process == os.getpid()

    def check(self, what: str) -> None:
        """Raises FailedPrecondition in any other process."""
        if not self.is_here:
            raise FailedPrecondition(f"{what}: got one of process {self._process}, want one of this process")
