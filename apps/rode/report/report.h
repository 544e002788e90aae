// SPDX-License-Identifier: Apache-2.0
// What `rode compare` and `rode report` print.
#pragma once

#include "lab/report/report.h"

namespace rode::cli {

void print_report(const lab::Report& report);

}  // namespace rode::cli
