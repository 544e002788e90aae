// SPDX-License-Identifier: Apache-2.0
// The last lines and the exit status of a test program.
#include "support/run_all_tests.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include <gtest/gtest.h>

namespace rode::test {
namespace {

// The message of a test's skip, or of its suite's; a skip without one has none.
std::string reason(const testing::TestResult& result) {
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.skipped()) return part.message();
  }
  return "";
}

std::map<std::string, int> reasons_of_skips(const testing::UnitTest& all) {
  std::map<std::string, int> counts;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    const std::string of_suite = reason(suite.ad_hoc_test_result());
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestResult& result = *suite.GetTestInfo(t)->result();
      if (!result.Skipped()) continue;
      std::string said = reason(result);
      if (said.empty()) said = of_suite.empty() ? "no reason given" : of_suite;
      ++counts[said];
    }
  }
  return counts;
}

// A shard of a small program may be empty.
bool sharded() {
  const char* const shards = std::getenv("GTEST_TOTAL_SHARDS");
  return shards != nullptr && std::string(shards) != "1";
}

}  // namespace

int run_all_tests() {
  const int status = RUN_ALL_TESTS();
  if (testing::GTEST_FLAG(list_tests)) return status;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (const auto& [why, count] : reasons_of_skips(all)) {
    std::printf("%d skipped: %s\n", count, why.c_str());
  }
  if (status != 0) return status;
  if (all.test_to_run_count() == 0 && !sharded()) {
    std::fprintf(stderr, "--gtest_filter=%s: no such test; --gtest_list_tests names them\n",
                 testing::GTEST_FLAG(filter).c_str());
    return kUsage;
  }
  if (all.test_to_run_count() > 0 && all.skipped_test_count() == all.test_to_run_count()) {
    std::printf("every test was skipped: this run has shown nothing (exit status %d)\n",
                kAllSkipped);
    return kAllSkipped;
  }
  return status;
}

}  // namespace rode::test
