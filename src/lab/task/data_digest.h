// SPDX-License-Identifier: Apache-2.0
// Which data a run was given: digests that cost no pass over large data.
#pragma once

#include <filesystem>

#include <nlohmann/json_fwd.hpp>

#include "lab/task/task.h"

namespace rode::lab {

// SHA-256 by split. Tokens: of tokens.json and checksums.safetensors, which hold the hashes of
// every block, or of names and sizes where shards have neither. CIFAR: of the file. Folders of
// images: of names and sizes. Empty for synthetic data, which the task describes.
nlohmann::ordered_json digest_data(const Task& task, const std::filesystem::path& data_folder);

}  // namespace rode::lab
