# SPDX-License-Identifier: Apache-2.0
"""Checks that includes point one way: apps -> lab -> adapters -> optim -> ... -> core.

Usage: check_includes.py [ROOT]

A folder may include itself, the folders below it in LAYERS, and public
headers. Beyond that order:
  - public headers include only public headers and the standard library;
  - outside backend/, only the seam (headers directly in src/backend) is seen,
    and one backend does not include another; all may include backend/host;
  - the folders of backend/cuda have an order of their own, CUDA_FOLDERS;
  - reference/, the oracle of the tests, shares no equation with the engine,
    and the engine does not know it;
  - the folders of the lab include what LAB says, and only models/ and train/
    include Torch.
tests/ and bench/ may include everything.
"""

import pathlib
import re
import sys

import source_tree

# From the bottom up.
LAYERS = ["core", "rules", "backend", "optim", "adapters", "lab", "apps"]
# What a folder of the lab includes of the others.
LAB = {
    "base": set(),
    "text": {"base"},
    "images": {"base"},
    "stream": {"base", "text", "images"},
    "synthetic": {"base", "images", "stream"},
    "task": {"base", "text", "images", "stream", "synthetic"},
    "fetch": {"base", "text"},
    "models": {"base", "task"},
    "run": {"base", "stream", "task"},
    "report": {"base", "run", "task"},
    "theory": {"base", "run"},
    "train": {"base", "stream", "task", "models", "run"},
}
LAB_WITH_TORCH = {"models", "train"}
TORCH = re.compile(r"(torch|ATen|c10|rode/torch)[/.]")
ENGINE = ["core", "rules", "backend", "optim"]
# The adapters' own headers are installed beside the engine's, and may include what they adapt to.
INCLUDE_FOLDERS = ["src", "include", "adapters/torch/include", "apps/rode", "."]
UNRESTRICTED = {"tests", "bench", "examples"}
# What backends do on the host, whatever their device.
SHARED_BACKEND = "host"
# From the bottom up; those of one line do not know each other.
CUDA_FOLDERS = [
    {"device"},
    {"newton_schulz"},
    {"tables"},
    {"passes", "adafactor", "soap"},
    {"step"},
]
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


def cuda_problem(file: pathlib.PurePath, name: str, target: pathlib.PurePath) -> str | None:
    """What is wrong with an include between two folders of backend/cuda, or None."""
    if not backend_of(file) == backend_of(target) == "cuda":
        return None
    here, there = file.parts[3], target.parts[3]
    if here == there:
        return None
    rank = {folder: i for i, line in enumerate(CUDA_FOLDERS) for folder in line}
    if here not in rank or there not in rank:
        return f"'{name}' or this file is in none of the folders {', '.join(rank)}"
    return None if rank[there] < rank[here] else f"{here}/ includes '{name}' of {there}/, not below"


def lab_folder_of(path: pathlib.PurePath) -> str | None:
    """The folder's name for src/lab/<name>/..., None for all else."""
    return path.parts[2] if path.parts[:2] == ("src", "lab") and len(path.parts) > 3 else None


def lab_problem(file: pathlib.Path, name: str, target: pathlib.Path | None) -> str | None:
    """What is wrong with an include inside of the lab, or None."""
    here = lab_folder_of(file)
    if here not in LAB:
        return f"src/lab/{here}/ has no entry in LAB"
    if here not in LAB_WITH_TORCH and TORCH.match(name):
        return f"lab/{here}/ includes '{name}'; only models/ and train/ include Torch"
    there = lab_folder_of(target) if target is not None else None
    if there is None or there == here or there in LAB[here]:
        return None
    return (
        f"lab/{here}/ includes '{name}'; of the lab it may include {', '.join(sorted(LAB[here]))}"
    )


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
    if here == "lab" and (found := lab_problem(file, name, target)):
        return found
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
    return cuda_problem(file, name, target)


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
