// SPDX-License-Identifier: Apache-2.0
// fork and exec; between them only calls that are safe there.
#include "train/child_process.h"

#include <algorithm>
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

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// The environment of this process, with the given variables replacing its own.
std::vector<std::string> environment_with(std::vector<std::string> given) {
  const std::size_t count = given.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('=') + 1);
    const bool replaced =
        std::any_of(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(count),
                    [&](const std::string& own) { return own.starts_with(name); });
    if (!replaced) given.push_back(text);
  }
  return given;
}

void send_to(const char* path, int target) {
  constexpr mode_t kOwn = 0600;
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND, kOwn);
  if (file >= 0) ::dup2(file, target);
}

sigset_t stops() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}
void block_stops() {
  const sigset_t set = stops();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}
void unblock_stops() {
  const sigset_t set = stops();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

[[noreturn]] void become(char* const* arguments, char* const* environment,
                         const ChildOptions& options, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  // A signal must not be lost in a handler of the parent's, which is gone after exec.
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  unblock_stops();
  if (::getppid() != parent) ::_exit(kNotStarted);  // it ended before prctl
  if (!options.output) send_to("/dev/null", STDOUT_FILENO);
  if (!options.errors.empty()) send_to(options.errors.c_str(), STDERR_FILENO);
  ::execve("/proc/self/exe", arguments, environment);
  ::_exit(kNotStarted);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, ChildOptions options) {
  std::vector<std::string> words = {"rode"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment_with(std::move(options.environment));
  const std::vector<char*> pointers = pointers_to(words);
  const std::vector<char*> environment = pointers_to(variables);
  const pid_t parent = ::getpid();
  block_stops();
  pid_ = ::fork();
  if (pid_ == 0) become(pointers.data(), environment.data(), options, parent);
  unblock_stops();
  if (pid_ < 0) {
    throw Error(ErrorKind::unsupported, "rode",
                "could not start a process; close other programs, or lower --jobs or --ranks");
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

void ChildProcess::kill() {
  if (!status_) ::kill(pid_, SIGKILL);
}

}  // namespace rode::cli
