// SPDX-License-Identifier: Apache-2.0
// The tests' main: chooses the backend, and skips every test if it cannot be used.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "support/backend_under_test.h"
#include "support/run_all_tests.h"

namespace {

// A skip of the test that is about to start: it is then counted as skipped, with its reason.
class SkipWithoutDevice final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    GTEST_SKIP() << rode::test::device_problem();
  }
};

std::string asked_for(int argc, char** argv) {
  std::string name = "cpu";
  if (const char* set = std::getenv("RODE_TEST_BACKEND")) name = set;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--backend" && i + 1 < argc) name = argv[i + 1];
    if (argument.starts_with("--backend=")) name = argument.substr(std::strlen("--backend="));
  }
  return name;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string name = asked_for(argc, argv);
  if (name != "cpu" && name != "cuda") {
    std::fprintf(stderr, "--backend %s: expected cpu or cuda\n", name.c_str());
    return rode::test::kUsage;
  }
  // Listing must not need the device.
  if (!testing::GTEST_FLAG(list_tests)) {
    rode::test::set_tested_device(name == "cuda" ? rode::Device::cuda : rode::Device::cpu);
    if (!rode::test::device_problem().empty()) {
      if (name == "cpu") {  // every machine has one: a bug, not a reason to skip
        std::fprintf(stderr, "no usable cpu device: %s\n", rode::test::device_problem().c_str());
        return EXIT_FAILURE;
      }
      std::printf("no usable %s device, every test is skipped: %s\n", name.c_str(),
                  rode::test::device_problem().c_str());
      testing::UnitTest::GetInstance()->listeners().Append(new SkipWithoutDevice);
    }
  }
  return rode::test::run_all_tests();
}
