// SPDX-License-Identifier: Apache-2.0
// TensorBoard event files: scalars, written without TensorFlow or protobuf.
//
// A record is: length (u64), masked crc32c of those 8 bytes, the data, masked crc32c of the data,
// all little-endian. The data is the protobuf message `Event`:
//   1 wall_time (double)   2 step (int64)   3 file_version (string)
//   5 summary: 1 value (repeated): 1 tag (string), 2 simple_value (float)
//   7 session_log: 1 status (enum; START = 1)
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lab/run/append_file.h"

namespace rode::lab {

std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

class EventFile {
 public:
  // A new file in `folder`, read after those that are there. What they hold at or beyond
  // `first_step` is marked as void.
  EventFile(const std::filesystem::path& folder, std::int64_t first_step);

  void scalars(std::int64_t step, std::span<const std::pair<std::string, double>> values);

 private:
  void record(const std::string& event);

  AppendFile file_;
};

}  // namespace rode::lab
