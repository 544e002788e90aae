# SPDX-License-Identifier: Apache-2.0
"""A report as a browser shows it; needs Chromium, and skips without."""

import html
import json
import shutil
import subprocess

import pytest
from report_support import KINDS, LAYERS, curve_log, describe, write_run

WIDE, NARROW = 1300, 400
NAMES = [f"optimizer-{i:02}" for i in range(10)] + ["a-name-that-is-rather-long", "fails"]

# Boxes of all that could be in the way of something else, and what appears under the pointer.
MEASURE = """
const box = (element) => {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  return { left, right, top, bottom };
};
const measure = (page) => {
  const figures = [...page.document.querySelectorAll("figure")].map((figure) => {
    const plot = figure.querySelector(".plot");
    const place = plot.getBoundingClientRect();
    plot.dispatchEvent(new page.PointerEvent("pointermove", {
      clientX: place.left + 0.6 * place.width, clientY: place.top + 9, bubbles: true }));
    const tip = figure.querySelector(".tip");
    const found = {
      title: figure.querySelector("figcaption").textContent,
      panel: figure.closest(".panels") !== null,
      open: figure.closest("details")?.open ?? true,
      figure: box(figure), plot: box(plot), legend: box(figure.querySelector(".legend")),
      entries: [...figure.querySelectorAll(".legend li")].map(box),
      strokes: [...figure.querySelectorAll(".legend li line")].map((line) =>
        ["stroke", "stroke-dasharray", "stroke-width"].map((key) => line.getAttribute(key))),
      curves: figure.querySelectorAll(".series path:not(.cross)").length,
      tip: { ...box(tip), shown: !tip.hidden, rows: tip.querySelectorAll("li").length,
             text: tip.textContent },
    };
    plot.dispatchEvent(new page.PointerEvent("pointerleave"));
    return { ...found, closed: tip.hidden };
  });
  const root = page.document.documentElement;
  return { figures, scroll: root.scrollWidth, width: root.clientWidth };
};
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map((f) => measure(f.contentWindow));
  document.body.replaceChildren();
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
"""


def make_report(rode, out, seeds=3):
    if "no lab" in rode.call("report").stderr:
        pytest.skip("this build has no lab")
    for number, name in enumerate(NAMES):
        for seed in range(1, seeds + 1):
            diverges = name == "fails" or (number == 4 and seed == 2)
            log = curve_log(number, seed, diverges, angles=number == 0)
            status = "diverged" if diverges else "finished"
            run = describe(optimizer=name, seed=seed)
            folder = out / f"{name}-seed{seed}"
            write_run(folder, run, log=log, status=status, lowest_possible_loss=1.6)
    done = rode.call("report", out, "--format", "html")
    assert done.returncode == 0, done.stderr
    return (out / "report.html").read_text()


def in_browser(page, tmp_path):
    """What a page measures in a wide and in a narrow window."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium here: the report is not looked at in a browser")
    frames = [
        f'<iframe width="{width}" height="900" srcdoc="{html.escape(page)}"></iframe>'
        for width in (WIDE, NARROW)
    ]
    file = tmp_path / "measure.html"
    file.write_text(f"<!DOCTYPE html><body>{''.join(frames)}<script>{MEASURE}</script></body>")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}"]
    words += ["--virtual-time-budget=20000", "--dump-dom", file.as_uri()]
    done = subprocess.run([chromium, *words], capture_output=True, text=True, timeout=120)
    assert 'id="found"' in done.stdout, done.stderr[-2000:]
    text = done.stdout.partition('id="found">')[2].partition("</pre>")[0]
    return json.loads(html.unescape(text))


def apart(a, b):
    return (
        a["right"] <= b["left"]
        or b["right"] <= a["left"]
        or a["bottom"] <= b["top"]
        or b["bottom"] <= a["top"]
    )


def check_panel(panel):
    """Small, with a legend that it shares."""
    assert panel["curves"] == LAYERS and panel["tip"]["shown"] and panel["closed"]
    assert panel["tip"]["rows"] == LAYERS and apart(panel["tip"], panel["plot"])


def check_figure(figure):
    strokes = [tuple(stroke) for stroke in figure["strokes"]]
    assert len(set(strokes)) == len(strokes), strokes
    assert all(apart(entry, figure["plot"]) for entry in figure["entries"])
    assert all(entry["right"] <= figure["figure"]["right"] for entry in figure["entries"])
    # Values of every curve that is there, in a box that covers none.
    tip = figure["tip"]
    assert tip["shown"] and figure["closed"], figure["title"]
    assert NAMES[0] in tip["text"]
    assert apart(tip, figure["plot"])
    assert figure["figure"]["left"] <= tip["left"]
    assert tip["right"] <= figure["figure"]["right"]
    if figure["title"].startswith(("Angle", "Change", "Norm")):  # of one optimizer
        return
    assert figure["curves"] >= len(NAMES), figure["title"]
    assert len(strokes) > len(NAMES)
    assert tip["rows"] >= len(NAMES) - 1


def test_the_report_fits_and_tells_twelve_optimizers_apart(rode, tmp_path):
    page = make_report(rode, tmp_path / "all")
    wide, narrow = in_browser(page, tmp_path)
    for view, columns in ((wide, 2), (narrow, 1)):
        assert view["scroll"] <= view["width"], "the page scrolls sideways"
        figures = [figure for figure in view["figures"] if not figure["panel"]]
        assert len(figures) == 16, [figure["title"] for figure in figures]
        assert len({round(figure["figure"]["left"]) for figure in figures}) == columns
        for figure in figures:
            check_figure(figure)
            for other in figures:
                assert other is figure or apart(figure["figure"], other["figure"])
        panels = [figure for figure in view["figures"] if figure["panel"]]
        # Radius of the eleven that finished, angle of one; all but four folded.
        assert len(panels) == 12 * len(KINDS)
        shown = [panel for panel in panels if panel["open"]]
        assert len(shown) == 4 * len(KINDS)
        for panel in shown:
            check_panel(panel)
