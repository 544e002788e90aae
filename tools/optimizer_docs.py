#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/optimizers/<name>.md from the headers' recurrences and the command line's tables.

The recurrence of a page is the comment at the head of include/rode/optim/<header>.h, the options
are what `rode optimizers --json` prints: neither can differ from the code.

    tools/optimizer_docs.py [--rode build/bin/rode] [--check]

--check writes nothing and exits 1 if a page is not what would be written.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "optimizers"

# Page: header, C++ options struct, what the name sets beyond the struct's defaults.
SOURCES = {
    "rode": ("rode", "RodeOptions", ""),
    "rode-snr": ("rode", "RodeOptions", "`snr = true` and the rates selected for it"),
    "rode-fixed": ("rode", "RodeOptions", "`radius = fixed`, `lr_rho = 0`"),
    "muon": ("muon", "MuonOptions", ""),
    "muon-rms": ("muon", "MuonOptions", "`scale = rms` and the rates selected for it"),
    "muon-normproj": ("muon", "MuonOptions", "`scale = rms`, `constraint = normproj`"),
    "soap": ("soap", "SoapOptions", ""),
    "mars-m": ("mars_m", "MarsMOptions", ""),
    "ademamix": ("ademamix", "AdEMAMixOptions", ""),
    "adafactor": ("adafactor", "AdafactorOptions", ""),
    "adamw": ("adamw", "AdamWOptions", ""),
    "sgd": ("sgd", "SgdOptions", ""),
}
SHAPES = {"qwen2-114m": "Qwen2-style 114M", "gpt2": "GPT-2 124M", "resnet50": "ResNet-50"}


def recurrence(header):
    """The leading comment of an options header, without the licence line."""
    lines = []
    for line in (ROOT / "include/rode/optim" / f"{header}.h").read_text().splitlines()[1:]:
        if not line.startswith("//"):
            break
        lines.append(line[3:] if line.startswith("// ") else line[2:])
    return "\n".join(lines)


def text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return str(value) if value != "" else "(none)"


def page(info, state_bytes):
    header, struct, preset = SOURCES[info["name"]]
    rows = "\n".join(
        f"| `{o['key']}` | {text(o['default'])} | {o['help']} |" for o in info["options"]
    )
    sizes = "\n".join(
        f"| {title} | {state_bytes[shapes] / 1e6:.1f} |" for shapes, title in SHAPES.items()
    )
    preset_line = f"\n`{info['name']}` is `{struct}` with {preset}.\n" if preset else ""
    return f"""# {info["name"]}

<!-- Written by tools/optimizer_docs.py; edit the header or the option table instead. -->

{info["summary"][0].upper() + info["summary"][1:]}.
{preset_line}
## Recurrence

```text
{recurrence(header)}
```

## Options

C++: `rode::{struct}` in `<rode/optim/{header}.h>`; by name: `rode::Method::by_name("{info["name"]}",
{{{{"lr", "..."}}}})`; command line: `rode step --optimizer {info["name"]} --set key=value`.

| option | default | meaning |
|---|---|---|
{rows}

## State

| model | MB of 10^6 bytes |
|---|---|
{sizes}
"""


def run(rode, *arguments):
    done = subprocess.run([rode, *arguments], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rode", default=str(ROOT / "build/bin/rode"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    tables = {
        shapes: run(options.rode, "optimizers", "--shapes", shapes, "--json") for shapes in SHAPES
    }
    stale = []
    for info in run(options.rode, "optimizers", "--json")["optimizers"]:
        name = info["name"]
        state_bytes = {
            shapes: next(o["state_bytes"] for o in table["optimizers"] if o["name"] == name)
            for shapes, table in tables.items()
        }
        path, fresh = PAGES / f"{name}.md", page(info, state_bytes)
        if path.exists() and path.read_text() == fresh:
            continue
        stale.append(path.name)
        if not options.check:
            path.write_text(fresh)
    if stale:
        verb = "differ from the code; run `make docs`" if options.check else "written"
        print(f"docs/optimizers: {', '.join(stale)} {verb}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
