// SPDX-License-Identifier: Apache-2.0
// What the processes of a run send each other besides gradients.
#include "lab/train/ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nlohmann/json.hpp>

#include "lab/run/rank_rules.h"

namespace rode::lab {
namespace {

// As torchrun sets it; else all ranks are on one machine.
int local_rank(int rank) {
  const char* const text = std::getenv("LOCAL_RANK");
  if (text == nullptr || *text == '\0') return rank;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 0 || value > rank) {
    throw Error(ErrorKind::invalid_argument, "train",
                std::string("LOCAL_RANK = '") + text + "'; expected a whole number from 0 to RANK");
  }
  return static_cast<int>(value);
}

// The device that the session will take; -1: none. If that is an error, it is reported once all
// ranks can receive it.
int device_of(const std::string& name, int local) {
  if (name == "cpu" || !at::globalContext().hasCUDA()) return -1;
  return local < c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() ? local : -1;
}

rode::torch::GroupBackend backend_of(const std::string& name) {
  using rode::torch::GroupBackend;
  if (name == "auto") return GroupBackend::automatic;
  if (name == "gloo") return GroupBackend::gloo;
  if (name == "nccl") return GroupBackend::nccl;
  throw Error(ErrorKind::invalid_argument, "train",
              "ranks_backend = '" + name + "'; expected auto, gloo or nccl");
}

Json matrix_json(const MatrixDiagnostics& m) {
  return {m.name, m.rho, m.rho_next, m.s, m.q, m.theta, m.gamma, m.m_norm};
}

MatrixDiagnostics matrix_of(const Json& json) {
  // JSON has no NaN, and writes null.
  const auto number = [&](std::size_t i) {
    return json.at(i).is_number() ? json.at(i).get<double>()
                                  : std::numeric_limits<double>::quiet_NaN();
  };
  return {.name = json.at(0),
          .rho = number(1),
          .rho_next = number(2),
          .s = number(3),
          .q = number(4),
          .theta = number(5),
          .gamma = number(6),
          .m_norm = number(7)};
}

// Of "blocks.0.weight[2]" as of "blocks.0.weight".
std::string_view without_block(std::string_view name) {
  return name.ends_with(']') ? name.substr(0, name.rfind('[')) : name;
}

}  // namespace

std::pair<std::int64_t, std::int64_t> RunRanks::share_of(std::int64_t rows) const {
  const std::int64_t first = rows * rank() / count();
  return {first, rows * (rank() + 1) / count() - first};
}

std::vector<double> RunRanks::sum(const std::vector<double>& values) const {
  return alone() || values.empty() ? values : group_->sum(values);
}

bool RunRanks::any(bool own) const { return sum({own ? 1.0 : 0.0})[0] > 0; }

std::vector<std::string> RunRanks::tell(const std::string& text) const {
  return alone() ? std::vector<std::string>{text} : group_->tell(text);
}

void RunRanks::broadcast(const std::vector<at::Tensor>& tensors) const {
  if (!alone() && !tensors.empty()) group_->broadcast(tensors);
}

void RunRanks::leave(const char* why) const {
  if (!alone()) group_->leave(why);
}

void RunRanks::join(std::vector<StepDiagnostics>& steps,
                    const std::vector<std::string>& names) const {
  if (alone() || steps.empty()) return;
  constexpr std::size_t kNumbers = 5;
  std::vector<double> numbers;
  for (const StepDiagnostics& one : steps) {
    const GlobalDiagnostics& global = one.global;
    for (const double norm : {global.weight_norm, global.update_norm, global.gradient_norm}) {
      numbers.push_back(norm * norm);
    }
    numbers.push_back(global.held);
    numbers.push_back(static_cast<double>(one.matrices.size()));
  }
  numbers = sum(numbers);
  bool matrices = false;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double* const own = numbers.data() + kNumbers * i;
    GlobalDiagnostics& global = steps[i].global;
    global.weight_norm = std::sqrt(own[0]);
    global.update_norm = std::sqrt(own[1]);
    global.gradient_norm = std::sqrt(own[2]);
    constexpr double kNoZero = 1e-12;  // as in rode/diagnostics.h
    global.update_ratio = global.update_norm / (global.weight_norm + kNoZero);
    global.held = static_cast<int>(own[3]);
    matrices = matrices || own[4] > 0;
  }
  if (!matrices) return;  // on every rank alike
  Json mine = Json::array();
  for (const StepDiagnostics& one : steps) {
    Json& list = mine.emplace_back(Json::array());
    for (const MatrixDiagnostics& matrix : one.matrices) list.push_back(matrix_json(matrix));
  }
  const std::vector<std::string> all = group_->collect(mine.dump());
  for (StepDiagnostics& one : steps) one.matrices.clear();
  for (const std::string& text : all) {
    const Json told = Json::parse(text);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const Json& matrix : told.at(i)) steps[i].matrices.push_back(matrix_of(matrix));
    }
  }
  std::map<std::string_view, std::size_t> places;
  for (const std::string& name : names) places.emplace(name, places.size());
  const auto place = [&](const MatrixDiagnostics& matrix) {
    const auto found = places.find(without_block(matrix.name));
    return found == places.end() ? places.size() : found->second;
  };
  for (StepDiagnostics& one : steps) {
    std::ranges::stable_sort(one.matrices, {}, place);
  }
}

// ---- The beginning ----------------------------------------------------------------------------

RunRanks open_ranks(const TrainOptions& options) {
  if (!options.meet) return {};
  rode::torch::Meeting meeting = rode::torch::meeting_from_environment();
  if (meeting.size == 1) return {};
  meeting.timeout = std::chrono::seconds(options.timeout_seconds);
  const int local = local_rank(meeting.rank);
  meeting.backend = backend_of(options.ranks_backend);
  meeting.device = device_of(options.device, local);
  return {rode::torch::meet(meeting), local};
}

RunRanks agreed_ranks(RunRanks ranks, const TrainOptions& options, const Json& run) {
  if (ranks.alone()) return ranks;
  require_equal_rows(options.task, ranks.count());
  Json own = run;
  own["until"] = options.until;
  own["device"] = options.device;
  own["log_interval"] = options.log_interval;
  own["read_interval"] = options.read_interval;
  own["resume"] = options.resume;
  own["out"] = options.out.string();
  const std::vector<std::string> told = ranks.tell(own.dump());
  const Json first = Json::parse(told[0]);
  for (std::size_t rank = 1; rank < told.size(); ++rank) {
    const std::string differs = run_difference(first, Json::parse(told[rank]));
    if (differs.empty()) continue;
    throw Error(ErrorKind::process_group, "train",
                "rank " + std::to_string(rank) +
                    " was started with different options from rank 0: " + differs +
                    " (there: rank 0, here: rank " + std::to_string(rank) +
                    "); start all ranks with the same options and the same data");
  }
  return ranks;
}

}  // namespace rode::lab
