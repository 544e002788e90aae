#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the classes of the Python package from the headers and the engine's option tables.

Names come from include/rode/optim/list.h, docstrings from the comments at the heads of the options
headers, arguments from `rode optimizers --json`: a new optimizer needs no Python by hand.

    tools/python_classes.py [--rode build/bin/rode] [--check]

--check writes nothing and exits 1 if a file is not what would be written.
"""

import argparse
import dataclasses
import re
import sys
import textwrap

from optimizer_docs import HEADERS, ROOT, header_of, recurrence, run

PACKAGE = ROOT / "python/rode"

# Which options come first and may be given by position, where the optimizer has them.
ADAM_ORDER = ("lr", "betas", "eps", "weight_decay")
PLAIN_ORDER = ("lr", "lr_rho", "weight_decay")
# None: the default of the name that the other options choose, such as muon-rms.
RATES = ("lr", "lr_rho", "lr_rest")
# None, too: what the presets of a family set otherwise.
PRESET_KEYS = {"rode": ("scale", "radius", "reproject", "nesterov", "snr", "on_zero")}
# Refused with any value different from the default.
HIDDEN = {"soap": ("state_dtype",)}


@dataclasses.dataclass
class Twin:
    """A class that stands for torch.optim's: arguments, order and defaults are torch's."""

    arguments: str
    state: dict[str, str]  # torch's names for the engine's state keys, where they differ
    unused: str
    refused: str


TWINS = {
    "adamw": Twin(
        """
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        """,
        {},
        "``foreach``, ``capturable``, ``differentiable`` and ``fused``",
        "amsgrad",
    ),
    "sgd": Twin(
        """
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | torch.Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        """,
        {"momentum": "momentum_buffer"},
        "``foreach``, ``differentiable`` and ``fused``",
        "dampening",
    ),
}

RADIAL = (
    "A scheduler moves ``lr``; ``lr_rho`` follows as lr_rho * lr / initial_lr, unless "
    "``couple_lr_rho`` is False."
)
PARALLEL = (
    "``process_group`` (True: all processes) deals the parameters out: each process steps its share, "
    "keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each "
    "wait for them (docs/distributed.md)."
)
DELEGATED = (
    "What is not a matrix is stepped by AdamW with ``lr_rest``, ``weight_decay_rest``, "
    "``betas_rest`` and ``eps_rest``: a group of its own where a module is given. Unless it is set, "
    "``lr_rest`` is its default times lr / default lr."
)
ONE_RULE = (
    "One rule, one rate and one decay for all; given a module, what is not a matrix has "
    "``lr_rest`` and ``weight_decay_rest`` where these are set."
)
AS_TORCH = (
    "Arguments are torch's, in its order and with its defaults (those of the command line and of "
    "C++ belong to a language model of 114M parameters); one rule and one rate for all, unless "
    "``lr_rest`` and ``weight_decay_rest`` are set. {unused} choose between torch's loops and mean "
    "nothing here; ``{refused}`` is refused. Checkpoints are torch's: either class loads those of "
    "the other."
)

PRESET = (
    '``preset="paper"`` is the published algorithm with its rates; options that are given win over '
    "a preset's."
)

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""{purpose} Options left None take the default
that `rode optimizers` prints. Written by tools/python_classes.py: edit the header or the option
table of the engine instead."""

import datetime

import torch

{imports}

__all__ = {names}
'''
FILES = {
    "optimizers.py": "The matrix optimizers: one class each, with its recurrence.",
    "one_rule.py": "The optimizers that step everything by one rule.",
}


def classes():
    """Class, options struct and name of every optimizer, from the list of them."""
    return re.findall(r'X\((\w+), (\w+), "([^"]+)"', (HEADERS / "list.h").read_text())


def number(value):
    return re.sub(r"e-0(\d)", r"e-\1", repr(float(value)))


def argument(option, preset_keys=()):
    """Type and default of an option, as in a signature."""
    key, default = option["key"], option["default"]
    if key in preset_keys:
        return "bool | None" if isinstance(default, bool) else "str | None", "None"
    if key in RATES:
        return "float | torch.Tensor | None" if key == "lr" else "float | None", "None"
    if not option["set"]:  # the default follows other options
        return "float | None" if option["live"] else "int | None", "None"
    if isinstance(default, list):
        return (
            f"tuple[{', '.join(['float'] * len(default))}]",
            f"({', '.join(map(number, default))})",
        )
    if isinstance(default, str):
        return "str", f'"{default}"'
    if isinstance(default, bool):
        return "bool", str(default)
    return ("float", number(default)) if option["live"] else ("int", str(default))


def signature(info):
    """The lines of the arguments after `params`."""
    twin = TWINS.get(info["name"])
    hidden = HIDDEN.get(info["name"], ())
    preset_keys = PRESET_KEYS.get(info["name"], ())
    options = {
        o["key"]: o
        for o in info["options"]
        if o["key"] not in hidden and not o["help"].startswith("only ")
    }
    if twin:
        lines = [line.strip() for line in twin.arguments.strip().splitlines()]
        taken = {line.split(":")[0] for line in lines}
        for key in ("lr_rest", "weight_decay_rest"):
            lines.append(f"{key}: float | torch.Tensor | None = None,")
            taken.add(key)
    else:
        taken = [k for k in (ADAM_ORDER if "betas" in options else PLAIN_ORDER) if k in options]
        lines = ["{}: {} = {},".format(key, *argument(options[key])) for key in taken] + ["*,"]
    for key, option in options.items():
        if key not in taken:
            lines.append("{}: {} = {},".format(key, *argument(option, preset_keys)))
    if preset_keys:
        lines.append("preset: str | None = None,")
    lines.append('on_non_finite: str = "refuse",')
    if "lr_rho" in options:
        lines.append("couple_lr_rho: bool = True,")
    lines += [
        "process_group: Group = None,",
        "timeout: float | datetime.timedelta | None = None,",
    ]
    return [*lines, 'route: str = "auto",']


def docstring(info, struct):
    first, _, rest = recurrence(header_of(struct)).partition("\n\n")
    block = "\n".join(f"    {line}".rstrip() for line in rest.strip("\n").splitlines())
    keys = {option["key"] for option in info["options"]}
    twin = TWINS.get(info["name"])
    notes = [RADIAL] if "lr_rho" in keys else []
    if info["name"] in PRESET_KEYS:
        notes.append(PRESET)
    if twin:
        notes.append(AS_TORCH.format(unused=twin.unused, refused=twin.refused))
    else:
        notes.append(DELEGATED if "betas_rest" in keys else ONE_RULE)
    notes.append(PARALLEL)
    return "\n\n".join(
        [f"{first.rstrip('.')}::", block, *(textwrap.fill(note, 95) for note in notes)]
    )


def class_text(info, name, struct):
    twin = TWINS.get(info["name"])
    body = [f"class {name}({'TorchTwin' if twin else 'EngineOptimizer'}):"]
    body += [
        f'    r"""{docstring(info, struct)}'.replace("\n", "\n    "),
        '    """',
        "",
    ]
    if twin:
        state = ", ".join(f'"{own}": "{theirs}"' for own, theirs in twin.state.items())
        body += [f"    _torch_names: dict[str, str] | None = {{{state}}}", ""]
    body += ["    def __init__(", "        self,", "        params: Params,"]
    body += [f"        {line}" for line in signature(info)]
    body += [
        "    ) -> None:",
        f'        super().__init__(params, "{info["name"]}", route, given(locals()))',
    ]
    return "\n".join(line.rstrip() for line in "\n".join(body).splitlines())


def files(infos):
    """File -> its text."""
    known = {info["name"]: info for info in infos}
    members = {file: [] for file in FILES}
    for name, struct, engine in classes():
        keys = {option["key"] for option in known[engine]["options"]}
        file = "optimizers.py" if "betas_rest" in keys else "one_rule.py"
        members[file].append((name, class_text(known[engine], name, struct), engine in TWINS))
    out = {}
    for file, rows in members.items():
        twins = any(twin for _, _, twin in rows)
        base = "from rode._base import EngineOptimizer, Group, Params, given"
        imports = base + ("\nfrom rode._torch_twin import TorchTwin" if twins else "")
        names = "[\n" + "".join(f'    "{name}",\n' for name in sorted(n for n, _, _ in rows)) + "]"
        head = HEAD.format(purpose=FILES[file], imports=imports, names=names)
        out[PACKAGE / file] = head + "".join(f"\n\n{text}\n" for _, text, _ in rows)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rode", default=str(ROOT / "build/bin/rode"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for path, text in files(run(options.rode, "optimizers", "--json")["optimizers"]).items():
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if not options.check:
            path.write_text(text)
    if stale:
        verb = "differ from the code; run `make docs`" if options.check else "written"
        print(f"python/rode: {', '.join(stale)} {verb}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
