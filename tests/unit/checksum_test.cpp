// SPDX-License-Identifier: Apache-2.0
// The checksum of safetensors files: its algorithm, and that it detects all damage.
#include "core/checksum.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "rode/error.h"
#include "rode/safetensors.h"
#include "unit/safetensors_support.h"

namespace rode {
namespace {

using test::safetensors_bytes;
using test::TemporaryDirectory;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The values are those of xxHash's own library, version 0.8.
TEST(Checksum, IsXxh3With128BitsInPiecesToo) {
  std::string text;
  for (int i = 0; i < 256'000; ++i) text += static_cast<char>(i % 256);
  for (const auto& [part, expected] : std::vector<std::pair<std::string, std::string>>{
           {"", "99aa06d3014798d86001c324468d497f"},
           {"abc", "06b05ab6733a618578af5f94892f3950"},
           {text, "548512d98989de2d776474c39d20f9aa"}}) {
    for (const std::size_t piece : {std::size_t{1} << 20U, std::size_t{1000}, std::size_t{7}}) {
      Checksum sum;
      for (std::size_t at = 0; at < part.size(); at += piece) {
        sum.add(bytes_of(std::string_view(part).substr(at, piece)));
      }
      EXPECT_EQ(sum.digits(), expected);
    }
  }
}

std::vector<std::byte> some_file() {
  static constexpr std::array<float, 6> kValues{1, -2, 3.5, 0, 1e30F, -0.0F};
  const std::vector<TensorEntry> entries{
      {"param.w", {kValues.data(), {2, 3}, DType::f32}},
      {"state.w.momentum", {kValues.data(), {3, 1}, DType::f32}}};
  return serialize_safetensors(entries, {{"rode.step", "12"}, {"format", "pt"}});
}

// The error's text; empty if the file is accepted.
std::string refusal(std::span<const std::byte> bytes) {
  try {
    SafetensorsFile::parse(bytes, "damaged");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::file);
    return error.what();
  }
  return {};
}

TEST(SafetensorsChecksum, NoSingleBitOfAFileCanChangeUnnoticed) {
  auto bytes = some_file();
  ASSERT_EQ(refusal(bytes), "");
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = std::byte{1} << (bit % 8);
    bytes[bit / 8] ^= mask;
    EXPECT_NE(refusal(bytes), "") << "bit " << bit % 8 << " of byte " << bit / 8;
    bytes[bit / 8] ^= mask;
  }
}

TEST(SafetensorsChecksum, ADamagedHeaderIsCalledDamagedAndNotMisread) {
  // A digit of a shape, of an offset, of the step; a letter of a name.
  for (const char* place : {"[2,3]", "[0,24]", "\"12\"", "momentum"}) {
    auto bytes = some_file();
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    bytes[text.find(place) + 1] ^= std::byte{1};
    const std::string message = refusal(bytes);
    for (const char* word : {"[safetensors] file 'damaged': checksum: ", "expected", "restore"}) {
      EXPECT_NE(message.find(word), std::string::npos) << place << ": " << message;
    }
  }
}

TEST(SafetensorsChecksum, ZerosAndSwappedBlocksAreNoticed) {
  const auto good = some_file();
  for (std::size_t size = 1; size <= good.size(); size *= 2) {
    for (std::size_t at = 0; at + size <= good.size(); at += size) {
      auto bytes = good;
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), size, std::byte{0});
      EXPECT_EQ(refusal(bytes).empty(), bytes == good) << size << " zeros at " << at;
    }
  }
  auto swapped = good;
  std::swap_ranges(swapped.end() - 8, swapped.end() - 4, swapped.end() - 4);
  ASSERT_NE(swapped, good);
  EXPECT_NE(refusal(swapped), "");
}

TEST(SafetensorsChecksum, IsNotPartOfTheMetadataAndCannotBeGiven) {
  const TemporaryDirectory directory;
  const auto file = SafetensorsFile::parse(some_file(), "some");
  EXPECT_TRUE(file.has_checksum());
  EXPECT_EQ(file.checksum_note(), "");
  EXPECT_EQ(file.metadata(),
            (std::map<std::string, std::string>{{"rode.step", "12"}, {"format", "pt"}}));
  EXPECT_THROW(write_safetensors(directory / "out", {}, {{"rode.checksum", "x"}}), Error);
  EXPECT_EQ(directory.count(), 0U);
}

TEST(SafetensorsChecksum, FilesOfOtherWritersLoadAndSaySo) {
  const auto file = SafetensorsFile::parse(
      safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "xy"), "other");
  EXPECT_FALSE(file.has_checksum());
  EXPECT_NE(file.checksum_note().find("'other': has no checksum"), std::string::npos);
}

// Like a program that copies the metadata of one file into another.
TEST(SafetensorsChecksum, AKeptChecksumOfOtherDataIsRefusedWithItsRemedy) {
  const std::string entry = "rode-xxh3-128:0123456789abcdef0123456789abcdef";
  const std::string json = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                           R"("__metadata__":{"format":"pt","rode.checksum":")" +
                           entry + R"("}})";
  EXPECT_NE(refusal(safetensors_bytes(json, "xy")).find("save it again without that entry"),
            std::string::npos);
  // With the digits of these bytes it is right, wherever it is.
  auto bytes = safetensors_bytes(json, "xy");
  const std::size_t at = 8 + find_checksum(json).value();
  std::ranges::copy(bytes_of(checksum_of(bytes, at)),
                    bytes.begin() + static_cast<std::ptrdiff_t>(at));
  EXPECT_EQ(refusal(bytes), "");
}

}  // namespace
}  // namespace rode
