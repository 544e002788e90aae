# SPDX-License-Identifier: Apache-2.0
"""Why the compiled module cannot be loaded, and what to do about it."""

import re

# Debian names a library's package after its file and version; these are the exceptions.
_PACKAGES = {"libopenblas": "libopenblas0-openmp", "libOpenCL": "ocl-icd-libopencl1"}
_REBUILD = "pip install --force-reinstall --no-deps . in rode's repository"


def explained(error: ImportError) -> ImportError:
    """The error with a remedy."""
    text = str(error)
    library = re.match(r"((lib[^\s:/]+?)\.so\.?(\d*)[^\s:]*): cannot open shared object", text)
    if library:
        file, stem, version = library.groups()
        package = _PACKAGES.get(stem, f"{stem}{version}")
        why = f"the engine needs {file}, which was not found on this system"
        remedy = (
            f"install it (Debian and Ubuntu: apt install {package}), or, where only another "
            f"version of it is at hand, build the engine for that one: {_REBUILD}"
        )
    elif isinstance(error, ModuleNotFoundError):
        why = "the package holds no engine, as in a source tree or for another Python"
        remedy = f"build it: {_REBUILD}"
    else:  # symbols or versions of symbols
        why = "the engine does not fit the libraries of this system"
        remedy = f"build it for them: {_REBUILD}"
    return ImportError(f"[import] {why}; {remedy} ({text})", name=error.name, path=error.path)
