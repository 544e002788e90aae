// SPDX-License-Identifier: Apache-2.0
// After the first step nothing is allocated: every allocation of the process is counted.
//
// A separate program, because it replaces malloc. operator new goes through malloc, and so
// do the BLAS and the runtime.
#include <atomic>
#include <cerrno>
#include <cstddef>

#include <gtest/gtest.h>

#include "api/support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RODE_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RODE_COUNTS_ALLOCATIONS 0
#endif
#endif
#if !defined(RODE_COUNTS_ALLOCATIONS)
#if defined(__GLIBC__)
#define RODE_COUNTS_ALLOCATIONS 1
#else
#define RODE_COUNTS_ALLOCATIONS 0
#endif
#endif

namespace {

std::atomic<bool> g_counting{false};
std::atomic<long> g_allocations{0};

[[maybe_unused]] void count() {
  if (g_counting.load(std::memory_order_relaxed)) ++g_allocations;
}

}  // namespace

#if RODE_COUNTS_ALLOCATIONS
// glibc's own entry points, of which its malloc and free are aliases.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t n, std::size_t bytes) {
  count();
  return __libc_calloc(n, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  count();
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  count();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  count();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  count();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) { __libc_free(memory); }
}
#endif

namespace rode {
namespace {

using test::Model;

class Allocation : public test::EveryVariant {
 protected:
  void SetUp() override {
    RODE_CPU_ONLY("counts malloc; cuda_graph_test.cpp watches the device's memory");
    if (!RODE_COUNTS_ALLOCATIONS) {
      GTEST_SKIP() << "the sanitizer (or the C library) has a malloc that cannot be replaced";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Optimizers, Allocation, testing::ValuesIn(test::variants()),
                         test::variant_name);

// Allocations of the second to the sixth step.
long later_allocations(const Method& method, int threads, DType weights) {
  std::vector<test::Spec> specs = test::small_model();
  specs.push_back({"h.2.weight", {64, 48}});
  specs.push_back({"h.3.weight", {200, 400}});
  specs.push_back({"bias", {70000}});
  Model model(specs, weights);
  Optimizer optimizer(model.parameters(), method, {}, {.threads = threads});
  optimizer.step();
  g_allocations = 0;
  g_counting = true;
  for (int t = 0; t < 5; ++t) optimizer.step(0.5);
  g_counting = false;
  return g_allocations;
}

TEST_P(Allocation, EndsWithTheFirstStep) {
  const Method method = GetParam().method.name() == "soap"
                            ? GetParam().method.with({{"precondition_frequency", "2"}})
                            : GetParam().method;
  for (const int threads : {1, 2, 4}) {
    EXPECT_EQ(later_allocations(method, threads, DType::f32), 0) << threads << " threads";
  }
  EXPECT_EQ(later_allocations(method.with({{"rounding", "exact"}}), 2, DType::bf16), 0);
}

TEST(AllocationCount, SeesNewMallocAndContainers) {
  if (!RODE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "malloc is not replaced here";
  g_allocations = 0;
  g_counting = true;
  std::vector<int> numbers(100);
  g_counting = false;
  EXPECT_EQ(g_allocations, 1);
  EXPECT_EQ(numbers.size(), 100U);
}

}  // namespace
}  // namespace rode
