// SPDX-License-Identifier: Apache-2.0
// A file that grows at its end, whose every failed write is an error: logs and events.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/file_io.h"

namespace rode::lab {

class AppendFile {
 public:
  // Keeps the first `keep` bytes of a file that is there; one that has fewer is refused,
  // and made only where nothing of it is to be kept.
  AppendFile(const std::filesystem::path& path, std::uint64_t keep);

  // Nothing is held back in memory: what was appended outlives a killed process.
  void append(std::string_view bytes);
  void sync();  // and what was synchronised outlives the machine
  std::uint64_t size() const { return size_; }

 private:
  [[noreturn]] void fail(std::string_view action, int error_number) const;

  std::string source_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace rode::lab
