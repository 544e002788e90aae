// SPDX-License-Identifier: Apache-2.0
// From a task's description to sequences or images.
#include "lab/task/sources.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "lab/images/cifar.h"
#include "lab/synthetic/tiny_lm.h"
#include "lab/synthetic/tiny_vision.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

Error wrong_kind(const Task& task, std::string_view wanted) {
  return {ErrorKind::invalid_argument, "task",
          fmt::format("task '{}' has data of kind '{}'; expected {}", task.name, task.data.kind,
                      wanted)};
}

std::uint64_t samples(const Task& task, Split split) {
  return static_cast<std::uint64_t>(split == Split::train ? task.data.train_samples
                                                          : task.data.eval_samples);
}

std::filesystem::path folder_of(const Task& task, Split split,
                                const std::filesystem::path& data_folder) {
  const bool apart = split == Split::valid && !task.data.valid_path.empty();
  return data_folder / (apart ? task.data.valid_path : task.data.path);
}

constexpr int kTinySide = 32;

}  // namespace

std::filesystem::path default_data_folder() {
  const char* folder = std::getenv("RODE_DATA_DIR");  // NOLINT(concurrency-mt-unsafe)
  return folder != nullptr && *folder != '\0' ? folder : "data";
}

Task with_vocabulary_of_data(const Task& task, const std::filesystem::path& data_folder) {
  if (!task.model.vocab_from_data || task.data.kind != "tokens") return task;
  const auto info = read_token_info(data_folder / task.data.path);
  Task out = task;
  out.model.vocab_from_data = false;
  if (info) out.model.vocab_size = info->vocab_size;
  return out;
}

std::shared_ptr<const SequenceSource> open_sequences(const Task& task, Split split,
                                                     const std::filesystem::path& data_folder) {
  const std::uint64_t number = split == Split::train ? 0 : 1;
  if (task.data.kind == "tiny-lm") {
    TinyLmOptions options;
    options.vocab_size = task.model.vocab_size;
    return std::make_shared<TinyLm>(options, samples(task, split), task.data.sequence, number);
  }
  if (task.data.kind != "tokens") throw wrong_kind(task, "tokens or tiny-lm");
  TokenFolder folder(folder_of(task, split, data_folder),
                     split == Split::train ? task.data.train : task.data.valid);
  return std::make_shared<ShardSequences>(std::move(folder), task.data.sequence,
                                          task.model.vocab_size);
}

std::shared_ptr<const ImageSource> open_images(const Task& task, Split split,
                                               const std::filesystem::path& data_folder) {
  const std::string& name = split == Split::train ? task.data.train : task.data.valid;
  std::shared_ptr<const ImageSource> source;
  if (task.data.kind == "tiny-vision") {
    source = std::make_shared<TinyVision>(samples(task, split), kTinySide,
                                          split == Split::train ? 0 : 1);
  } else if (task.data.kind == "cifar-100") {
    source = std::make_shared<Cifar100>(folder_of(task, split, data_folder) / (name + ".bin"));
  } else if (task.data.kind == "image-folder") {
    source = std::make_shared<ImageFolder>(folder_of(task, split, data_folder) / name,
                                           task.data.classes);
  } else {
    throw wrong_kind(task, "cifar-100, image-folder or tiny-vision");
  }
  if (source->classes() != task.model.classes) {
    throw Error(ErrorKind::invalid_argument, "task",
                fmt::format("task '{}' has a model of {} classes and images of {}; expected equal "
                            "numbers; correct 'classes' or the folder",
                            task.name, task.model.classes, source->classes()));
  }
  const std::uint64_t wanted = samples(task, split);
  if (wanted > 0 && wanted < source->size()) {
    source = std::make_shared<SpreadImages>(std::move(source), wanted);
  }
  return source;
}

ImageTransform image_transform(const Task& task) {
  ImageTransform transform;
  transform.size = static_cast<int>(task.data.image_size);
  transform.eval_resize = static_cast<int>(task.data.eval_resize);
  transform.augment = task.data.augment;
  transform.area_min = task.data.area_min;
  return transform;
}

}  // namespace rode::lab
