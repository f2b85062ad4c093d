"""accelkit bench --html: the page shows the results, its diagrams are where the numbers put them, and it can be read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from command_runner import command_runner

from accelkit.benchmarking import html, plot
from accelkit.benchmarking.report import Report, Result, Samples
from accelkit.cli import main
from accelkit.text_table import number

pytestmark = pytest.mark.usefixtures("forked_interpreters")

LOADS = re.compile(r"""\b(src|href|srcset)\s*=|@import|url\(|<link|<iframe|\bfetch\(""", re.IGNORECASE)
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x00\udcff{{ 7 * 7 }}"
SIZES = ("4KiB", "64KiB", "1MiB", "16MiB", "256MiB")


def result(name, device=None, host=None, limit=None, unit="GB/s", **fields):
    device, host = (None if value is None else Samples.of([value] * 3) for value in (device, host))
    return Result(name, unit, unit != "us", device, host, limit, "memory" if limit else "", **fields)


def report(*results, **fields):
    known = {"name": "acme", "plugin": "acme==1", "device": "acme:0", "accelkit": "1.5", "torch": "2.9.7", "python": "3.11.9"}
    known |= {"processor": "Z80", "threads": 2, "time": 0.0, "is_quick": True, "peaks": {"memory": 5e10, "float32": 7e12}}
    return Report(**known | {"results": results} | fields)


@pytest.mark.parametrize(("value", "text"), [(999.7, "1000"), (-999.5, "-1000"), (999.4, "999"), (1234.5, "1234"), (0.12345, "0.123")])
def test_a_value_near_a_thousand_has_no_exponent(value, text):
    assert number(value) == text


def drawings(page):
    """Return the SVG of a page, which must be well-formed XML to be drawn the same everywhere."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_a_run_writes_a_page(tmp_path):
    path = tmp_path / "bench.html"
    answer = command_runner().invoke(main, ["bench", "fake_xpu", "--quick", "--select", "matmul.*.64", "--json", "-", "--html", str(path)])
    assert answer.exit_code == 0, answer.output
    written, page = json.loads(answer.stdout), path.read_text("utf-8")
    assert written["device_name"] == "fake XPU"
    for text in ("fake XPU", "fake_xpu:0", written["plugin"], written["torch"], written["python"], written["accelkit"]):
        assert text in page
    shown = 0
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    for one in written["results"]:
        (row,) = [row for row in rows if f"<code>{one['name']}</code>" in row.replace("<wbr>", "")]
        values = [samples["median"] for samples in (one["device"], one["host"]) if samples]
        shown += len(values)
        for value in (*values, one["limit"]):
            assert f">{number(value)}<" in row
    titles = [title for drawing in drawings(page) for title in drawing.itertext() if "GFLOP/s" in title]
    assert len(titles) == shown > 2


def test_the_page_loads_nothing_and_escapes_text():
    page = html.text(
        report(result(HOSTILE, 1.0, 2.0, 3.0), result("a", unsupported=HOSTILE), name=HOSTILE, plugin=HOSTILE, device_name=HOSTILE)
    )
    assert "<img" not in page
    assert "{{ 7 * 7 }}" in page
    assert not LOADS.search(page.replace("src=x", ""))
    assert "default-src 'none'" in page
    assert page.encode("utf-8", "replace")


def test_a_page_without_results():
    page = html.text(report(peaks={}))
    assert "<svg" not in page
    assert "acme:0" in page  # an older report has no device_name


def test_a_line_rises_with_the_value_and_runs_right_with_the_size():
    values = (1.0, 10.0, 100.0, 20.0, 20.0)
    drawn = plot.by_size([result(f"copy.within.{size}", value, value / 2) for size, value in zip(SIZES, values, strict=True)], "copy")
    assert [(line.label, line.is_host) for line in drawn.lines] == [("within", False), ("within", True)]
    device, host = (line.points for line in drawn.lines)
    first, second, third, *rest = device
    assert first.y - second.y == pytest.approx(second.y - third.y, abs=0.2)  # the axes are logarithmic
    assert second.x - first.x == pytest.approx(third.x - second.x, abs=0.2)
    assert rest[0].y == rest[1].y
    assert all(below.y > above.y and below.x == above.x for below, above in zip(host, device, strict=True))
    assert [point.text for point in device][:2] == ["4 KiB: 1", "64 KiB: 10"]
    marks = {tick.text: tick.at for tick in drawn.y_ticks}
    assert [marks["1"], marks["10"], marks["100"]] == [first.y, second.y, third.y]
    assert [tick.text for tick in drawn.x_ticks] == ["4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB"]
    gaps = [after.at - before.at for before, after in zip(drawn.x_ticks, drawn.x_ticks[1:], strict=False)]
    assert min(gaps) > 60  # wider than the longest text


@pytest.mark.parametrize("value", [3e-7, 1.0, 1.7, 999.0, 123456.0])
def test_one_value_is_inside_the_diagram(value):
    drawn = plot.by_size([result("matmul.float32.64", value)], "matmul")
    (point,) = drawn.lines[0].points
    assert plot.LEFT < point.x < plot.WIDTH - plot.RIGHT
    assert plot.TOP <= point.y <= plot.HEIGHT - plot.BOTTOM
    assert len(drawn.y_ticks) >= 2


def test_the_marks_of_a_long_axis_do_not_touch():
    drawn = plot.by_size([result("matmul.float32.64", 1e-9), result("matmul.float32.128", 1e12)], "matmul")
    gaps = [before.at - after.at for before, after in zip(drawn.y_ticks, drawn.y_ticks[1:], strict=False)]
    assert len(gaps) > 2
    assert min(gaps) > 20


def test_what_has_no_size_is_not_drawn():
    assert plot.by_size([result("copy.within.4KiB"), result("copy.within.big", 1.0), result("matmul.float32.64", 1.0)], "copy") is None
    assert plot.by_size([result("copy.within.4KiB", 0.0)], "copy") is None


def test_the_bar_is_as_long_as_the_share_of_the_limit():
    page = html.text(report(result("a", 1.0, limit=4.0), result("b", 8.0, limit=4.0), result("c", -1.0, limit=4.0)))
    bars = [[rect.attrib for rect in drawing] for drawing in drawings(page)]
    assert [bar[1]["width"] for bar in bars] == ["12.50%", "100.00%", "0.00%"]
    assert [bar[2]["x"] for bar in bars] == ["50.00%"] * 3  # 100 % of the limit
    assert re.findall(r"<b>(.*?)</b>", page) == ["25%", "200%", "-25%"]


def test_colours_have_contrast_in_both_themes():
    colours = dict(re.findall(r"--([\w-]+): light-dark\((#\w+, #\w+)\)", html.text(report())))
    names = ["ink", "soft", "link", *(f"c{index}" for index in range(8))]
    for theme in (0, 1):
        card = luminance(colours["card"].split(", ")[theme])
        for name in names:
            other = luminance(colours[name].split(", ")[theme])
            assert (max(card, other) + 0.05) / (min(card, other) + 0.05) >= 4.5, f"--{name} in theme {theme}"


def luminance(colour):
    """Return the relative luminance of a colour as WCAG 2.2 defines it."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_page_that_cannot_be_written_is_an_error_before_the_run(tmp_path):
    answer = command_runner().invoke(main, ["bench", "fake_xpu", "--html", str(tmp_path / "none" / "bench.html")])
    assert answer.exit_code == 2
    assert "--html" in answer.stderr
    assert "create the folder first" in answer.stderr
    assert "[1/" not in answer.stderr


def test_templates_are_imported_only_when_a_page_is_made():
    code = "import sys, accelkit.cli, accelkit.cli.bench; print('jinja2' in sys.modules, 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["False", "False"]
