// SPDX-License-Identifier: Apache-2.0
// Drives a fuzz target without libFuzzer: a seeded mutation loop, bounded by time.
//
//   fuzz_x [--seconds N] [--seed S] [--artifacts DIR] [CORPUS_DIR]
//   fuzz_x --replay FILE...       runs these inputs once each
//   fuzz_x --write-seeds DIR      writes the built-in seeds, as a corpus for libFuzzer
//
// Exit 0: nothing crashed; 2: wrong usage. A crash or a hang first writes the input to
// DIR/crash-<seed>.
#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <tuple>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "fuzz/fuzz_target.h"
#include "fuzz/mutator.h"

// Present only under the sanitizers; called after their report.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

// GCC's undefined-behaviour sanitizer is a separate library without the address sanitizer's
// callback; ending by SIGABRT brings its findings to our handler.
extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() {
  return "halt_on_error=1:abort_on_error=1:print_stacktrace=1";
}

namespace {

namespace fs = std::filesystem;

constexpr unsigned kHangSeconds = 30;

// ---- Saving the input of a crash --------------------------------------------------------------

// Read by signal handlers, hence plain globals prepared in advance. The input stays in memory:
// writing each one to disk would cost far more than running it.
const char* g_input = nullptr;
std::size_t g_input_size = 0;
std::array<char, 4096> g_artifact{};
std::atomic_flag g_saved = ATOMIC_FLAG_INIT;

void print(std::string_view text) {
  std::ignore = ::write(STDERR_FILENO, text.data(), text.size());
}

// Only async-signal-safe calls. Once: a sanitizer's report may be followed by a signal.
void save_input() {
  if (g_input == nullptr || g_saved.test_and_set()) return;
  const int fd = ::open(g_artifact.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  std::size_t done = 0;
  while (fd >= 0 && done < g_input_size) {
    const auto written = ::write(fd, g_input + done, g_input_size - done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  print(fd >= 0 && done == g_input_size ? "\nfuzz: failing input saved to "
                                        : "\nfuzz: CANNOT SAVE the failing input to ");
  print(g_artifact.data());
  print("\n");
}

void on_signal(int number) {
  if (number == SIGALRM) print("\nfuzz: hang\n");
  save_input();
  if (number == SIGALRM) ::_exit(70);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

[[noreturn]] void on_terminate() {
  if (const auto current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& error) {
      print("\nfuzz: uncaught exception: ");
      print(error.what());
    } catch (...) {
      print("\nfuzz: uncaught exception");
    }
  }
  save_input();
  std::abort();
}

void install_handlers() {
  std::set_terminate(on_terminate);
  // On its own stack: a stack overflow is one of the crashes we look for.
  static std::array<char, 1U << 16U> stack{};
  stack_t alternative{};
  alternative.ss_sp = stack.data();
  alternative.ss_size = stack.size();
  const bool sanitized = __sanitizer_set_death_callback != nullptr;
  if (sanitized) {
    __sanitizer_set_death_callback(save_input);
  } else {
    ::sigaltstack(&alternative, nullptr);
  }
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;
  // Under a sanitizer, faults are left to it: its report is worth more than a bare signal.
  for (const int number : {SIGABRT, SIGALRM}) ::sigaction(number, &action, nullptr);
  if (sanitized) return;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::sigaction(number, &action, nullptr);
}

void set_artifact(const fs::path& path) {
  const std::string text = path.string();
  if (text.size() >= g_artifact.size()) throw std::runtime_error("path too long: " + text);
  g_artifact.fill('\0');
  std::ranges::copy(text, g_artifact.begin());
}

void execute(const std::string& input) {
  // Exactly as long as the input, so that a read beyond it is a read beyond an allocation.
  std::vector<std::uint8_t> exact(input.begin(), input.end());
  g_input = reinterpret_cast<const char*>(exact.data());
  g_input_size = exact.size();
  try {
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  } catch (...) {
    on_terminate();  // here, while the input still exists
  }
  g_input = nullptr;
}

// ---- Command line -----------------------------------------------------------------------------

struct Arguments {
  double seconds = 10;
  std::uint64_t seed = 1;
  fs::path artifacts = ".";
  fs::path corpus;
  fs::path write_seeds;
  std::vector<fs::path> replay;
};

template <typename Number>
Number number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::runtime_error("not a number: '" + std::string(text) + "'");
  }
  return value;
}

Arguments parse(std::span<char*> words) {
  Arguments out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const auto value = [&]() -> std::string_view {
      if (i + 1 >= words.size()) throw std::runtime_error(std::string(word) + " needs a value");
      return words[++i];
    };
    if (word == "--seconds") {
      out.seconds = number<double>(value());
    } else if (word == "--seed") {
      out.seed = number<std::uint64_t>(value());
    } else if (word == "--artifacts") {
      out.artifacts = value();
    } else if (word == "--write-seeds") {
      out.write_seeds = value();
    } else if (word == "--replay") {
      out.replay.assign(words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      if (out.replay.empty()) throw std::runtime_error("--replay needs a file");
      return out;
    } else if (word.starts_with("-") || !out.corpus.empty()) {
      throw std::runtime_error("unexpected argument '" + std::string(word) + "'");
    } else {
      out.corpus = word;
    }
  }
  return out;
}

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

// ---- Modes ------------------------------------------------------------------------------------

int replay(const Arguments& arguments) {
  for (const fs::path& path : arguments.replay) {
    std::printf("replaying %s\n", path.c_str());
    std::fflush(stdout);
    ::alarm(kHangSeconds);
    execute(contents(path));
  }
  return 0;
}

int write_seeds(const fs::path& directory) {
  fs::create_directories(directory);
  std::size_t index = 0;
  for (const std::string& seed : fuzz_seeds()) {
    std::ofstream out(directory / ("seed-" + std::to_string(index++)), std::ios::binary);
    if (!out.write(seed.data(), static_cast<std::streamsize>(seed.size())).flush()) {
      throw std::runtime_error("cannot write to " + directory.string());
    }
  }
  return 0;
}

int fuzz_loop(const Arguments& arguments) {
  std::vector<std::string> corpus = fuzz_seeds();
  if (!arguments.corpus.empty()) {
    std::vector<fs::path> paths;  // sorted: the order of a directory is not reproducible
    for (const auto& item : fs::directory_iterator(arguments.corpus)) {
      if (item.is_regular_file()) paths.push_back(item.path());
    }
    std::ranges::sort(paths);
    for (const fs::path& path : paths) corpus.push_back(contents(path));
  }
  set_artifact(arguments.artifacts / ("crash-" + std::to_string(arguments.seed)));
  std::printf("fuzz: seed %llu, %zu starting inputs, %.0f s\n",
              static_cast<unsigned long long>(arguments.seed), corpus.size(), arguments.seconds);
  std::fflush(stdout);

  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::uint64_t executions = 0;
  for (const std::string& input : corpus) {
    ::alarm(kHangSeconds);
    execute(input);
    ++executions;
  }
  fuzz::Mutator mutator(arguments.seed, std::move(corpus));
  while (elapsed() < arguments.seconds) {
    ::alarm(kHangSeconds);
    for (int i = 0; i < 64; ++i) execute(mutator.next());
    executions += 64;
  }
  ::alarm(0);
  const double seconds = std::max(elapsed(), 1e-9);
  std::printf("fuzz: %llu executions in %.1f s (%.0f a second), seed %llu, nothing crashed\n",
              static_cast<unsigned long long>(executions), seconds,
              static_cast<double>(executions) / seconds,
              static_cast<unsigned long long>(arguments.seed));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(std::span(argv + 1, static_cast<std::size_t>(argc - 1)));
    if (!arguments.write_seeds.empty()) return write_seeds(arguments.write_seeds);
    set_artifact(arguments.artifacts / "crash-replay");
    install_handlers();
    return arguments.replay.empty() ? fuzz_loop(arguments) : replay(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: %s\n", error.what());
    return 2;
  }
}
