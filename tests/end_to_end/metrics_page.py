# SPDX-License-Identifier: Apache-2.0
"""Scraping a daemon, and reading what it gave."""

import re
import subprocess
import urllib.request

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
    [event] = daemon.events("metrics_listening")
    return event["address"]


def scrape(daemon, path="/metrics"):
    with urllib.request.urlopen(f"http://{address(daemon)}{path}", timeout=30) as answer:
        assert answer.status == 200
        return Page(answer.read().decode())


def promtool(page):
    """What promtool has to say of it, and its exit code."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page.text, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def longest_handler_ms(page, before):
    """How long calls have held a thread of gRPC since: the bound of the longest bucket to which a
    method has added; by method."""
    bounds = {}
    for labels, count in page.with_labels("gemmd_handler_seconds_bucket"):
        key = frozenset(labels.items())
        earlier = before.samples.get(("gemmd_handler_seconds_bucket", key), 0)
        bounds.setdefault(labels["method"], []).append((float(labels["le"]), count - earlier))
    longest = {}
    for method, buckets in bounds.items():
        buckets.sort()
        total = buckets[-1][1]
        if total > 0:
            longest[method] = 1e3 * next(bound for bound, count in buckets if count == total)
    return longest
