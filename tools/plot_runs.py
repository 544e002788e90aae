# SPDX-License-Identifier: Apache-2.0
"""Draws the curves of a folder of runs (`rode compare`) as one PNG, with matplotlib.

Usage: plot_runs.py DIR [OUT.png]
"""

import collections
import json
import math
import pathlib
import sys

CURVES = [
    ("evaluation", "loss", "validation loss", False),
    ("step", "loss", "training loss, smoothed", False),
    ("evaluation", "weight_norm", "global weight norm", False),
    ("step", "gradient_norm", "gradient norm, smoothed", True),
]
SMOOTHING = 0.9


def style(number):
    """Ten colours, each with four dashes."""
    return {"color": f"C{number % 10}", "linestyle": ("-", "--", ":", "-.")[number // 10 % 4]}


def runs(folder):
    """By optimizer the logs of its runs, and those of runs that diverged."""
    found = collections.defaultdict(lambda: ([], []))
    for path in sorted(folder.glob("*/run.json")):
        name = json.loads(path.read_text())["optimizer"]
        text = (path.parent / "log.jsonl").read_text()
        log = [json.loads(line) for line in text.splitlines()]
        diverged = any(line["kind"] == "diverged" for line in log)
        found[name][diverged].append(log)
    return found


def curve(logs, kind, key):
    """Steps, means and sample deviations over the seeds."""
    values = collections.defaultdict(list)
    for log in logs:
        average = None
        for line in log:
            if line["kind"] != kind or line.get(key) is None:
                continue
            keep = SMOOTHING if kind == "step" and average is not None else 0
            average = keep * (average or 0) + (1 - keep) * line[key]
            values[line["step"]].append(average)
    steps = sorted(values)
    means = [sum(values[s]) / len(values[s]) for s in steps]
    deviations = [
        math.sqrt(sum((v - m) ** 2 for v in values[s]) / max(1, len(values[s]) - 1))
        for s, m in zip(steps, means)
    ]
    return steps, means, deviations


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_runs: matplotlib is not installed; the .svg files hold the same curves")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else folder / "curves.png"
    found = runs(folder)
    if not found:
        sys.exit(f"plot_runs: no runs below '{folder}'")
    figure, places = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
    for place, (kind, key, title, logarithmic) in zip(places.flat, CURVES):
        place.set(title=title, xlabel="step", yscale="log" if logarithmic else "linear")
        for number, (name, (logs, _)) in enumerate(found.items()):
            if not logs:
                continue
            steps, means, deviations = curve(logs, kind, key)
            (line,) = place.plot(steps, means, label=name, **style(number))
            low = [m - d for m, d in zip(means, deviations)]
            high = [m + d for m, d in zip(means, deviations)]
            place.fill_between(steps, low, high, alpha=0.2, color=line.get_color())
        if place.lines:  # whose range the others must not stretch
            place.set_ylim(place.get_ylim())
        for number, (name, (_, diverged)) in enumerate(found.items()):
            for index, log in enumerate(diverged):
                steps, values, _ = curve([log], kind, key)
                label = None if index else f"{name}, diverged"
                ends = {"linewidth": 0.8, "marker": "x", "markevery": [-1]}
                place.plot(steps, values, label=label, **style(number), **ends)
    # One for all, beside the plots: the names are the same.
    entries = {}
    for place in places.flat:
        handles, labels = place.get_legend_handles_labels()
        entries |= dict(zip(labels, handles))
    figure.legend(entries.values(), entries.keys(), loc="outside right upper")
    figure.savefig(out, dpi=120)
    print(out)


if __name__ == "__main__":
    main()
