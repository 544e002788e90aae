# SPDX-License-Identifier: Apache-2.0
"""Shows that the checks of this folder find what they are for, on small trees made to be wrong."""

import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
HEAD = "// SPDX-License-Identifier: Apache-2.0\n// A file.\n"
HEADERS = [
    "include/rode/error.h",
    "include/rode/optim/muon.h",
    "src/core/buffer.h",
    "src/rules/muon_rule.h",
    "src/backend/backend.h",
    "src/backend/cpu/pool.h",
    "src/backend/host/lapack.h",
    "src/optim/factory.h",
    "src/reference/reference.h",
    "adapters/torch/include/rode/torch.h",
]

# (check, file, its text after HEAD, what the report must hold; None: no problem)
CASES = [
    ("check_includes", "src/optim/a.cpp", '#include "backend/backend.h"\n', None),
    ("check_includes", "src/optim/a.cpp", '#include "rode/optim/muon.h"\n', None),
    ("check_includes", "apps/rode/a.cpp", '#include "reference/reference.h"\n', None),
    ("check_includes", "src/backend/cpu/a.cpp", '#include "pool.h"\n', None),
    ("check_includes", "tests/a.cpp", '#include "backend/cpu/pool.h"\n', None),
    ("check_includes", "src/core/a.cpp", '#include "rules/muon_rule.h"\n', "a.cpp:3: core/"),
    ("check_includes", "src/backend/cpu/a.cpp", '#include "optim/factory.h"\n', "above it"),
    ("check_includes", "src/backend/no_cuda/a.cpp", '#include "../cpu/pool.h"\n', "another"),
    ("check_includes", "src/backend/cuda/a.cpp", '#include "backend/cpu/pool.h"\n', "another"),
    ("check_includes", "src/backend/cuda/a.cpp", '#include "backend/host/lapack.h"\n', None),
    ("check_includes", "src/backend/host/a.cpp", '#include "backend/cpu/pool.h"\n', "another"),
    ("check_includes", "src/optim/a.cpp", '#include "backend/host/lapack.h"\n', "only its seam"),
    ("check_includes", "src/reference/a.cpp", '#include "rules/muon_rule.h"\n', "stand apart"),
    ("check_includes", "src/optim/a.cpp", '#include "reference/reference.h"\n', "its oracle"),
    ("check_includes", "src/optim/a.cpp", '#include "nowhere.h"\n', "not in the tree"),
    ("check_includes", "adapters/torch/src/a.cpp", '#include "rode/torch.h"\n', None),
    ("check_includes", "src/optim/a.cpp", '#include "rode/torch.h"\n', "above it"),
    ("check_includes", "include/rode/a.h", '#include "rode/torch.h"\n', "not public"),
    ("check_includes", "include/rode/a.h", '#include "core/buffer.h"\n', "not public"),
    ("check_includes", "include/rode/a.h", "#include <fmt/format.h>\n", "standard library"),
    ("check_includes", "include/rode/a.h", '#include "rode/error.h"\n#include <vector>\n', None),
    ("check_files", "src/core/a.cpp", "int a;\n", None),
    ("check_files", "src/core/a.cpp", "int a; \n", "a.cpp:3: trailing whitespace"),
    ("check_files", "src/core/a.cpp", "\tint a;\n", "a.cpp:3: tab"),
    ("check_files", "src/core/a.cpp", "int a;", "no newline"),
    ("check_files", "src/core/a.cpp", "// TODO: later\n", "issue number"),
    ("check_files", "src/core/a.cpp", "int a;\n" * 399, "401 lines"),
]


def report(check: str, file: str, text: str) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in [*((header, HEAD) for header in HEADERS), (file, text)]:
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
        command = [sys.executable, HERE / f"{check}.py", folder]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> None:
    cases = [(check, file, HEAD + text, expected) for check, file, text, expected in CASES]
    cases.append(("check_files", "src/core/a.cpp", "int a;\n", "a.cpp:1: expected 'SPDX"))
    cases.append(("check_files", "src/core/a.cpp", HEAD.splitlines()[0] + "\nint a;\n", "a.cpp:2"))
    failures = 0
    for check, file, text, expected in cases:
        result = report(check, file, text)
        seen = result.stdout
        good = (
            result.returncode == 0
            if expected is None
            else result.returncode == 1 and expected in seen
        )
        if not good:
            failures += 1
            print(f"{check} on {file}: expected {expected!r}, got:\n{text[-80:]}\n{seen}")
            print(result.stderr)
    print(f"check_lint: {len(cases)} cases, {failures} wrong")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
