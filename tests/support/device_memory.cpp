// SPDX-License-Identifier: Apache-2.0
// Guarded arrays of the tested backend.
#include "support/device_memory.h"

#include <cstdint>
#include <cstring>

#include <gtest/gtest.h>

#include "support/backend_under_test.h"

namespace rode::test {
namespace {

constexpr std::size_t kBand = 256;
constexpr std::uint16_t kSentinel = 0x7fc1;  // NaN as bf16; twice, NaN as fp32

std::size_t g_misaligned = 0;

void fill_sentinel(std::byte* first, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    first[i] = static_cast<std::byte>(i % 2 == 0 ? kSentinel & 0xff : kSentinel >> 8);
  }
}

// An even number of bytes, so that the sentinel's halves have the same order on both sides.
std::size_t even(std::size_t bytes) { return (bytes + 1) / 2 * 2; }

}  // namespace

GuardedArray::GuardedArray(const void* host, std::size_t bytes, std::size_t misaligned)
    : host_(static_cast<const std::byte*>(host)), bytes_(bytes), start_(kBand + misaligned) {
  image_.resize(start_ + even(bytes_) + kBand);
  fill_sentinel(image_.data(), image_.size());
  if (bytes_ > 0) std::memcpy(image_.data() + start_, host_, bytes_);
  buffer_ = memory_backend().allocate(image_.size());
  buffer_->upload(image_.data(), image_.size());
}

void GuardedArray::upload() {
  if (bytes_ == 0 || std::memcmp(image_.data() + start_, host_, bytes_) == 0) return;
  std::memcpy(image_.data() + start_, host_, bytes_);
  buffer_->upload(image_.data(), image_.size());
}

void GuardedArray::download(void* host) {
  if (bytes_ == 0) return;
  const auto* now = static_cast<const std::byte*>(buffer_->host_view());
  std::memcpy(image_.data() + start_, now + start_, bytes_);
  std::memcpy(host, now + start_, bytes_);
}

void GuardedArray::expect_guards_intact() const {
  const auto* now = static_cast<const std::byte*>(buffer_->host_view());
  EXPECT_EQ(std::memcmp(now, image_.data(), start_), 0) << "written before the first element";
  const std::size_t end = start_ + bytes_;
  EXPECT_EQ(std::memcmp(now + end, image_.data() + end, image_.size() - end), 0)
      << "written past the last element";
}

void GuardedArray::expect_unchanged() const {
  if (bytes_ == 0) return;
  const auto* now = static_cast<const std::byte*>(buffer_->host_view());
  EXPECT_EQ(std::memcmp(now + start_, image_.data() + start_, bytes_), 0)
      << "a step has written into a gradient";
}

Misaligned::Misaligned(std::size_t bytes) { g_misaligned = bytes; }
Misaligned::~Misaligned() { g_misaligned = 0; }
std::size_t Misaligned::bytes() { return g_misaligned; }

}  // namespace rode::test
