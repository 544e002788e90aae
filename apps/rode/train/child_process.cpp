// SPDX-License-Identifier: Apache-2.0
// fork and exec; between them only calls that are safe there.
#include "train/child_process.h"

#include <cerrno>
#include <csignal>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rode/error.h"

namespace rode::cli {
namespace {

constexpr int kNotStarted = 127;

[[noreturn]] void become(char* const* arguments, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kNotStarted);  // it ended before prctl
  const int nothing = ::open("/dev/null", O_WRONLY);
  if (nothing >= 0) ::dup2(nothing, STDOUT_FILENO);
  ::execv("/proc/self/exe", arguments);
  ::_exit(kNotStarted);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"rode"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(pointers.data(), parent);
  if (pid_ < 0) {
    throw Error(ErrorKind::unsupported, "compare",
                "could not start a process; close other programs or lower --jobs");
  }
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || status_) return;
  stop();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<int> ChildProcess::poll() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : kSignal + WTERMSIG(status);
  }
  return status_;
}

void ChildProcess::stop() {
  if (std::exchange(stopped_, true) || status_) return;
  ::kill(pid_, SIGTERM);
}

}  // namespace rode::cli
