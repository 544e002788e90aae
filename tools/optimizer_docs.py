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
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "optimizers"

HEADERS = ROOT / "include/rode/optim"
SHAPES = {"qwen2-114m": "Qwen2-style 114M", "gpt2": "GPT-2 124M", "resnet50": "ResNet-50"}


def structs():
    """Name of an optimizer -> its options struct, from the list of optimizers."""
    rows = re.findall(r'X\(\w+, (\w+), "([^"]+)"', (HEADERS / "list.h").read_text())
    return {name: struct for struct, name in rows}


def header_of(struct):
    """The header that defines an options struct."""
    for path in HEADERS.glob("*.h"):
        if f"struct {struct} {{" in path.read_text():
            return path.stem
    raise SystemExit(f"optimizer_docs: no header in {HEADERS} defines struct {struct}")


def recurrence(header):
    """The leading comment of an options header, without the licence line."""
    lines = []
    for line in (HEADERS / f"{header}.h").read_text().splitlines()[1:]:
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


def preset_of(info, base):
    """What a name sets beyond the defaults of its struct."""
    defaults = {o["key"]: o["default"] for o in base["options"]}
    changed = [o for o in info["options"] if o["default"] != defaults[o["key"]]]
    return ", ".join(f"`{o['key']} = {text(o['default'])}`" for o in changed)


def page(info, base, struct, state_bytes):
    header = header_of(struct)
    preset = preset_of(info, base)
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
    known, base = structs(), None
    for info in run(options.rode, "optimizers", "--json")["optimizers"]:
        name = info["name"]
        if name in known:  # the names after it, up to the next one here, are its presets
            base = info
        state_bytes = {
            shapes: next(o["state_bytes"] for o in table["optimizers"] if o["name"] == name)
            for shapes, table in tables.items()
        }
        path, fresh = PAGES / f"{name}.md", page(info, base, known[base["name"]], state_bytes)
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
