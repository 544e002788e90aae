// SPDX-License-Identifier: Apache-2.0
// The library's only exception type.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace rode {

// What went wrong, for callers that react by kind rather than by text.
enum class ErrorKind {
  invalid_argument,  // an option, a name or a combination the library refuses
  shape,             // wrong rank or shape
  dtype,             // wrong element type
  missing_gradient,  // a parameter has no gradient in this step
  non_finite,        // NaN or Inf where a number is needed
  state_mismatch,    // saved state does not belong to these parameters
  file,              // unreadable, truncated or hostile file, or a failed write
  unsupported,       // valid, but not on this backend, build or machine
  process_group,     // processes that share a step differ, or one of them does not answer
};

std::string_view to_string(ErrorKind kind);

// Every message reads "[operation] subject and value; expectation; remedy".
// A call that throws has changed nothing that the caller can see, unless changed() is true.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view operation, std::string_view message,
        std::source_location where = std::source_location::current());

  // For a step that was performed and whose result is not finite: see rode/optimizer.h.
  static Error after_change(ErrorKind kind, std::string_view operation, std::string_view message,
                            std::source_location where = std::source_location::current());

  ErrorKind kind() const noexcept { return kind_; }
  // Whether weights and state have changed nevertheless.
  bool changed() const noexcept { return changed_; }
  const std::source_location& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  bool changed_ = false;
  std::source_location where_;
};

}  // namespace rode
