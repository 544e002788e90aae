// SPDX-License-Identifier: Apache-2.0
// Images in memory, and where they come from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rode::lab {

// 8-bit RGB, row by row, the three channels of a pixel together.
struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> pixels;

  void reshape(int new_width, int new_height) {
    width = new_width;
    height = new_height;
    pixels.resize(static_cast<std::size_t>(new_width) * static_cast<std::size_t>(new_height) * 3);
  }
  const std::uint8_t* at(int x, int y) const { return pixels.data() + offset(x, y); }
  std::uint8_t* at(int x, int y) { return pixels.data() + offset(x, y); }

 private:
  std::size_t offset(int x, int y) const {
    return (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
            static_cast<std::size_t>(x)) *
           3;
  }
};

// Labelled images by index. Reading is thread-safe.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual std::uint64_t size() const = 0;
  virtual std::int64_t classes() const = 0;
  virtual std::int64_t read(std::uint64_t index, Image& image) const = 0;  // the label
};

// A baseline or progressive JPEG as RGB; grey and CMYK are converted.
void read_jpeg(const std::filesystem::path& path, Image& image);

// One folder per class below `root`, in the order of their names (their place is the label), with
// JPEG files in any depth: ImageNet's layout.
class ImageFolder : public ImageSource {
 public:
  // `classes`: their number, from the first on; 0: all.
  explicit ImageFolder(const std::filesystem::path& root, std::int64_t classes = 0);

  std::uint64_t size() const override { return files_.size(); }
  std::int64_t classes() const override { return static_cast<std::int64_t>(names_.size()); }
  std::int64_t read(std::uint64_t index, Image& image) const override;

  const std::vector<std::string>& class_names() const { return names_; }

 private:
  struct File {
    std::filesystem::path path;
    std::int64_t label = 0;
  };
  std::vector<std::string> names_;
  std::vector<File> files_;
};

// `count` images of another source, evenly spread over it: files lie in the order of their classes,
// and the first of them would all be of one.
class SpreadImages : public ImageSource {
 public:
  SpreadImages(std::shared_ptr<const ImageSource> source, std::uint64_t count)
      : source_(std::move(source)), size_(std::min(count, source_->size())) {}

  std::uint64_t size() const override { return size_; }
  std::int64_t classes() const override { return source_->classes(); }
  std::int64_t read(std::uint64_t index, Image& image) const override {
    const std::uint64_t whole = source_->size() / size_;
    const std::uint64_t part = source_->size() % size_;
    return source_->read(index * whole + index * part / size_, image);
  }

 private:
  std::shared_ptr<const ImageSource> source_;
  std::uint64_t size_;
};

}  // namespace rode::lab
