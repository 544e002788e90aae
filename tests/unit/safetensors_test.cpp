// SPDX-License-Identifier: Apache-2.0
// Reading and writing of valid safetensors files.
#include "rode/safetensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "rode/error.h"
#include "unit/safetensors_support.h"

namespace rode {
namespace {

namespace fs = std::filesystem;
using test::file_bytes;
using test::safetensors_bytes;
using test::TemporaryDirectory;

constexpr std::array kAllDTypes{DType::f64, DType::f32, DType::f16,    DType::bf16, DType::i64,
                                DType::i32, DType::i16, DType::i8,     DType::u64,  DType::u32,
                                DType::u16, DType::u8,  DType::boolean};

// One 3 x 5 tensor per dtype, every byte different from its neighbours.
class AllDTypes {
 public:
  AllDTypes() {
    for (const DType dtype : kAllDTypes) {
      auto& bytes = storage_.emplace_back(15 * size_of(dtype));
      std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(storage_.size()));
    }
    for (std::size_t i = 0; i < kAllDTypes.size(); ++i) {
      entries_.push_back({"tensor." + std::string(to_string(kAllDTypes[i])),
                          ConstTensorView(storage_[i].data(), {3, 5}, kAllDTypes[i])});
    }
  }
  const std::vector<TensorEntry>& entries() const { return entries_; }

 private:
  std::vector<std::vector<unsigned char>> storage_;
  std::vector<TensorEntry> entries_;
};

void expect_same(const SafetensorsFile& file, std::span<const TensorEntry> entries) {
  ASSERT_EQ(file.names().size(), entries.size());
  for (const TensorEntry& entry : entries) {
    SCOPED_TRACE(entry.name);
    ASSERT_TRUE(file.contains(entry.name));
    const ConstTensorView read = file.tensor(entry.name);
    EXPECT_EQ(read.dtype, entry.view.dtype);
    EXPECT_EQ(read.shape, entry.view.shape);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read.data) % size_of(read.dtype), 0U);
    if (read.bytes() != 0) {
      EXPECT_EQ(std::memcmp(read.data, entry.view.data, read.bytes()), 0);
    }
  }
}

TEST(Safetensors, RoundTripKeepsEveryDTypeThroughAFile) {
  const TemporaryDirectory directory;
  const AllDTypes all;
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"ключ \"1\"\n", "\\ é"}};
  write_safetensors(directory / "all.safetensors", all.entries(), metadata);
  const auto file = SafetensorsFile::open(directory / "all.safetensors");
  expect_same(file, all.entries());
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(directory.count(), 1U) << "the temporary file must be gone";
}

TEST(Safetensors, MemoryAndFileHoldTheSameBytes) {
  const TemporaryDirectory directory;
  const AllDTypes all;
  write_safetensors(directory / "all.safetensors", all.entries());
  const auto bytes = serialize_safetensors(all.entries());
  EXPECT_EQ(file_bytes(directory / "all.safetensors"),
            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

TEST(Safetensors, WrittenBytesDoNotDependOnTheOrderOfEntries) {
  const AllDTypes all;
  auto reversed = all.entries();
  std::ranges::reverse(reversed);
  EXPECT_EQ(serialize_safetensors(all.entries()), serialize_safetensors(reversed));
}

TEST(Safetensors, OrdersByElementSizeThenNameAndAlignsTheData) {
  const std::array<double, 2> wide{1, 2};
  const std::array<float, 3> narrow{3, 4, 5};
  const std::array<std::uint8_t, 1> byte{6};
  const std::vector<TensorEntry> entries{{"a", {byte.data(), {1}, DType::u8}},
                                         {"z", {narrow.data(), {3}, DType::f32}},
                                         {"b", {narrow.data(), {3}, DType::f32}},
                                         {"y", {wide.data(), {2}, DType::f64}}};
  const auto bytes = serialize_safetensors(entries);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0U);
  const auto file = SafetensorsFile::parse(bytes, "order");
  EXPECT_EQ(file.names(), (std::vector<std::string>{"y", "b", "z", "a"}));
  // Aligned in place: consecutive tensors are adjacent, so none was copied.
  EXPECT_EQ(static_cast<const char*>(file.tensor("b").data) -
                static_cast<const char*>(file.tensor("y").data),
            16);
}

TEST(Safetensors, ScalarsAndTensorsWithoutElementsAreLegal) {
  const float one = 1.0F;
  const std::vector<TensorEntry> entries{{"scalar", {&one, {}, DType::f32}},
                                         {"empty", {nullptr, {0, 7}, DType::f64}},
                                         {"also_empty", {nullptr, {3, 0}, DType::bf16}}};
  const auto file = SafetensorsFile::parse(serialize_safetensors(entries), "empty");
  expect_same(file, entries);
  EXPECT_NE(file.tensor("empty").data, nullptr);
  EXPECT_EQ(file.tensor("scalar").numel(), 1);
}

TEST(Safetensors, AFileWithoutTensorsIsLegal) {
  const std::map<std::string, std::string> metadata{{"step", "3"}};
  const auto file = SafetensorsFile::parse(serialize_safetensors({}, metadata), "none");
  EXPECT_TRUE(file.names().empty());
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_TRUE(SafetensorsFile::parse(safetensors_bytes("{}", ""), "bare").metadata().empty());
}

TEST(Safetensors, MisalignedForeignTensorsAreCopiedToAlignedMemory) {
  // A header of odd length, and a byte before the floats: misaligned however it is stored.
  for (const char* padding : {"", " ", "  ", "   "}) {
    const std::string json = R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})" +
                             std::string(padding);
    const std::array<float, 2> values{1.5F, -2.0F};
    std::string data = "x";
    data.append(reinterpret_cast<const char*>(values.data()), sizeof values);
    const auto file = SafetensorsFile::parse(safetensors_bytes(json, data), "foreign");
    EXPECT_EQ(file.names(), (std::vector<std::string>{"x", "w"}));
    expect_same(file, std::vector<TensorEntry>{{"x", {"x", {1}, DType::u8}},
                                               {"w", {values.data(), {2}, DType::f32}}});
  }
}

TEST(Safetensors, ViewsSurviveMovesOfTheFile) {
  const AllDTypes all;
  auto first = SafetensorsFile::parse(serialize_safetensors(all.entries()), "moved");
  const void* before = first.tensor("tensor.F32").data;
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(second.tensor("tensor.F32").data, before);
  expect_same(second, all.entries());
}

TEST(Safetensors, AnUnknownNameIsAnsweredWithTheNearestOne) {
  const AllDTypes all;
  const auto file = SafetensorsFile::parse(serialize_safetensors(all.entries()), "x.safetensors");
  EXPECT_FALSE(file.contains("tensor.F23"));
  try {
    file.tensor("tensro.BF16");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::state_mismatch);
    EXPECT_STREQ(
        error.what(),
        "[safetensors] file 'x.safetensors': tensor 'tensro.BF16': is not in the file; "
        "expected one of its 13 names, nearest 'tensor.BF16'; check the name and the file");
  }
}

TEST(Safetensors, ViewsOfAFileMayBeSavedOverThatFile) {
  const TemporaryDirectory directory;
  const AllDTypes all;
  const fs::path path = directory / "same.safetensors";
  write_safetensors(path, all.entries());
  const auto file = SafetensorsFile::open(path);
  std::vector<TensorEntry> views;
  for (const std::string& name : file.names()) views.push_back({name, file.tensor(name)});
  write_safetensors(path, views, {{"saved", "twice"}});
  expect_same(file, all.entries());
  expect_same(SafetensorsFile::open(path), all.entries());
}

TEST(Safetensors, ReplacingAFileKeepsItsPermissionsAndFollowsLinks) {
  const TemporaryDirectory directory;
  const AllDTypes all;
  const fs::path path = directory / "real.safetensors";
  write_safetensors(path, {});
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real.safetensors", directory / "latest");
  write_safetensors(directory / "latest", all.entries());
  EXPECT_TRUE(fs::is_symlink(directory / "latest"));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  expect_same(SafetensorsFile::open(path), all.entries());
}

TEST(Safetensors, ReadsAFileOfAnotherWriter) {
  const char* given = std::getenv("RODE_SHARED_DATA");
  const fs::path data =
      given != nullptr ? fs::path(given) : fs::path(RODE_SOURCE_DIR) / ".." / "shared" / "data";
  const fs::path path = data / "mnist_mlp_128.safetensors";
  if (!fs::exists(path)) GTEST_SKIP() << "no " << path << "; set RODE_SHARED_DATA";
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"l1.weight", "l2.weight"}));
  const ConstTensorView weight = file.tensor("l1.weight");
  EXPECT_EQ(weight.shape, (Shape{128, 784}));
  ASSERT_EQ(weight.dtype, DType::f32);
  const std::span values(static_cast<const float*>(weight.data),
                         static_cast<std::size_t>(weight.numel()));
  for (const float v : values) ASSERT_TRUE(std::isfinite(v));
  EXPECT_EQ(file.tensor("l2.weight").shape, (Shape{10, 128}));
}

}  // namespace
}  // namespace rode
