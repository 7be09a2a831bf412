# SPDX-License-Identifier: Apache-2.0
"""Scraping a daemon, and parsing the page."""

import re
import subprocess
import urllib.request

from daemon import PATIENCE_S

SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Page:
    """One scrape."""

    def __init__(self, text):
        self.text = text
        self.types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
        self.samples = {}
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            found = SAMPLE.fullmatch(line)
            assert found, f"not a sample: {line!r}"
            name, labels, value = found.groups()
            key = (name, frozenset(LABEL.findall(labels or "")))
            assert key not in self.samples, f"twice: {line!r}"
            self.samples[key] = float(value)

    def value(self, name, **labels):
        return self.samples[name, frozenset(labels.items())]

    def with_labels(self, name):
        return [(dict(labels), v) for (other, labels), v in self.samples.items() if other == name]


def address(daemon):
    [event] = daemon.awaited_events("metrics_listening")
    return event["address"]


def scrape(daemon, path="/metrics"):
    with urllib.request.urlopen(f"http://{address(daemon)}{path}", timeout=PATIENCE_S) as answer:
        assert answer.status == 200
        return Page(answer.read().decode())


def promtool(page):
    """promtool's messages about the page, and its exit code."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page.text, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    return done.returncode, done.stdout + done.stderr


def longest_handler_cpu_ms(page, second=False):
    """The longest processor time, or the second longest, for which calls have held a thread of gRPC
    since the daemon's start; by method."""
    name = f"gemmd_handler_{'second_' if second else ''}longest_cpu_seconds"
    return {labels["method"]: 1e3 * seconds for labels, seconds in page.with_labels(name)}


def longest_handler_ms(page, before=None):
    """How long calls have held a thread of gRPC since `before`: the upper bound of the longest
    bucket with an observation; by method."""
    bounds = {}
    for labels, count in page.with_labels("gemmd_handler_seconds_bucket"):
        key = frozenset(labels.items())
        earlier = before.samples.get(("gemmd_handler_seconds_bucket", key), 0) if before else 0
        bounds.setdefault(labels["method"], []).append((float(labels["le"]), count - earlier))
    longest = {}
    for method, buckets in bounds.items():
        buckets.sort()
        total = buckets[-1][1]
        if total > 0:
            longest[method] = 1e3 * next(bound for bound, count in buckets if count == total)
    return longest


def abort_times_s(page, device, before=None):
    """How long the device continued each product that was no longer wanted, since `before` if
    given: the upper bounds of the buckets, shortest first."""
    buckets = []
    for labels, count in page.with_labels("gemmd_abort_seconds_bucket"):
        if labels["device"] == device:
            key = ("gemmd_abort_seconds_bucket", frozenset(labels.items()))
            buckets.append((float(labels["le"]), int(count - (before.samples[key] if before else 0))))
    times_s = []
    for bound, count in sorted(buckets):
        times_s += [bound] * (count - len(times_s))
    return times_s
