// SPDX-License-Identifier: Apache-2.0
// fork and exec of this program, files of lines, and the main of both.
#include "ranks.h"

#include <csignal>
#include <cstdlib>
#include <fstream>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rode/error.h"
#include "support/run_all_tests.h"

namespace rode::torch {
namespace {

constexpr const char* kScenario = "RODE_TEST_SCENARIO";
constexpr const char* kFolder = "RODE_TEST_FOLDER";
constexpr const char* kTimeout = "RODE_TEST_TIMEOUT";

std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> all;
  return all;
}

std::filesystem::path report_of(const std::filesystem::path& folder, int rank) {
  return folder / ("rank-" + std::to_string(rank) + ".txt");
}

pid_t start(const std::string& scenario, const RankRun& run, const RankFolder& folder, int rank) {
  std::map<std::string, std::string> environment = {
      {kScenario, scenario},
      {kFolder, folder.path.string()},
      {kTimeout, std::to_string(run.timeout_s)},
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(run.size)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(run.port)},
      {"OMP_NUM_THREADS", "1"},
      {"TORCH_CPP_LOG_LEVEL", "FATAL"}};  // c10d's own words on what is expected here
  if (run.port == 0) environment["RODE_MEETING_FILE"] = (folder.path / "meeting").string();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  for (const auto& [key, value] : environment) ::setenv(key.c_str(), value.c_str(), 1);
  ::execl("/proc/self/exe", "ranks", nullptr);
  ::_exit(127);
}

}  // namespace

const std::string& RankReport::operator[](const std::string& key) const {
  static const std::string none = "(nothing was reported)";
  const auto found = lines.find(key);
  return found == lines.end() ? none : found->second;
}

RankFolder::RankFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "rode-ranks-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for ranks");
  path = name;
}

RankFolder::~RankFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::vector<RankReport> run_ranks(const std::string& scenario, const RankRun& run,
                                  const RankFolder& folder) {
  std::filesystem::remove(folder.path / "meeting");
  std::vector<int> started = run.started;
  for (int rank = 0; run.started.empty() && rank < run.size; ++rank) started.push_back(rank);
  std::map<int, pid_t> processes;
  for (const int rank : started) {
    std::filesystem::remove(report_of(folder.path, rank));
    processes[rank] = start(scenario, run, folder, rank);
  }
  std::vector<RankReport> reports(static_cast<std::size_t>(run.size));
  for (const auto& [rank, pid] : processes) {
    RankReport& report = reports[static_cast<std::size_t>(rank)];
    int status = 0;
    ::waitpid(pid, &status, 0);
    report.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    std::ifstream in(report_of(folder.path, rank));
    for (std::string line; std::getline(in, line);) {
      const std::size_t at = line.find('\t');
      report.lines[line.substr(0, at)] = line.substr(at + 1);
    }
  }
  return reports;
}

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(socket);
  return ntohs(address.sin_port);
}

RankProcess::RankProcess() : meeting(meeting_from_environment()), folder(std::getenv(kFolder)) {
  meeting.timeout = std::chrono::seconds(std::atoi(std::getenv(kTimeout)));
}

void RankProcess::write(const std::string& key, const std::string& value) const {
  std::ofstream(report_of(folder, meeting.rank), std::ios::app) << key << '\t' << value << '\n';
}

AddScenario::AddScenario(const char* name, Scenario scenario) { scenarios()[name] = scenario; }

int run_as_rank() {
  const char* const name = std::getenv(kScenario);
  if (name == nullptr) return -1;
  const RankProcess process;
  try {
    scenarios().at(name)(process);
    return 0;
  } catch (const std::exception& error) {
    process.write("error", error.what());
    return 1;
  }
}

}  // namespace rode::torch

int main(int argc, char** argv) {
  const int status = rode::torch::run_as_rank();
  if (status >= 0) return status;
  testing::InitGoogleTest(&argc, argv);
  return rode::test::run_all_tests();
}
