// SPDX-License-Identifier: Apache-2.0
// Tests of several processes: this program, started again once per rank, and what each reports.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rode/torch/ranks.h"

namespace rode::torch {

// What a rank has written, by key, and how it ended.
struct RankReport {
  std::map<std::string, std::string> lines;
  int status = -1;  // of exit; 128 and more: of a signal

  const std::string& operator[](const std::string& key) const;
};

// Where ranks meet and report; removed with this.
class RankFolder {
 public:
  RankFolder();
  RankFolder(const RankFolder&) = delete;
  RankFolder& operator=(const RankFolder&) = delete;
  ~RankFolder();

  std::filesystem::path path;
};

struct RankRun {
  int size = 1;
  std::vector<int> started = {};  // empty: all
  int timeout_s = 20;
  int port = 0;  // 0: they meet at a file
};

// Runs a scenario (below) on every rank and waits for all.
std::vector<RankReport> run_ranks(const std::string& scenario, const RankRun& run,
                                  const RankFolder& folder);
int free_port();

// One rank, while it runs a scenario.
class RankProcess {
 public:
  RankProcess();

  Meeting meeting;
  std::filesystem::path folder;
  void write(const std::string& key, const std::string& value) const;
};
using Scenario = void (*)(const RankProcess& process);
// Names are unique over the program; a static object of this type registers one.
struct AddScenario {
  AddScenario(const char* name, Scenario scenario);
};
// The exit status of a rank; -1 where this process is none.
int run_as_rank();

}  // namespace rode::torch
