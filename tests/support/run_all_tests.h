// SPDX-License-Identifier: Apache-2.0
// RUN_ALL_TESTS for every test program: a run in which nothing was tested says so and is no
// success.
#pragma once

namespace rode::test {

// Status of a run whose tests were all skipped; CTest counts it as skipped (cmake/RodeTests.cmake).
inline constexpr int kAllSkipped = 77;
// Status of a wrong command line, such as a filter that no test matches.
inline constexpr int kUsage = 2;

// To be called once, after InitGoogleTest. Prints why tests were skipped, each reason once.
int run_all_tests();

}  // namespace rode::test
