// SPDX-License-Identifier: Apache-2.0
// A comparison as one HTML file that needs no other.
#pragma once

#include <string>

#include "lab/report/summary.h"

namespace rode::lab {

std::string html_report(const Comparison& comparison);

// report.html, compare.json and one .svg per chart; each appears whole or not at all. Where the
// machine has a converter, one .png per chart too; a converter that fails is told to `note`.
void write_report(const Comparison& comparison, const std::filesystem::path& folder,
                  const Note& note = {});

}  // namespace rode::lab
