// SPDX-License-Identifier: Apache-2.0
// ImageNet-style folders: one folder per class.
#include <algorithm>
#include <cctype>
#include <system_error>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/images/image.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

bool is_jpeg(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == ".jpg" || extension == ".jpeg";
}

Error folder_error(const fs::path& root, std::string_view what) {
  return {ErrorKind::file, "image folder",
          fmt::format("folder '{}': {}; expected one folder per class with JPEG files; check the "
                      "path",
                      printable(root.string()), what)};
}

}  // namespace

ImageFolder::ImageFolder(const fs::path& root, std::int64_t classes) {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(root, failed)) {
    if (entry.is_directory()) names_.push_back(entry.path().filename().string());
  }
  if (failed) throw folder_error(root, fmt::format("cannot be listed ({})", failed.message()));
  std::sort(names_.begin(), names_.end());
  if (classes > 0 && names_.size() > static_cast<std::size_t>(classes)) {
    names_.resize(static_cast<std::size_t>(classes));
  }
  for (std::size_t label = 0; label < names_.size(); ++label) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(root / names_[label], failed)) {
      if (is_jpeg(entry.path())) found.push_back(entry.path());
    }
    if (failed || found.empty()) {
      throw folder_error(root, fmt::format("class '{}' holds no JPEG file", names_[label]));
    }
    // The file system's order may differ from machine to machine; the seed's meaning may not.
    std::sort(found.begin(), found.end());
    for (fs::path& path : found) {
      files_.push_back({std::move(path), static_cast<std::int64_t>(label)});
    }
  }
  if (files_.empty()) throw folder_error(root, "holds no class folder");
}

std::int64_t ImageFolder::read(std::uint64_t index, Image& image) const {
  const File& file = files_.at(index);
  read_jpeg(file.path, image);
  return file.label;
}

}  // namespace rode::lab
