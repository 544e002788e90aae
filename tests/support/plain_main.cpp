// SPDX-License-Identifier: Apache-2.0
// The main of test programs without backends.
#include <gtest/gtest.h>

#include "support/run_all_tests.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return rode::test::run_all_tests();
}
