// SPDX-License-Identifier: Apache-2.0
// Which backend the tests of this process use: `--backend cpu` or `cuda`, or the
// environment's RODE_TEST_BACKEND.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "rode/optimizer.h"

namespace rode::test {

// Long runs that check numbers are left out: a sanitizer makes them ten times longer, and shorter
// ones run the same code.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

Device tested_device();
inline bool on_cuda() { return tested_device() == Device::cuda; }

// Set once, by main.
void set_tested_device(Device device);

// Why the tested device cannot be used; empty if it can.
const std::string& device_problem();

// A backend of the tested device, only for its memory. Lives as long as the process.
Backend& memory_backend();

// How often the stand-in for a device was told of changed jobs (deferred_cpu.cpp).
inline std::atomic<int> refreshes_of_stand_in = 0;

}  // namespace rode::test

// Skips a test that does not apply to the GPU.
#define RODE_CPU_ONLY(reason) \
  if (rode::test::on_cuda()) GTEST_SKIP() << "on the CPU only: " << (reason)

// Skips a test that does not apply to the CPU.
#define RODE_CUDA_ONLY(reason) \
  if (!rode::test::on_cuda()) GTEST_SKIP() << "on CUDA only: " << (reason)
