# SPDX-License-Identifier: Apache-2.0
"""Prints the seconds that a library takes for 2048^3 if gemmbench calls it directly: GEMMBENCH KERNEL."""

import json
import subprocess
import sys

gemmbench, kernel = sys.argv[1:]
report = subprocess.run(
    [gemmbench, f"--filter={kernel}", "--shapes=2048", "--seconds=1", "--json=-"],
    check=True,
    capture_output=True,
    text=True,
)
print(json.loads(report.stdout)["measurements"][0]["library_seconds"])
