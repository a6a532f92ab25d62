"""The report page in a real browser: its first screen, on a phone, dark, without scripts, printed.

The page is that of a run in which a wrong kernel fails. Skipped where there is no Chromium.
"""

import re
import shutil
import struct
import subprocess
import zlib

import numpy as np
import pytest

from tf_bn_ops.conformance.reports import page, record

_NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
    "chromium-headless-shell", "chrome-headless-shell",
)  # fmt: skip
BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome, which no test installs"),
]


def _record(failed):
    """A small run: one case of two fails."""
    outputs = {"ulp": 0.5, "bound": 0.9, "worst": None}
    settings = dict.fromkeys(record.SCHEMA["settings"])
    settings |= {"seed": 1, "cases": 2, "bounds": "strict", "selection": {}}
    candidate = {"ops": "vendor:ops", "digest": "5e" * 32, "mapped": []}
    cases = []
    for i in range(2):
        wrong = failed and i == 0
        cases.append({
            "index": i, "case": f"FusedBatchNormGradV3,half,NHWC,2x3x4x{5 + i},training,normal,...",
            "op": "FusedBatchNormGradV3", "dtype": "half", "layout": "NHWC", "mode": "training",
            "kind": "normal", "verdict": "values" if wrong else "passed",
            "failures": ["scale_backprop 1.2e3 times the bound"] if wrong else [],
            "evidence": {"x_backprop": True}, "execution_modes": {}, "notes": [], "script": None,
            "implementations": {
                name: {"departures": [], "outputs": {"x_backprop": outputs}}
                for name in ("candidate", "onednn", "eigen")
            },
        })  # fmt: skip
    return {
        "schema": record.VERSION, "command": "python -m tf_bn_ops conformance",
        "replay": "python -m tf_bn_ops conformance --repro", "date": "2026-01-01T00:00:00Z",
        "seconds": 1.0, "settings": settings, "shard": None, "total": 2,
        "versions": {"tensorflow": "2.21.0"}, "machines": [], "candidate": candidate,
        "implementations": ["candidate", "onednn", "eigen"], "divergences": [], "cases": cases,
    }  # fmt: skip


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    text = page.of_record(_record(failed=True))
    assert "<script" not in text
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def _browse(folder, page_path, *flags):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", *flags, page_path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _pixels(png: bytes) -> np.ndarray:
    """The brightness (0 to 1) of a PNG's pixels; what Chromium writes: 8 bits, not interlaced."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", content[:10])
        data += content if kind == b"IDAT" else b""
        at += 12 + length
    assert depth == 8
    channels = {2: 3, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    image = np.zeros((height, width * channels), np.uint8)
    for y, row in enumerate(rows):
        image[y] = _unfiltered(row[0], row[1:], image[y - 1] if y else image[0] * 0, channels)
    return image.reshape(height, width, channels)[..., :3].mean(-1) / 255


def _unfiltered(kind, row, above, step):
    if kind in (0, 2):
        return row if kind == 0 else row + above
    out = row.astype(np.int64)
    up = above.astype(np.int64)
    for i in range(len(out)):
        left, corner = (out[i - step], up[i - step]) if i >= step else (0, 0)
        guess = {1: left, 3: (left + up[i]) // 2}.get(kind)
        if guess is None:
            p = left + up[i] - corner
            guess = min((left, up[i], corner), key=lambda v: abs(p - v))
        out[i] = (out[i] + guess) % 256
    return out.astype(np.uint8)


def _screenshot(html, tmp_path, *flags):
    file = tmp_path / "screen.png"
    _browse(tmp_path, html, f"--screenshot={file}", "--window-size=1280,800", *flags)
    return _pixels(file.read_bytes())


def _measured(html, tmp_path, size, expression):
    """What a script in a copy of the page measures."""
    script = f"<script>document.title = 'measured:' + ({expression})</script></body>"
    copy = tmp_path / "copy.html"
    copy.write_text(html.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    shown = _browse(tmp_path, copy, f"--window-size={size}", "--dump-dom")
    return float(re.search(r"measured:([-\d.]+)", shown).group(1))


def test_first_screen_holds_the_overview(html, tmp_path):
    bottom = "document.querySelector('.overview').getBoundingClientRect().bottom"
    assert 200 < _measured(html, tmp_path, "1280,800", bottom) < 800
    brightness = _screenshot(html, tmp_path)
    assert brightness.shape == (800, 1280)
    assert brightness.mean() > 0.85
    assert (brightness[:600] < 0.5).mean() > 0.005  # There is text.


def test_page_is_dark_where_the_reader_is(html, tmp_path):
    brightness = _screenshot(html, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert brightness.mean() < 0.25
    assert (brightness[:600] > 0.5).mean() > 0.005


def test_page_fits_a_phone(html, tmp_path):
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert _measured(html, tmp_path, "500,800", overflow) == 0


def test_failures_need_no_click_and_no_script(html, tmp_path):
    height = "document.querySelector('#failures details pre').getBoundingClientRect().height"
    assert _measured(html, tmp_path, "1280,800", height) > 10


def test_page_is_printed_in_light_colours(html, tmp_path):
    """Also by a reader whose screen is dark."""
    file = tmp_path / "page.pdf"
    dark = "--blink-settings=preferredColorScheme=0"
    _browse(tmp_path, html, f"--print-to-pdf={file}", "--no-pdf-header-footer", dark)
    content = file.read_bytes()
    assert content.startswith(b"%PDF")
    streams = re.findall(rb"stream\r?\n(.*?)endstream", content, re.S)
    text = b"".join(_inflated(stream) for stream in streams)
    # The ink of the light page, #1c1e21, fills text; that of the dark one, #e8eaec, does not.
    assert re.search(rb"\.1098\d* \.1176\d* \.1294\d* rg", text)
    assert not re.search(rb"\.9098\d* \.9176\d* \.9254\d* rg", text)


def _inflated(stream):
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


def test_run_without_failures_says_so():
    text = page.of_record(_record(failed=False))
    assert re.search(r"<dt>Failed</dt><dd>nothing</dd>", text)
