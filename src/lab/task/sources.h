// SPDX-License-Identifier: Apache-2.0
// Opens the data that a task names.
#pragma once

#include <filesystem>
#include <memory>

#include "lab/images/augment.h"
#include "lab/stream/sequence_source.h"
#include "lab/task/task.h"

namespace rode::lab {

enum class Split { train, valid };

// RODE_DATA_DIR where it is set, else "data".
std::filesystem::path default_data_folder();

// Where the task leaves its vocabulary to the data: the task with the size that tokens.json names,
// or with its own if that file does not exist.
Task with_vocabulary_of_data(const Task& task, const std::filesystem::path& data_folder);

// For tasks of language and of images; the other kind throws.
std::shared_ptr<const SequenceSource> open_sequences(const Task& task, Split split,
                                                     const std::filesystem::path& data_folder);
std::shared_ptr<const ImageSource> open_images(const Task& task, Split split,
                                               const std::filesystem::path& data_folder);
ImageTransform image_transform(const Task& task);

}  // namespace rode::lab
