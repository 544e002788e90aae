# SPDX-License-Identifier: Apache-2.0
"""`python -m rode`: versions, devices and the build."""

import platform

import torch

from rode import _engine


def main() -> None:
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


if __name__ == "__main__":
    main()
