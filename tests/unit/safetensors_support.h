// SPDX-License-Identifier: Apache-2.0
// Helpers of the safetensors tests: raw files, and a directory that cleans up after itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <unistd.h>

namespace rode::test {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "rode-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::size_t count() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

inline std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A file of exactly these parts, valid or not.
inline std::vector<std::byte> safetensors_bytes(std::uint64_t length, std::string_view json,
                                                std::string_view data) {
  std::vector<std::byte> out(sizeof length + json.size() + data.size());
  std::memcpy(out.data(), &length, sizeof length);
  std::ranges::copy(std::as_bytes(std::span(json)), out.begin() + sizeof length);
  std::ranges::copy(std::as_bytes(std::span(data)),
                    out.begin() + static_cast<std::ptrdiff_t>(sizeof length + json.size()));
  return out;
}

inline std::vector<std::byte> safetensors_bytes(std::string_view json, std::string_view data) {
  return safetensors_bytes(json.size(), json, data);
}

}  // namespace rode::test
