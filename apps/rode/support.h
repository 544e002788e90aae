// SPDX-License-Identifier: Apache-2.0
// What several subcommands share: usage errors, settings, names, tables, memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "rode/error.h"
#include "rode/method.h"
#include "rode/optimizer.h"

namespace rode::cli {

using Json = nlohmann::ordered_json;  // keys stay in the order a reader expects

// The command line asks for something that does not exist: exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The error has been printed already: only the exit code is left.
class AlreadyTold : public std::exception {
 public:
  explicit AlreadyTold(int code) : code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Runs `work`; what the library calls an invalid argument came from the command line.
template <class Work>
void arguments_as_usage(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::invalid_argument) throw UsageError(error.what());
    throw;
  }
}

// Control characters from file or option text escaped, so that a message stays one line.
std::string on_terminal(std::string_view text);

// "PATTERN=value" cut at the last '='; `flag` names the option in the error.
std::pair<std::string, std::string> pattern_and_value(std::string_view text, std::string_view flag);

// "key=value" strings of --set, and the method they make. Unknown names, keys and values
// are wrong usage.
Settings parse_settings(const std::vector<std::string>& pairs);
Method make_method(const std::string& name, const std::vector<std::string>& pairs);
Route make_route(const std::string& text);

// The value of an option of `method`; empty if it does not have it.
std::string option_value(const Method& method, std::string_view key);

// An option's text as JSON: true, 5, 1e-3, [0.9, 0.95] or a string.
Json typed_value(std::string_view text);

// Rows of text as aligned columns; every column except the first `left` is right-aligned.
std::string format_table(const std::vector<std::vector<std::string>>& rows, std::size_t left = 1);

// Uninitialised memory on a cache line, never null: also an empty tensor needs an address.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes)
      : data_(std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment)) {
    if (data_ == nullptr) throw std::bad_alloc();
  }

  void* data() const { return data_.get(); }
  float* floats() const { return static_cast<float*>(data_.get()); }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> data_;
};

}  // namespace rode::cli
