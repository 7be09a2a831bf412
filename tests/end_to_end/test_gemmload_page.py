# SPDX-License-Identifier: Apache-2.0
"""The page of gemmload as a browser without a network draws it."""

import bisect
import re
import struct
import subprocess
import zlib

import numpy as np
import pytest

LIMIT_S = 600


def pixels_of(png):
    """The number of pixels of each colour in an 8-bit RGB or RGBA picture."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and color in (2, 6)
        if kind == b"IDAT":
            data += body
        at += 12 + length
    size = 3 if color == 2 else 4
    raw = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * size)
    picture = np.zeros((height + 1, width * size), np.uint8)
    for y, kind in enumerate(raw[:, 0]):
        picture[y + 1] = unfiltered(kind, raw[y, 1:], picture[y], size)
    colors = picture[1:].reshape(-1, size)[:, :3].astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    found, counts = np.unique(colors, return_counts=True)
    return {int(color).to_bytes(3, "big"): int(count) for color, count in zip(found, counts)}


def unfiltered(kind, line, above, size):
    """One line of a PNG after its filter is removed (PNG specification, section 9)."""
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line.reshape(-1, size), axis=0, dtype=np.uint8).ravel()
    if kind == 2:
        return line + above
    # The other filters depend on the pixels to the left, one by one.
    changes = [*(np.flatnonzero(line.reshape(-1, size).any(axis=1)) * size).tolist(), len(line)]
    line, above = bytearray(line), bytes(above)
    nothing = bytes(size)
    at = 0
    while at < len(line):
        left = bytes(line[at - size : at]) if at else nothing
        corner = above[at - size : at] if at else nothing
        following = changes[bisect.bisect_left(changes, at)]
        if kind == 4 and left == corner and following > at:
            # From here to the next change, each pixel equals the one above.
            line[at:following] = above[at:following]
            at = following
            continue
        for a, b, c in zip(left, above[at : at + size], corner):
            guess = (a + b) // 2 if kind == 3 else min((a, b, c), key=lambda value: abs(a + b - c - value))
            line[at] = (line[at] + guess) & 255
            at += 1
    return np.frombuffer(bytes(line), np.uint8)


@pytest.fixture
def draw(chromium, tmp_path):
    """The colours of a page, or of its picture, in a browser that can resolve no host."""

    def run(page):
        picture = tmp_path / "page.png"
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}/profile"]
        # Twice as large, so that lines have pure pixels inside and not only blended edges.
        command += ["--force-device-scale-factor=2", "--window-size=1000,1100"]
        command += [f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
        return pixels_of(picture.read_bytes())

    return run


def test_plots_are_drawn(gemmload, daemon, draw, tmp_path):
    page = tmp_path / "report.html"
    command = [gemmload, "--address", daemon.unix, "--concurrency", "1,2", "--count", "200"]
    command += ["--warmup", "100ms", "--interval", "20ms", "--html", page]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    # Legends have the colours of the series, whether the series are drawn or not.
    text = re.sub(r'<p class="legend">.*?</p>', "", page.read_text(), flags=re.DOTALL)
    assert "legend" not in text[text.index("<body>") :]
    plots = tmp_path / "plots.html"
    plots.write_text(text)
    counts = draw(plots)
    # The first two colours of the series: lines, marks and bars.
    for color in ("2563c9", "d1542c"):
        assert counts.get(bytes.fromhex(color), 0) >= 300, f"#{color}"
    # The same page without its drawings has almost nothing of these colours.
    bare = tmp_path / "bare.html"
    bare.write_text(text.replace("<svg", "<svg style='display: none'"))
    counts = draw(bare)
    for color in ("2563c9", "d1542c"):
        assert counts.get(bytes.fromhex(color), 0) < 30, f"#{color}"
