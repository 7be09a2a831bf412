# SPDX-License-Identifier: Apache-2.0
"""The memory that a daemon keeps."""

import contextlib

from daemon import wait_until


def kept_bytes(daemon, before, most, limit_s=5):
    """The daemon's growth since `before`, once it is at most `most`, or at the end of the limit:
    some memory is only released after a while."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: daemon.rss_bytes() - before <= most, limit_s, "less is kept")
    return daemon.rss_bytes() - before
