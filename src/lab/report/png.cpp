// SPDX-License-Identifier: Apache-2.0
// Starts the converter without a shell: paths may hold any character.
#include "lab/report/png.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRsvg = "rsvg-convert";
constexpr const char* kInkscape = "inkscape";

bool is_in_path(std::string_view program) {
  const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe)
  for (std::string_view rest = path == nullptr ? "" : path; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    if (!folder.empty() && ::access((fs::path(folder) / program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// Silent, and true where it ends with status 0.
bool run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&actions, descriptor, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = -1;
  const int failed =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return false;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::string svg_converter() {
  for (const char* program : {kRsvg, kInkscape}) {
    if (is_in_path(program)) return program;
  }
  return {};
}

bool convert_svg(const std::string& converter, const fs::path& svg, const fs::path& png) {
  const bool done = converter == kRsvg
                        ? run({converter, "--output", png.string(), svg.string()})
                        : run({converter, svg.string(), "--export-filename=" + png.string()});
  std::error_code ignored;
  if (!done) fs::remove(png, ignored);
  return done && fs::exists(png, ignored);
}

}  // namespace rode::lab
