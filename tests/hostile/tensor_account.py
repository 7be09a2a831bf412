# SPDX-License-Identifier: Apache-2.0
"""What a daemon holds for owners of tensors, according to its metrics."""

import metrics_page
from daemon import wait_until

DEADLINE_S = 60
COUNTS = ("gemmd_sessions", "gemmd_tensors", "gemmd_tensor_uploads")
# Of products, some of which wait for tensors.
IN_WORK = ("gemmd_admitted_requests", "gemmd_admitted_bytes")


def held(daemon):
    """Sessions, tensors, uploads and their bytes by place; used bytes of the staging areas;
    admitted requests and bytes."""
    page = metrics_page.scrape(daemon)
    values = {name: page.value(name) for name in (*COUNTS, *IN_WORK)}
    for name, label in (("gemmd_tensor_bytes", "place"), ("gemmd_device_staging_used_bytes", "device")):
        values |= {f"{name} {labels[label]}": value for labels, value in page.with_labels(name)}
    return values


def wait_until_nothing_is_held(daemon):
    def is_empty():
        return not any(held(daemon).values())

    wait_until(is_empty, DEADLINE_S, "sessions, tensors and all that they took are gone")
