// SPDX-License-Identifier: Apache-2.0
// The one place that holds the version.
#pragma once

#define RODE_VERSION_MAJOR 0
#define RODE_VERSION_MINOR 1
#define RODE_VERSION_PATCH 0
#define RODE_VERSION_STRING "0.1.0"

namespace rode {

// The version the library was built as; compare with RODE_VERSION_STRING, the headers' own.
const char* version();

}  // namespace rode
