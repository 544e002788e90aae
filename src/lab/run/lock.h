// SPDX-License-Identifier: Apache-2.0
// One process per folder of a run.
#pragma once

#include <filesystem>

#include "core/file_io.h"

namespace rode::lab {

// Holds `folder`/.lock while it lives; the system lets go of it with the process, however that
// ends, so that a file left behind means nothing. Throws (ErrorKind::file) where another process
// holds it.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder);

  bool held() const { return held_; }  // false: the file system has no locks

 private:
  FileDescriptor file_;
  bool held_ = false;
};

}  // namespace rode::lab
