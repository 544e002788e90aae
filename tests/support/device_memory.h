// SPDX-License-Identifier: Apache-2.0
// An array in the tested backend's memory between two guard bands, and its host original.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace rode::test {

// 256 bytes on either side hold a number that is NaN in fp32 and in bf16: code that reads past the
// end and uses it produces NaN; `check` detects writes.
class GuardedArray {
 public:
  // `host` is borrowed. `misaligned` bytes are added to the address.
  GuardedArray(const void* host, std::size_t bytes, std::size_t misaligned = 0);

  void* data() { return static_cast<std::byte*>(buffer_->data()) + start_; }
  std::size_t bytes() const { return bytes_; }

  // Copies the host's numbers here if they have changed.
  void upload();
  // Copies the array into `host` if it has changed.
  void download(void* host);
  // Both guard bands are unchanged. A failure is a failure of the current test.
  void expect_guards_intact() const;
  // The array is what was uploaded, bit for bit.
  void expect_unchanged() const;

 private:
  const std::byte* host_;
  std::size_t bytes_, start_;
  std::vector<std::byte> image_;  // guard bands and array, as last known
  std::unique_ptr<Buffer> buffer_;
};

// Arrays created while one lives are this many bytes off their natural alignment.
class Misaligned {
 public:
  explicit Misaligned(std::size_t bytes);
  ~Misaligned();
  Misaligned(const Misaligned&) = delete;
  Misaligned& operator=(const Misaligned&) = delete;

  static std::size_t bytes();
};

}  // namespace rode::test
