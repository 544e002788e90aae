// SPDX-License-Identifier: Apache-2.0
// CIFAR-100's binary files (Krizhevsky 2009).
#pragma once

#include <filesystem>

#include "core/file_io.h"
#include "lab/images/image.h"

namespace rode::lab {

// Records of 3074 bytes: coarse label (0..19), fine label (0..99), then 32 x 32 red, green and
// blue planes. Labels given out are the fine ones. Memory-mapped.
class Cifar100 : public ImageSource {
 public:
  explicit Cifar100(const std::filesystem::path& path);

  std::uint64_t size() const override { return size_; }
  std::int64_t classes() const override { return 100; }
  std::int64_t read(std::uint64_t index, Image& image) const override;

 private:
  FileMapping mapping_;
  std::uint64_t size_ = 0;
};

}  // namespace rode::lab
