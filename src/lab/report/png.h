// SPDX-License-Identifier: Apache-2.0
// SVG files as PNG, by a converter of the machine.
#pragma once

#include <filesystem>
#include <string>

namespace rode::lab {

// The first of rsvg-convert and inkscape that is in PATH; empty where neither is.
std::string svg_converter();

// False where the converter fails; no half-written `png` is left then.
bool convert_svg(const std::string& converter, const std::filesystem::path& svg,
                 const std::filesystem::path& png);

}  // namespace rode::lab
