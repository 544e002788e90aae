// SPDX-License-Identifier: Apache-2.0
// Hands the process over to Python, once it is known to have what the subcommand needs.
#include "python/python.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "rode/error.h"

namespace rode::cli {
namespace {

constexpr int kNotStarted = 127;
constexpr int kNoPackage = 3;
constexpr int kNoTorch = 4;
// A folder that happens to be called rode is a package without a file: its origin is None.
constexpr const char* kProbe =
    "import importlib.util as u, sys\n"
    "has = lambda name: getattr(u.find_spec(name), 'origin', None)\n"
    "sys.exit(3 if not has('rode') else 4 if not has('torch') else 0)\n";

[[noreturn]] void fail(const std::string& what, const std::string& remedy) {
  throw Error(ErrorKind::unsupported, "python",
              fmt::format("{}; {}, or set RODE_PYTHON to a Python that has it", what, remedy));
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// The exit status of a short command; 127 where it cannot be started.
int status_of(std::vector<std::string> words) {
  const std::vector<char*> arguments = pointers(words);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execvp(arguments[0], arguments.data());
    ::_exit(kNotStarted);
  }
  int status = 0;
  if (child < 0) fail(fmt::format("fork: {}", std::strerror(errno)), "close other programs");
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kNotStarted;
}

void require_package(const std::string& python) {
  switch (status_of({python, "-c", kProbe})) {
    case kNotStarted:
      fail(fmt::format("cannot run '{}', which this subcommand needs", python),
           "install Python 3.10 or later");
    case kNoPackage:
      fail(fmt::format("'{}' has no package 'rode', which this subcommand needs", python),
           fmt::format("install it with '{} -m pip install .' in rode's repository", python));
    case kNoTorch:
      fail(fmt::format("'{}' has no package 'torch', which the package 'rode' needs", python),
           fmt::format("install it with '{} -m pip install torch'", python));
    default: return;  // where the probe itself failed, Python says more
  }
}

struct PythonCommand {
  std::string_view name;
  std::string_view help;
};

constexpr std::array<PythonCommand, 3> kCommands = {{
    {"sweep", "Search an optimizer's rates on a task (runs Python)"},
    {"finetune", "Fine-tune a language model (runs Python)"},
    {"evaluate", "Evaluate a fine-tuned model (runs Python)"},
}};

}  // namespace

std::string python_program() {
  const char* python = std::getenv("RODE_PYTHON");
  return python != nullptr && *python != '\0' ? python : "python3";
}

bool is_python_command(std::string_view name) {
  return std::ranges::any_of(kCommands, [&](const PythonCommand& c) { return c.name == name; });
}

void run_python_command(const std::string& name, const std::vector<std::string>& rest) {
  const std::string python = python_program();
  require_package(python);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) ::setenv("RODE_BIN", self.c_str(), 1);
  std::vector<std::string> words = {python, "-m", "rode", name};
  words.insert(words.end(), rest.begin(), rest.end());
  const std::vector<char*> arguments = pointers(words);
  std::fflush(nullptr);
  ::execvp(arguments[0], arguments.data());
  fail(fmt::format("cannot run '{}': {}", python, std::strerror(errno)),
       "install Python 3.10 or later");
}

void add_python_commands(CLI::App& app) {
  for (const PythonCommand& entry : kCommands) {
    CLI::App* command = app.add_subcommand(std::string(entry.name), std::string(entry.help));
    command->callback([entry] { run_python_command(std::string(entry.name), {}); });
  }
}

}  // namespace rode::cli
