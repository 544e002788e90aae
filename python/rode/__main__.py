# SPDX-License-Identifier: Apache-2.0
"""`python -m rode`: versions, devices and the build; `python -m rode NAME ...`: a subcommand."""

import importlib
import platform
import sys

import torch

from rode import _engine

# Name to the module whose `main(arguments)` returns the exit code.
COMMANDS = {
    "finetune": "rode.finetune.command",
    "evaluate": "rode.evaluate.command",
    "sweep": "rode.sweep.command",
}


def show_build() -> None:
    cuda = torch.version.cuda or "none"
    print(f"rode     {_engine.version()} ({_engine.__file__})")
    print(f"python   {platform.python_version()}")
    print(f"torch    {torch.__version__}, CUDA {cuda}")
    print(f"backends cpu{', cuda' if _engine.with_cuda() else ''}")
    print(f"threads  {torch.get_num_threads()}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            stepped = "" if _engine.with_cuda() else " (rode was built without CUDA)"
            print(f"device   cuda:{index} {torch.cuda.get_device_name(index)}{stepped}")
    else:
        print("device   cpu")
    for name, summary, _ in _engine.optimizers():
        print(f"  {name:<14} {summary}")


def main(arguments: list[str]) -> int:
    if not arguments:
        show_build()
        return 0
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(f"usage: python -m rode [{'|'.join(COMMANDS)}] ...\n\nWithout a subcommand: prints ")
        print(
            "versions, devices and the build. `python -m rode NAME --help` explains a subcommand."
        )
        return 0
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(
            f"rode: error: [usage] unknown subcommand '{name}'; expected {known}", file=sys.stderr
        )
        return 2
    return int(importlib.import_module(COMMANDS[name]).main(rest))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
