// SPDX-License-Identifier: Apache-2.0
// Runs a script that times other implementations on the same shapes.
#include "bench/peers.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "python/python.h"
#include "rode/error.h"

namespace rode::cli {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorKind::unsupported, "bench",
              what + "; --peers needs Python with torch: set RODE_PYTHON to such a Python");
}

struct Pipe {
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(fmt::format("pipe: {}", std::strerror(errno)));
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void close_end(std::size_t i) {
    if (ends[i] >= 0) ::close(ends[i]);
    ends[i] = -1;
  }
  int reader() const { return ends[0]; }
  int writer() const { return ends[1]; }

  std::array<int, 2> ends = {-1, -1};
};

void send(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::write(descriptor, text.data(), text.size());
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return;  // the script has ended: its exit status says more
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::string receive(int descriptor) {
  std::string text;
  std::array<char, 4096> block;
  for (;;) {
    const ssize_t got = ::read(descriptor, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(block.data(), static_cast<std::size_t>(got));
  }
}

std::vector<std::string> command_line(const PeerRequest& request) {
  std::vector<std::string> words = {python_program(), request.script,
                                    "--shapes-json",  "-",
                                    "--threads",      std::to_string(request.threads),
                                    "--repeat",       std::to_string(request.repeat),
                                    "--warmup",       std::to_string(request.warmup)};
  if (!request.only.empty()) words.insert(words.end(), {"--only", request.only});
  words.insert(words.end(), request.more.begin(), request.more.end());
  return words;
}

}  // namespace

std::string find_peers(const std::string& script) {
  namespace fs = std::filesystem;
  const fs::path relative = fs::path("bench") / "peers" / script;
  std::error_code error;
  if (fs::exists(relative, error)) return relative.string();
  for (fs::path at = fs::read_symlink("/proc/self/exe", error); at.has_relative_path();) {
    at = at.parent_path();
    if (fs::exists(at / relative, error)) return (at / relative).string();
  }
  return script;
}

Json run_peers(const PeerRequest& request) {
  std::vector<std::string> words = command_line(request);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  std::signal(SIGPIPE, SIG_IGN);  // a script that dies early is reported, not fatal
  Pipe input;
  Pipe output;
  const pid_t child = ::fork();
  if (child < 0) fail(fmt::format("fork: {}", std::strerror(errno)));
  if (child == 0) {
    ::dup2(input.reader(), STDIN_FILENO);
    ::dup2(output.writer(), STDOUT_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  input.close_end(0);
  output.close_end(1);
  send(input.writer(), request.shapes.dump());
  input.close_end(1);
  const std::string text = receive(output.reader());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) fail("cannot run '" + words[0] + "'");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fail(fmt::format("'{} {}' failed; its message is above", words[0], request.script));
  }
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) fail(fmt::format("'{}' did not print JSON", request.script));
  return json;
}

}  // namespace rode::cli
