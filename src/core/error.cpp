// SPDX-License-Identifier: Apache-2.0
// Texts of the error kinds, and the form of every message.
#include "rode/error.h"

#include <fmt/format.h>

namespace rode {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument: return "invalid argument";
    case ErrorKind::shape: return "shape";
    case ErrorKind::dtype: return "dtype";
    case ErrorKind::missing_gradient: return "missing gradient";
    case ErrorKind::non_finite: return "non-finite";
    case ErrorKind::state_mismatch: return "state mismatch";
    case ErrorKind::file: return "file";
    case ErrorKind::unsupported: return "unsupported";
    case ErrorKind::process_group: return "process group";
  }
  return "unknown";
}

Error::Error(ErrorKind kind, std::string_view operation, std::string_view message,
             std::source_location where)
    : std::runtime_error(fmt::format("[{}] {}", operation, message)), kind_(kind), where_(where) {}

Error Error::after_change(ErrorKind kind, std::string_view operation, std::string_view message,
                          std::source_location where) {
  Error error(kind, operation, message, where);
  error.changed_ = true;
  return error;
}

}  // namespace rode
