# SPDX-License-Identifier: Apache-2.0
"""Writes src/lab/text/unicode_ranges.h: the letters and numbers of Python's unicodedata.

Usage: unicode_ranges.py > src/lab/text/unicode_ranges.h
"""

import sys
import unicodedata

WIDTH = 100


def ranges(kind: str) -> list[tuple[int, int]]:
    """First and last code point of every run whose general category begins with `kind`."""
    found: list[tuple[int, int]] = []
    for code in range(sys.maxunicode + 1):
        if not unicodedata.category(chr(code)).startswith(kind):
            continue
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return found


def table(name: str, comment: str, pairs: list[tuple[int, int]]) -> str:
    lines = [
        f"// {comment}",
        f"inline constexpr std::array<CodeRange, {len(pairs)}> {name} = {{{{",
    ]
    line = "   "
    for first, last in pairs:
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > WIDTH:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line, "}};", ""])


def main() -> None:
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Code points of the general categories L and N, as ranges: made by")
    print(f"// tools/unicode_ranges.py from Unicode {unicodedata.unidata_version}; do not edit.")
    print("#pragma once\n")
    print("#include <array>\n#include <cstdint>\n")
    print("namespace rode::lab {\n")
    print("struct CodeRange {\n  std::uint32_t first;\n  std::uint32_t last;\n};\n")
    print("// clang-format off")
    print(table("kLetters", "Category L: letters.", ranges("L")))
    print(table("kNumbers", "Category N: numbers.", ranges("N")), end="")
    print("// clang-format on\n\n}  // namespace rode::lab")


if __name__ == "__main__":
    main()
