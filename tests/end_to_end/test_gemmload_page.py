# SPDX-License-Identifier: Apache-2.0
"""The page of gemmload as a browser without a network draws it."""

import re
import struct
import subprocess
import zlib

import pytest

LIMIT_S = 120


def pixels_of(png):
    """Counts of the colours of an 8-bit RGB or RGBA picture."""
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
    raw = zlib.decompress(data)
    line_bytes = width * size
    above, counts = bytearray(line_bytes), {}
    for y in range(height):
        start = y * (line_bytes + 1)
        line = unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + line_bytes]), above, size)
        for x in range(0, line_bytes, size):
            color = bytes(line[x : x + 3])
            counts[color] = counts.get(color, 0) + 1
        above = line
    return counts


def unfiltered(kind, line, above, size):
    """One line of a PNG without its filter (PNG specification, section 9)."""
    for i in range(len(line)):
        left = line[i - size] if i >= size else 0
        corner = above[i - size] if i >= size else 0
        if kind == 1:
            line[i] = (line[i] + left) & 255
        elif kind == 2:
            line[i] = (line[i] + above[i]) & 255
        elif kind == 3:
            line[i] = (line[i] + (left + above[i]) // 2) & 255
        elif kind == 4:
            guess = left + above[i] - corner
            nearest = min((left, above[i], corner), key=lambda value: abs(guess - value))
            line[i] = (line[i] + nearest) & 255
    return line


@pytest.fixture
def draw(chromium, tmp_path):
    """The colours of a page, or of its picture, in a browser to which every host is unknown."""

    def run(page):
        picture = tmp_path / "page.png"
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}/profile"]
        # Twice as large, so that lines have an inside and not only blended edges.
        command += ["--force-device-scale-factor=2", "--window-size=1000,1100"]
        command += [f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
        return pixels_of(picture.read_bytes())

    return run


def test_plots_are_drawn(gemmload, daemon, draw, tmp_path):
    page = tmp_path / "report.html"
    command = [gemmload, "--address", daemon.unix, "--concurrency", "1,2", "--duration", "500ms"]
    command += ["--warmup", "100ms", "--interval", "100ms", "--html", page]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    # Legends have the colours of the series, whether these are drawn or not.
    text = re.sub(r'<p class="legend">.*?</p>', "", page.read_text(), flags=re.DOTALL)
    assert "legend" not in text[text.index("<body>") :]
    plots = tmp_path / "plots.html"
    plots.write_text(text)
    counts = draw(plots)
    # The first two colours of the series: lines, marks and bars.
    for color in ("2563c9", "d1542c"):
        assert counts.get(bytes.fromhex(color), 0) >= 300, f"#{color}"
    # The same page with its drawings taken away has next to nothing of them.
    bare = tmp_path / "bare.html"
    bare.write_text(text.replace("<svg", "<svg style='display: none'"))
    counts = draw(bare)
    for color in ("2563c9", "d1542c"):
        assert counts.get(bytes.fromhex(color), 0) < 30, f"#{color}"
