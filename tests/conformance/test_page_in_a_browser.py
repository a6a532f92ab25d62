"""The report page in a real browser: its first screen, on a phone, dark, without scripts, printed.

Promised: the report's page needs nothing from elsewhere, fits a phone, is dark where the reader is,
and shows failures without scripts.

The page shows a run in which a wrong kernel fails. Skipped where there is no Chromium.
"""

import re
import shutil
import subprocess
import zlib

import pytest
from command import record_of

from tf_bn_ops.conformance.reports import page

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
    return record_of(*cases)


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


DARK = "--blink-settings=preferredColorScheme=0"


def _measured(html, tmp_path, size, expression, *flags):
    """What a script in a copy of the page measures."""
    script = f"<script>document.title = 'measured:' + ({expression})</script></body>"
    copy = tmp_path / "copy.html"
    copy.write_text(html.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    shown = _browse(tmp_path, copy, f"--window-size={size}", "--dump-dom", *flags)
    return float(re.search(r"measured:([-\d.]+)", shown).group(1))


def test_first_screen_holds_the_overview(html, tmp_path):
    bottom = "document.querySelector('.overview').getBoundingClientRect().bottom"
    assert 200 < _measured(html, tmp_path, "1280,800", bottom) < 800


def test_page_is_dark_where_the_reader_is(html, tmp_path):
    for flags, paper, ink in (((DARK,), (0, 60), (200, 255)), ((), (240, 255), (0, 60))):
        for name, (least, most) in (("backgroundColor", paper), ("color", ink)):
            red = f"getComputedStyle(document.body).{name}.match(/[0-9]+/)[0]"
            assert least <= _measured(html, tmp_path, "1280,800", red, *flags) <= most, name


def test_page_fits_a_phone(html, tmp_path):
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert _measured(html, tmp_path, "500,800", overflow) == 0


def test_failures_need_no_click_and_no_script(html, tmp_path):
    height = "document.querySelector('#failures details pre').getBoundingClientRect().height"
    assert _measured(html, tmp_path, "1280,800", height) > 10


def test_page_is_printed_in_light_colours(html, tmp_path):
    """Also by a reader whose screen is dark."""
    file = tmp_path / "page.pdf"
    _browse(tmp_path, html, f"--print-to-pdf={file}", "--no-pdf-header-footer", DARK)
    content = file.read_bytes()
    assert content.startswith(b"%PDF")
    streams = re.findall(rb"stream\r?\n(.*?)endstream", content, re.S)
    text = b"".join(_inflated(stream) for stream in streams)
    # The ink of the light page, #1c1e21, fills text; the dark page's, #e8eaec, does not.
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
