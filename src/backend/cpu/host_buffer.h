// SPDX-License-Identifier: Apache-2.0
// Host memory as a backend's buffer: borrowed, or its own and aligned.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include "backend/backend.h"

namespace rode::cpu {

class BorrowedBuffer : public Buffer {
 public:
  BorrowedBuffer(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }
  void upload(const void* host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(data_, host, bytes);
  }
  const void* host_view() const override { return data_; }

 private:
  void* data_;
  std::size_t bytes_;
};

inline void* allocate_zeros(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;  // a cache line
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment;
  void* data = std::aligned_alloc(kAlignment, rounded * kAlignment);
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, rounded * kAlignment);
  return data;
}

class HostBuffer final : public BorrowedBuffer {
 public:
  explicit HostBuffer(std::size_t bytes) : BorrowedBuffer(allocate_zeros(bytes), bytes) {}
  ~HostBuffer() override { std::free(HostBuffer::data()); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
};

}  // namespace rode::cpu
