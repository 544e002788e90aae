// SPDX-License-Identifier: Apache-2.0
// Where torchrun, or whoever starts the processes, says that they meet.
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>

#include "rode/error.h"
#include "rode/torch/ranks.h"

namespace rode::torch {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? std::nullopt : std::optional<std::string>(text);
}

int number(const char* name, int least, int most) {
  const std::string text = variable(name).value_or("");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) {
    return value;
  }
  throw Error(ErrorKind::invalid_argument, "process group",
              std::string(name) + " = '" + text + "'; expected a whole number from " +
                  std::to_string(least) + " to " + std::to_string(most) +
                  "; torchrun sets it together with WORLD_SIZE");
}

}  // namespace

Meeting meeting_from_environment() {
  constexpr int kMostRanks = 1 << 20, kMostPort = 65535;
  Meeting out;
  if (!variable("WORLD_SIZE")) return out;
  out.size = number("WORLD_SIZE", 1, kMostRanks);
  out.rank = number("RANK", 0, out.size - 1);
  if (const auto file = variable("RODE_MEETING_FILE")) {
    out.file = *file;
    return out;
  }
  const auto host = variable("MASTER_ADDR");
  if (!host) {
    throw Error(ErrorKind::invalid_argument, "process group",
                "WORLD_SIZE is set and MASTER_ADDR is not; set all of RANK, WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT, as torchrun does, or none");
  }
  out.host = *host;
  out.port = number("MASTER_PORT", 1, kMostPort);
  // torchrun's own process keeps the store, through all of its restarts.
  out.hosted = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  out.prefix = variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return out;
}

}  // namespace rode::torch
