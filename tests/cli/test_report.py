# SPDX-License-Identifier: Apache-2.0
"""The report of `rode compare` as a browser shows it; needs Chromium, and skips without."""

import html
import json
import math
import shutil
import subprocess

import pytest
from train_support import TASK, train_words

pytestmark = pytest.mark.usefixtures("needs_training")

STEPS, EVERY = 200, 10
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


def fake_log(number, seed, diverges):
    """Curves as of a run, without the time of one."""
    log = []
    for step in range(STEPS + 1):
        level = 2 + 0.08 * number
        loss = level + 5 * math.exp(-step / 40) + 0.05 * math.sin(step + 7 * seed) + 0.03 * seed
        if diverges and step > STEPS // 3:
            loss += math.exp((step - STEPS / 3) / 6)
        if diverges and step > 2 * STEPS // 3:
            log.append({"kind": "diverged", "step": step, "what": "the loss is inf"})
            break
        norm = 20 + number + step / 20
        if step % EVERY == 0:
            log.append({"kind": "evaluation", "step": step, "loss": loss, "weight_norm": norm})
        if step < STEPS:
            line = {"kind": "step", "step": step, "loss": loss, "weight_norm": norm}
            line |= {"gradient_norm": loss / (3 + number), "update_ratio": 1e-2 / (1 + step)}
            log.append(line)
    return log


def write_run(folder, description, name, seed, diverges):
    folder.mkdir(parents=True)
    run = {**description, "optimizer": name, "seed": seed, "steps": STEPS}
    (folder / "run.json").write_text(json.dumps(run))
    log = fake_log(NAMES.index(name), seed, diverges)
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    loss = next(line["loss"] for line in reversed(log) if line["kind"] == "evaluation")
    result = {"status": "diverged" if diverges else "finished", "final_loss": loss}
    result |= {"best_loss": loss, "weight_norm": 30.0, "seconds": 12.5 + seed}
    result |= {"peak_memory_bytes": 5e8, "state_bytes": 4e6, "lowest_possible_loss": 1.6}
    (folder / "result.json").write_text(json.dumps(result))


def make_report(rode, task, out, seeds=3):
    """Of a comparison whose runs are done: `rode compare` takes them as they are."""
    entry = TASK[TASK.index("[optimizers.adamw]") :]
    head = TASK[: TASK.index("[optimizers.rode]")].replace("warmup = 10", "warmup = 0")
    body = entry.partition("\n")[2]
    tables = [f'[optimizers.{name}]\noptimizer = "adamw"\n{body}' for name in NAMES]
    task.write_text(head + "".join(tables))
    words = train_words(task, out / "sample", "--steps", STEPS, "--until", 1, optimizer=NAMES[0])
    made = rode.call(*words)
    assert made.returncode == 0, made.stderr
    description = json.loads((out / "sample" / "run.json").read_text())
    del description["checksum"]  # it is edited; without one it loads with a note
    for name in NAMES:
        for seed in range(1, seeds + 1):
            diverges = name == "fails" or (name == NAMES[4] and seed == 2)
            write_run(out / f"{name}-seed{seed}", description, name, seed, diverges)
    words = ["compare", "--task", task, "--optimizers", ",".join(NAMES), "--out", out]
    done = rode.call(*words, "--seeds", seeds, "--steps", STEPS, "--json")
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


def test_the_report_fits_and_tells_twelve_optimizers_apart(rode, task, tmp_path):
    page = make_report(rode, task, tmp_path / "all")
    wide, narrow = in_browser(page, tmp_path)
    for view, columns in ((wide, 2), (narrow, 1)):
        assert view["scroll"] <= view["width"], "the page scrolls sideways"
        figures = view["figures"]
        assert len(figures) == 6, [figure["title"] for figure in figures]
        assert len({round(figure["figure"]["left"]) for figure in figures}) == columns
        for figure in figures:
            assert figure["curves"] >= len(NAMES), figure["title"]
            strokes = [tuple(stroke) for stroke in figure["strokes"]]
            assert len(strokes) > len(NAMES) and len(set(strokes)) == len(strokes), strokes
            assert all(apart(entry, figure["plot"]) for entry in figure["entries"])
            assert all(entry["right"] <= figure["figure"]["right"] for entry in figure["entries"])
            # Values of every curve that is there, in a box that covers none.
            tip = figure["tip"]
            assert tip["shown"] and figure["closed"], figure["title"]
            assert tip["rows"] >= len(NAMES) - 1 and NAMES[0] in tip["text"]
            assert apart(tip, figure["plot"])
            assert figure["figure"]["left"] <= tip["left"]
            assert tip["right"] <= figure["figure"]["right"]
            for other in figures:
                assert other is figure or apart(figure["figure"], other["figure"])
