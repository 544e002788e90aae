// SPDX-License-Identifier: Apache-2.0
// From a task's description to sequences or images.
#include "lab/task/sources.h"

#include <cstdlib>

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

constexpr int kTinySide = 32;

}  // namespace

std::filesystem::path default_data_folder() {
  const char* folder = std::getenv("RODE_DATA_DIR");  // NOLINT(concurrency-mt-unsafe)
  return folder != nullptr && *folder != '\0' ? folder : "data";
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
  TokenFolder folder(data_folder / task.data.path,
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
    source = std::make_shared<Cifar100>(data_folder / task.data.path / (name + ".bin"));
  } else if (task.data.kind == "image-folder") {
    source = std::make_shared<ImageFolder>(data_folder / task.data.path / name);
  } else {
    throw wrong_kind(task, "cifar-100, image-folder or tiny-vision");
  }
  if (source->classes() != task.model.classes) {
    throw Error(ErrorKind::invalid_argument, "task",
                fmt::format("task '{}' has a model of {} classes and images of {}; expected equal "
                            "numbers; correct 'classes' or the folder",
                            task.name, task.model.classes, source->classes()));
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
