// SPDX-License-Identifier: Apache-2.0
// Starts processes on one machine, which meet in a file, and reports those that fail.
#include "train/launch.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include "lab/run/interrupt.h"
#include "rode/error.h"
#include "support.h"
#include "train/child_process.h"

namespace rode::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kMeetingFile = "RODE_MEETING_FILE";
constexpr std::chrono::seconds kLongestGrace(60);
constexpr int kWrongUsage = 2;

std::optional<int> number_in(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return {};
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  constexpr long kMost = 1 << 20;
  if (*end != '\0' || value < 0 || value > kMost) {
    throw UsageError(
        fmt::format("{} = '{}' in the environment; expected a whole number, as "
                    "torchrun sets it",
                    name, on_terminal(text)));
  }
  return static_cast<int>(value);
}

std::string read_all(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  std::string out = text.str();
  while (out.ends_with('\n')) out.pop_back();
  return out;
}

// The arguments that this process was started with.
std::vector<std::string> own_words() {
  std::ifstream in("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  if (!words.empty()) words.erase(words.begin());
  return words;
}

// Where the ranks meet, and where those that do not lead leave their messages.
class MeetingFolder {
 public:
  MeetingFolder() {
    std::error_code failed;
    const fs::path parent = fs::temp_directory_path(failed);
    std::string name = (parent / "rode-ranks-XXXXXX").string();
    if (failed || ::mkdtemp(name.data()) == nullptr) {
      throw Error(ErrorKind::file, "train",
                  "could not make a folder in '" + parent.string() +
                      "', in which the ranks meet; set TMPDIR to a folder that can be written");
    }
    path_ = name;
  }
  ~MeetingFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;

  std::string file() const { return (path_ / "meeting").string(); }
  std::string errors(int rank) const {
    return (path_ / ("errors-" + std::to_string(rank))).string();
  }
  std::string leader_error() const { return read_all(file() + ".error"); }

 private:
  fs::path path_;
};

struct Rank {
  std::unique_ptr<ChildProcess> process;
  std::optional<int> status;
  bool killed = false;  // by us
};

std::vector<Rank> start_all(const LaunchOptions& options, const MeetingFolder& folder) {
  std::vector<std::string> words = own_words();
  if (options.threads == 0) {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    words.insert(words.end(), {"--threads", std::to_string(std::max(1, cores / options.ranks))});
  }
  std::vector<Rank> ranks;
  const auto start = [&](int rank) {
    ChildOptions child;
    child.environment = {fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank),
                         fmt::format("WORLD_SIZE={}", options.ranks),
                         fmt::format("LOCAL_WORLD_SIZE={}", options.ranks),
                         fmt::format("{}={}", kMeetingFile, folder.file())};
    child.output = rank == 0;
    if (rank > 0) child.errors = folder.errors(rank);
    ranks.push_back({std::make_unique<ChildProcess>(words, std::move(child)), {}});
  };
  try {
    for (int rank = 0; rank < options.ranks; ++rank) start(rank);
  } catch (const Error&) {
    // Those that were started wait for one that will not come.
    for (const Rank& rank : ranks) rank.process->kill();
    throw;
  }
  return ranks;
}

// Waits until all have ended. Returns whether they were asked to stop.
bool wait_for(std::vector<Rank>& ranks, std::chrono::seconds grace) {
  std::optional<Clock::time_point> end;  // of those that are left once one has failed
  for (;;) {
    const bool stop = lab::InterruptGuard::requested();
    bool running = false;
    for (Rank& rank : ranks) {
      if (stop) rank.process->stop();
      if (!rank.status) rank.status = rank.process->poll();
      running = running || !rank.status;
      // Asked to stop, ranks end with a status that is not 0, all after the last one has saved.
      const bool failed =
          stop ? rank.status.value_or(0) > ChildProcess::kSignal : rank.status.value_or(0) != 0;
      if (failed && !end) end = Clock::now() + grace;
    }
    if (!running) return stop;
    for (Rank& rank : ranks) {
      if (rank.status || rank.killed || !end || Clock::now() < *end) continue;
      rank.process->kill();
      rank.killed = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// The message for a rank that failed; empty if its own, or rank 0's, was printed.
std::string message_of(int number, const Rank& rank, const MeetingFolder& folder,
                       std::chrono::seconds grace) {
  const int status = rank.status.value_or(0);
  if (rank.killed) {
    return fmt::format("did not end within {} s after another rank had failed, and was killed",
                       grace.count());
  }
  if (status > ChildProcess::kSignal) {
    const int signal = status - ChildProcess::kSignal;
    const char* const why =
        signal == SIGKILL ? "; if you did not send it, the process probably ran out of memory: "
                            "lower --ranks, or raise accumulate in the task; continue with --resume"
                          : "; continue with --resume";
    return fmt::format("was ended by signal {}{}", signal, why);
  }
  if (number == 0) return {};  // it has written to this process's own standard error
  constexpr std::size_t kMost = 4000;
  constexpr std::string_view kPrefix = "rode: error: ";
  std::string text = read_all(folder.errors(number));
  if (text.starts_with(kPrefix)) text.erase(0, kPrefix.size());
  const std::string of_leader = folder.leader_error();
  if (!of_leader.empty() && text.find(of_leader) != std::string::npos) return {};
  return text.empty() ? fmt::format("ended with exit code {}", status)
                      : text.substr(text.size() - std::min(text.size(), kMost));
}

}  // namespace

std::optional<RankPlace> rank_place() {
  const std::optional<int> size = number_in("WORLD_SIZE");
  if (size.value_or(1) <= 1) return {};
  return RankPlace{number_in("RANK").value_or(0), *size};
}

void tell_launcher(const std::exception& error) {
  const char* const file = std::getenv(kMeetingFile);
  if (file == nullptr || !rank_place() || rank_place()->rank != 0) return;
  std::ofstream(std::string(file) + ".error") << error.what();
}

void launch_ranks(const LaunchOptions& options) {
  const lab::InterruptGuard interrupt;
  const MeetingFolder folder;
  const std::chrono::seconds grace = std::min(kLongestGrace, std::chrono::seconds(options.timeout));
  std::vector<Rank> ranks = start_all(options, folder);
  const bool stopped = wait_for(ranks, grace);
  std::map<std::string, std::vector<int>> messages;
  bool failed = false;
  for (int number = 0; number < options.ranks; ++number) {
    const Rank& rank = ranks[static_cast<std::size_t>(number)];
    if (rank.status == 0) continue;
    failed = true;
    const std::string text = message_of(number, rank, folder, grace);
    const bool asked = stopped && (number > 0 || rank.status == ChildProcess::kSignal + SIGTERM);
    if (!text.empty() && !asked) messages[text].push_back(number);
  }
  for (const auto& [text, numbers] : messages) {
    fmt::print(stderr, "rode: rank {}: {}\n", fmt::join(numbers, ", "), text);
  }
  if (failed) throw AlreadyTold(ranks[0].status == kWrongUsage ? kWrongUsage : 1);
}

}  // namespace rode::cli
