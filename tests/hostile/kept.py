# SPDX-License-Identifier: Apache-2.0
"""What a daemon keeps of its memory."""

import contextlib

from daemon import wait_until


def kept_bytes(daemon, before, most, limit_s=5):
    """How much the daemon has more than before, once it is at most `most` or does not become so within the
    limit: some of what it needs no more it gives back only after a while."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: daemon.rss_bytes() - before <= most, limit_s, "less is kept")
    return daemon.rss_bytes() - before
