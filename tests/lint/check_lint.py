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
    "src/backend/cuda/device/buffer.h",
    "src/backend/cuda/soap/soap.h",
    "src/backend/host/lapack.h",
    "src/optim/factory.h",
    "src/reference/reference.h",
    "src/lab/run/plan.h",
    "src/lab/task/task.h",
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
    (
        "check_includes",
        "src/backend/cuda/soap/a.cu",
        '#include "backend/cuda/device/buffer.h"\n',
        None,
    ),
    (
        "check_includes",
        "src/backend/cuda/device/a.cu",
        '#include "backend/cuda/soap/soap.h"\n',
        "below",
    ),
    (
        "check_includes",
        "src/backend/cuda/passes/a.cu",
        '#include "backend/cuda/soap/soap.h"\n',
        "below",
    ),
    ("check_includes", "src/backend/cuda/a.cpp", '#include "backend/host/lapack.h"\n', None),
    ("check_includes", "src/backend/host/a.cpp", '#include "backend/cpu/pool.h"\n', "another"),
    ("check_includes", "src/optim/a.cpp", '#include "backend/host/lapack.h"\n', "only its seam"),
    ("check_includes", "src/reference/a.cpp", '#include "rules/muon_rule.h"\n', "stand apart"),
    ("check_includes", "src/optim/a.cpp", '#include "reference/reference.h"\n', "its oracle"),
    ("check_includes", "src/optim/a.cpp", '#include "nowhere.h"\n', "not in the tree"),
    ("check_includes", "src/lab/run/a.cpp", '#include "lab/task/task.h"\n', None),
    ("check_includes", "src/lab/task/a.cpp", '#include "lab/run/plan.h"\n', "may include base"),
    ("check_includes", "src/lab/run/a.cpp", "#include <torch/nn/module.h>\n", "include Torch"),
    ("check_includes", "src/lab/train/a.cpp", "#include <torch/nn/module.h>\n", None),
    ("check_includes", "src/lab/new/a.cpp", '#include "core/buffer.h"\n', "no entry in LAB"),
    ("check_includes", "apps/rode/bench/a.cpp", '#include "lab/run/plan.h"\n', None),
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
    ("check_words", "src/core/a.cpp", "// 4 bytes per parameter; one of a kind\n", None),
    ("check_words", "src/core/a.cpp", "int chunk;  // a tile\n", None),
    ("check_words", "src/core/a.cpp", "// State: 4 bytes a parameter\n", "a.cpp:3: '4 bytes a"),
    ("check_words", "src/core/a.cpp", "// One block\n// a job.\n", "a.cpp:3: 'One block a job'"),
    ("check_words", "src/core/a.cpp", 'f("all but "\n  "for one");\n', "write 'except'"),
    ("check_words", "docs/a.md", "A kernel runs over chunks.\n", "a.md:3: 'chunks'"),
    ("check_words", "docs/a.md", "built\nanew\n", "a.md:4: 'anew'"),
    ("check_words", "src/core/a.cpp", 'f("NCCL cannot "\n  "be had");\n', "'is not available'"),
    ("check_words", "docs/a.md", "The file is no JSON.\n", "'is no JSON'"),
    ("check_words", "docs/a.md", "There is no JSON; a string is told.\n", None),
    ("check_words", "tests/lint/a.py", "# anew\n", None),
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
    script = HEAD.replace("//", "#") + "readonly a=1\nf() {\n  local {name}=2\n}\n"
    cases.append(("check_files", "tools/a.sh", script.replace("{name}", "b"), None))
    cases.append(("check_files", "tools/a.sh", script.replace("{name}", "a"), "readonly variable"))
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
