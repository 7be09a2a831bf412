# SPDX-License-Identifier: Apache-2.0
import collections
import os
import subprocess

import pytest
from fixtures import *  # noqa: F403

CTL_LIMIT_S = 300

Ended = collections.namedtuple("Ended", "code out err")


@pytest.fixture
def ctl(gemmctl, daemon, tmp_path):
    """Runs gemmctl in the test's folder, where it also keeps its sessions, against the file's daemon or the one at
    `address`. Returns exit code, standard output (bytes if `is_binary`) and standard error."""

    def run(*arguments, address=None, session="", stdin=b"", is_binary=False):
        environment = {"XDG_RUNTIME_DIR": str(tmp_path), "GEMMD_ADDRESS": address or daemon.unix}
        if session:
            environment["GEMMD_SESSION"] = session
        done = subprocess.run(
            [gemmctl, *map(str, arguments)],
            input=stdin,
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            timeout=CTL_LIMIT_S,
        )
        out = done.stdout if is_binary else done.stdout.decode()
        return Ended(done.returncode, out, done.stderr.decode())

    return run
