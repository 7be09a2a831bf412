# SPDX-License-Identifier: Apache-2.0
"""Ownership after a fork: a forked child has copies of its parent's clients, streams and tensors, but must not use
them. It shares their connections with its parent, and lacks the gRPC threads that serve them."""

from __future__ import annotations

import os
import weakref

from gemmd.errors import FailedPrecondition

SYNC, ASYNC = "grpc", "grpc.aio"

_made: weakref.WeakSet[object] = weakref.WeakSet()
# Kept until the child ends: freeing them would make gRPC close connections and cancel calls that the parent shares.
_inherited: list[object] = []
os.register_at_fork(after_in_child=lambda: _inherited.extend(_made))

_first_users: dict[str, int] = {}  # The process that connected first through each interface of gRPC.
_is_fork_support_off = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in ("0", "f", "false", "n", "no")


class Owner:
    """The process that created an object with connections or calls."""

    def __init__(self, made: object) -> None:
        self._process = os.getpid()
        _made.add(made)

    @property
    def is_here(self) -> bool:
        """Whether this process is the owner."""
        return self._process == os.getpid()

    def check(self, what: str) -> None:
        """Raises FailedPrecondition in any other process."""
        if not self.is_here:
            raise FailedPrecondition(f"{what}: got one of process {self._process}, want one of this process")


def check_process(interface: str) -> None:
    """Call before connecting. Raises FailedPrecondition in a forked child whose calls would wait for gRPC threads that
    only the parent has: gRPC restarts threads in a child only for SYNC, and only if its fork support is on."""
    here = os.getpid()
    for used, process in list(_first_users.items()):
        if process != here and (_is_fork_support_off or used == interface == ASYNC):
            raise FailedPrecondition(
                f"process: got one that was forked after process {process} connected through {used}, "
                "want one that is spawned, or forked before"
            )
    _first_users.setdefault(interface, here)
