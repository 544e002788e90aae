// SPDX-License-Identifier: Apache-2.0
// Text files that are part of the build: tasks, the manifest of datasets, the parts of a report's
// page.
#pragma once

#include <span>
#include <string_view>

namespace rode::lab {

struct EmbeddedFile {
  std::string_view name;  // "src/lab/task/tasks/gpt2.toml"
  std::string_view text;
};

// Defined in the file that cmake/RodeEmbed.cmake writes.
std::span<const EmbeddedFile> embedded_files();

}  // namespace rode::lab
