// SPDX-License-Identifier: Apache-2.0
// This program, started again with other arguments.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rode::cli {

struct ChildOptions {
  std::vector<std::string> environment = {};  // "NAME=value", over this process's
  std::string errors = {};                    // file of its standard error; empty: this process's
  bool output = false;  // whether its standard output is this process's, or goes nowhere
};

// A child has a process group of its own, so that Ctrl-C reaches it only through stop(), and it
// ends with its parent.
class ChildProcess {
 public:
  static constexpr int kSignal = 128;

  explicit ChildProcess(const std::vector<std::string>& arguments, ChildOptions options = {});
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();  // stops it and waits

  // The exit status once it has ended; kSignal and its number for a signal.
  std::optional<int> poll();
  // Asks it to save and end; once, since a second time ends it at once.
  void stop();
  void kill();  // at once

 private:
  pid_t pid_ = -1;
  bool stopped_ = false;
  std::optional<int> status_;
};

}  // namespace rode::cli
