# SPDX-License-Identifier: Apache-2.0
"""Checks that includes point one way: apps -> lab -> adapters -> optim -> ... -> core.

Usage: check_includes.py [ROOT]

A folder may include itself, the folders below it in LAYERS, and public
headers. Beyond that order:
  - public headers include only public headers and the standard library;
  - outside backend/, only the seam (headers directly in src/backend) is seen,
    and one backend does not include another; all may include backend/host;
  - reference/, the oracle of the tests, shares no equation with the engine,
    and the engine does not know it.
tests/ and bench/ may include everything.
"""

import pathlib
import re
import sys

import source_tree

# From the bottom up.
LAYERS = ["core", "rules", "backend", "optim", "adapters", "lab", "apps"]
ENGINE = ["core", "rules", "backend", "optim"]
# The adapters' own headers are installed beside the engine's, and may include what they adapt to.
INCLUDE_FOLDERS = ["src", "include", "adapters/torch/include", "."]
UNRESTRICTED = {"tests", "bench", "examples"}
# What backends do on the host, whatever their device.
SHARED_BACKEND = "host"
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def layer_of(path: pathlib.PurePath) -> str:
    """Names the part of the tree that a file belongs to: a layer, 'reference', 'public', ..."""
    if path.parts[0] == "include":
        return "public"
    if path.parts[0] == "src" and len(path.parts) > 2:
        return path.parts[1]
    return path.parts[0]


def backend_of(path: pathlib.PurePath) -> str | None:
    """The backend's name for src/backend/<name>/..., None for the seam and all else."""
    return path.parts[2] if path.parts[:2] == ("src", "backend") and len(path.parts) > 3 else None


def resolve(root: pathlib.Path, file: pathlib.Path, name: str) -> pathlib.Path | None:
    """The file of this tree that an include means, relative to root; None when there is none."""
    for folder in (file.parent, *map(pathlib.Path, INCLUDE_FOLDERS)):
        # A header made by configure_file counts as its template's place.
        for candidate in (root / folder / name, root / folder / (name + ".in")):
            if candidate.is_file():
                return candidate.resolve().relative_to(root).with_name(pathlib.Path(name).name)
    return None


def public_problem(quoted: bool, name: str, target: pathlib.Path | None) -> str | None:
    if target is not None and layer_of(target) == "public":
        return None
    if target is not None or quoted:
        return f"public header includes '{name}', which is not public"
    # Standard headers have neither a folder nor an extension, or are C's.
    if re.fullmatch(r"[a-z_0-9]+", name):
        return None
    return f"public header includes '{name}'; only the standard library and rode/ are allowed"


def problem(file: pathlib.Path, quoted: bool, name: str, target: pathlib.Path | None) -> str | None:
    """What is wrong with one include, or None."""
    here = layer_of(file)
    if here == "public":
        return public_problem(quoted, name, target)
    if here in UNRESTRICTED:
        return None
    if target is None:
        return f"'{name}' is not in the tree; use <> for other libraries" if quoted else None
    there = layer_of(target)
    if there == "public":
        return None
    if here == "reference":
        allowed = there in ("reference", "core")
        return None if allowed else f"reference/ includes '{name}': the oracle must stand apart"
    if there == "reference":
        allowed = here not in ENGINE
        return (
            None if allowed else f"{here}/ includes '{name}': the engine must not know its oracle"
        )
    if here in LAYERS and there not in LAYERS:
        return f"{here}/ includes '{name}', which is outside the layers"
    if here in LAYERS and LAYERS.index(there) > LAYERS.index(here):
        return f"{here}/ includes '{name}', but {there}/ lies above it"
    if backend_of(target) and here != "backend":
        return f"{here}/ includes '{name}'; outside backend/ only its seam may be seen"
    if backend_of(target) not in (None, SHARED_BACKEND, backend_of(file)):
        return f"'{name}' belongs to another backend"
    return None


def main() -> None:
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else source_tree.ROOT
    problems = []
    checked = 0
    for file in source_tree.files(root):
        if file.suffix not in source_tree.CPP_SUFFIXES:
            continue
        checked += 1
        for number, line in enumerate((root / file).read_text("utf-8").splitlines(), start=1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quoted, name = match[1] == '"', match[2]
            found = problem(file, quoted, name, resolve(root, file, name))
            if found:
                problems.append(f"{file}:{number}: {found}")
    source_tree.finish("check_includes", checked, problems)


if __name__ == "__main__":
    main()
