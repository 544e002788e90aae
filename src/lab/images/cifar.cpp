// SPDX-License-Identifier: Apache-2.0
// CIFAR-100's records: checked once, read by index.
#include "lab/images/cifar.h"

#include <fmt/format.h>

namespace rode::lab {
namespace {

constexpr int kSide = 32;
constexpr std::size_t kPlane = std::size_t{kSide} * kSide;
constexpr std::size_t kRecord = 2 + 3 * kPlane;
constexpr int kCoarse = 20;
constexpr int kFine = 100;

}  // namespace

Cifar100::Cifar100(const std::filesystem::path& path) : mapping_(path, "cifar-100") {
  const auto bytes = mapping_.bytes();
  const auto fail = [&](std::string_view what) {
    return file_error("cifar-100", path.string(),
                      fmt::format("{}; expected train.bin or test.bin of the binary version; "
                                  "download it again with 'rode data get cifar-100'",
                                  what));
  };
  if (bytes.empty() || bytes.size() % kRecord != 0) {
    throw fail(fmt::format("holds {} bytes, which is not a multiple of the record size {}",
                           bytes.size(), kRecord));
  }
  size_ = bytes.size() / kRecord;
  for (std::uint64_t i = 0; i < size_; ++i) {
    const auto coarse = std::to_integer<int>(bytes[i * kRecord]);
    const auto fine = std::to_integer<int>(bytes[i * kRecord + 1]);
    if (coarse >= kCoarse || fine >= kFine) {
      throw fail(
          fmt::format("record {} has the labels {} and {}, beyond 19 and 99", i, coarse, fine));
    }
  }
}

std::int64_t Cifar100::read(std::uint64_t index, Image& image) const {
  const std::byte* record = mapping_.bytes().subspan(index * kRecord, kRecord).data();
  image.reshape(kSide, kSide);
  for (std::size_t i = 0; i < kPlane; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      image.pixels[i * 3 + c] = std::to_integer<std::uint8_t>(record[2 + c * kPlane + i]);
    }
  }
  return std::to_integer<std::int64_t>(record[1]);
}

}  // namespace rode::lab
