// SPDX-License-Identifier: Apache-2.0
// Versions from Torch, chips from Linux.
#include "lab/train/environment.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <ATen/Context.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "rode/version.h"

namespace rode::lab {
namespace {

// The value of "key   : value" in a file of such lines; empty where there is none.
std::string value_in(const std::filesystem::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

// As the driver names it, without a call into CUDA: this library is built with and without it.
std::string gpu_name() {
  std::error_code none;
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    const std::string name = value_in(gpu.path() / "information", "Model");
    if (!name.empty()) return name;
  }
  return "unknown";
}

// 13000 is 13.0.
std::string cuda_version(long number) {
  constexpr long kMajor = 1000;
  constexpr long kMinor = 10;
  return std::to_string(number / kMajor) + "." + std::to_string(number % kMajor / kMinor);
}

}  // namespace

nlohmann::ordered_json describe_environment(c10::Device device) {
  nlohmann::ordered_json json = {{"version", std::string(version())},
                                 {"commit", std::string(source_commit())},
                                 {"torch", TORCH_VERSION},
                                 {"cpu", value_in("/proc/cpuinfo", "model name")}};
  if (device.is_cuda()) {
    json["cuda"] = cuda_version(at::Context::versionCUDART());
    json["gpu"] = gpu_name();
  }
  return json;
}

}  // namespace rode::lab
