// SPDX-License-Identifier: Apache-2.0
// This program, started again with other arguments.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rode::cli {

// Standard output goes nowhere, errors to this process's. It has a process group of its own, so
// that Ctrl-C reaches it only through stop(), and ends with its parent.
class ChildProcess {
 public:
  static constexpr int kSignal = 128;

  explicit ChildProcess(const std::vector<std::string>& arguments);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();  // stops it and waits

  // The exit status once it has ended; kSignal and its number for a signal.
  std::optional<int> poll();
  // Asks it to save and end; once, since a second time ends it at once.
  void stop();

 private:
  pid_t pid_ = -1;
  bool stopped_ = false;
  std::optional<int> status_;
};

}  // namespace rode::cli
