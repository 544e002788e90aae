// SPDX-License-Identifier: Apache-2.0
// The only place that holds the version.
#pragma once

#define RODE_VERSION_MAJOR 0
#define RODE_VERSION_MINOR 1
#define RODE_VERSION_PATCH 0
#define RODE_VERSION_STRING "0.1.0"

namespace rode {

// The version of the built library; compare with RODE_VERSION_STRING, that of the headers.
const char* version();

}  // namespace rode
