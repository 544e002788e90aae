// SPDX-License-Identifier: Apache-2.0
// Files that must be refused with a clear error, and writes that must leave the old file unchanged.
#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <ostream>
#include <span>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rode/error.h"
#include "rode/safetensors.h"
#include "unit/safetensors_support.h"

namespace rode {
namespace {

namespace fs = std::filesystem;
using test::file_bytes;
using test::safetensors_bytes;
using test::TemporaryDirectory;

// The message of the error that `call` must throw; all have the same form.
template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::file);
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with("[safetensors] file '")) << what;
    EXPECT_GE(std::ranges::count(what, ';'), 2) << "subject; expectation; remedy: " << what;
    return what;
  }
  ADD_FAILURE() << "no error";
  return {};
}

std::string refusal_of(std::span<const std::byte> bytes) {
  return refusal([&] { SafetensorsFile::parse(bytes, "bad"); });
}

// ---- Headers ----------------------------------------------------------------------------------

struct Case {
  const char* label;
  std::string json;
  std::string data;
  const char* message;  // what the error must contain
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.label; }

std::string label_of(const testing::TestParamInfo<Case>& at) { return at.param.label; }

class SafetensorsHostile : public testing::TestWithParam<Case> {};

TEST_P(SafetensorsHostile, IsRefusedWithItsReason) {
  const Case& c = GetParam();
  const std::string what = refusal_of(safetensors_bytes(c.json, c.data));
  EXPECT_NE(what.find(c.message), std::string::npos) << what;
  EXPECT_LT(what.size(), 600U) << "the input must not flood the message";
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}
std::string tensor(const std::string& shape, const std::string& offsets,
                   const std::string& dtype = "F32") {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
std::string one(const std::string& shape, const std::string& offsets,
                const std::string& dtype = "F32") {
  return R"({"a":)" + tensor(shape, offsets, dtype) + "}";
}
std::string two(const std::string& a, const std::string& b) {
  return R"({"a":)" + a + R"(,"b":)" + b + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Json, SafetensorsHostile,
    testing::Values(
        Case{"empty_header", "", "", "does not begin with '{'"},
        Case{"leading_space", " {}", "", "does not begin with '{'"},
        Case{"byte_order_mark", "\xEF\xBB\xBF{}", "", "does not begin with '{'"},
        Case{"array", "[]", "", "does not begin with '{'"},
        Case{"unfinished", R"({"a":)", "", "is not JSON at byte"},
        Case{"garbage_after", "{}x", "", "is not JSON at byte"},
        Case{"second_object", "{}{}", "", "is not JSON at byte"},
        Case{"garbage_after_nul", std::string("{}\0{}", 5), "", "NUL byte"},
        Case{"comment", "{/**/}", "", "is not JSON at byte"},
        Case{"invalid_utf8", "{\"\xFF\":0}", "", "is not JSON at byte"},
        Case{"lone_surrogate", R"({"\ud800":0})", "", "is not JSON at byte"},
        Case{"deep_objects", repeated(R"({"a":)", 1'000'000), "", "field 'a'"},
        Case{"deep_arrays", R"({"a":)" + std::string(5'000'000, '['), "", "has an array"},
        Case{"nested_shape", one("[[2]]", "[0,8]"), "", "has an array"},
        Case{"nested_field", R"({"a":{"dtype":{"a":{}}}})", "", "has an object"},
        Case{"scalar_tensor", R"({"a":3})", "", "tensor 'a': has 3"},
        Case{"null_tensor", R"({"a":null})", "", "tensor 'a': has null"},
        Case{"unknown_field", R"({"a":{"strides":[1]}})", "", "field 'strides'"},
        Case{"no_fields", R"({"a":{}})", "", "has no dtype"},
        Case{"no_offsets", R"({"a":{"dtype":"U8","shape":[]}})", "", "has no data_offsets"}),
    label_of);

INSTANTIATE_TEST_SUITE_P(
    Names, SafetensorsHostile,
    testing::Values(
        Case{"duplicate_tensor",
             R"({"a":)" + tensor("[0]", "[0,0]") + R"(,"a":)" + tensor("[0]", "[0,0]") + "}", "",
             "tensor 'a': is given twice"},
        Case{"duplicate_by_escape",
             R"({"a":)" + tensor("[0]", "[0,0]") + R"(,"\u0061":)" + tensor("[0]", "[0,0]") + "}",
             "", "tensor 'a': is given twice"},
        Case{"duplicate_field", R"({"a":{"dtype":"U8","dtype":"U8"}})", "", "has dtype twice"},
        Case{"empty_name", R"({"":)" + tensor("[0]", "[0,0]") + "}", "", "empty name"},
        Case{"long_name", R"({")" + std::string(1'000'000, 'n') + R"(":1})", "", "(1000000 bytes)"},
        Case{"control_name", R"({"\u0007\n":1})", "", "tensor '\\x07\\x0a'"},
        Case{"metadata_number", R"({"__metadata__":{"k":1}})", "", "metadata 'k': has 1"},
        Case{"metadata_object", R"({"__metadata__":{"k":{}}})", "", "metadata 'k': has an object"},
        Case{"metadata_string", R"({"__metadata__":"k"})", "", "metadata: has a string"},
        Case{"metadata_null", R"({"__metadata__":null})", "", "metadata: has null"},
        Case{"duplicate_metadata", R"({"__metadata__":{},"__metadata__":{}})", "", "given twice"},
        Case{"duplicate_metadata_key", R"({"__metadata__":{"k":"","k":""}})", "", "given twice"}),
    label_of);

INSTANTIATE_TEST_SUITE_P(
    Sizes, SafetensorsHostile,
    testing::Values(
        Case{"unknown_dtype", one("[1]", "[0,1]", "F8_E4M3"), "x", "tensor 'a': dtype 'F8_E4M3'"},
        Case{"lower_case_dtype", one("[1]", "[0,4]", "f32"), "1234", "tensor 'a': dtype 'f32'"},
        Case{"rank_9", one("[1,1,1,1,1,1,1,1,1]", "[0,4]"), "1234", "rank is more than 8"},
        Case{"negative_extent", one("[-1]", "[0,4]"), "1234", "has -1"},
        Case{"fractional_extent", one("[1.0]", "[0,4]"), "1234", "has 1.0"},
        Case{"string_extent", one("[\"1\"]", "[0,4]"), "1234", "has a string"},
        Case{"extent_over_63_bits", one("[9223372036854775808]", "[0,4]"), "1234", "63 bits"},
        Case{"extent_over_64_bits", one("[18446744073709551616]", "[0,4]"), "1234", "has 184"},
        Case{"elements_overflow", one("[4294967296,4294967296]", "[0,0]"), "", "63 bits"},
        // 2^62 floats are 2^64 bytes: 0 in arithmetic that wraps.
        Case{"bytes_overflow", one("[4611686018427387904]", "[0,0]"), "", "63 bits"},
        Case{"overflow_hidden_by_zero", one("[4294967296,4294967296,0]", "[0,0]"), "", "63 bits"},
        Case{"too_few_bytes", one("[2]", "[0,4]"), "1234", "hold 4 bytes; expected 8"},
        Case{"too_many_bytes", one("[1]", "[0,8]"), "12345678", "hold 8 bytes; expected 4"}),
    label_of);

INSTANTIATE_TEST_SUITE_P(
    Offsets, SafetensorsHostile,
    testing::Values(Case{"backwards", one("[1]", "[4,0]"), "1234", "are reversed"},
                    Case{"beyond_the_data", one("[2]", "[0,8]"), "1234", "exceed the data"},
                    Case{"huge", one("[1]", "[18446744073709551612,18446744073709551615]"), "1234",
                         "exceed the data"},
                    Case{"negative", one("[1]", "[-4,0]"), "1234", "has -4"},
                    Case{"one_number", one("[1]", "[4]"), "1234", "has 1 numbers"},
                    Case{"three_numbers", one("[1]", "[0,4,4]"), "1234", "has more than 2 numbers"},
                    Case{"not_an_array", one("[1]", "0"), "1234", "has 0"},
                    Case{"overlap", two(tensor("[2]", "[0,8]"), tensor("[1]", "[4,8]")), "12345678",
                         "tensor 'b': begins at 4 inside tensor 'a'"},
                    Case{"same_bytes", two(tensor("[1]", "[0,4]"), tensor("[1]", "[0,4]")), "1234",
                         "tensor 'b': begins at 0 inside tensor 'a'"},
                    Case{"empty_inside", two(tensor("[2]", "[0,8]"), tensor("[0]", "[4,4]")),
                         "12345678", "tensor 'b': begins at 4 inside tensor 'a'"},
                    Case{"hole_between", two(tensor("[1]", "[0,4]"), tensor("[1]", "[8,12]")),
                         "123456789abc", "tensor 'b': begins at 8 after a hole"},
                    Case{"hole_before", one("[1]", "[4,8]"), "12345678",
                         "tensor 'a': begins at 4 after a hole"},
                    Case{"garbage_behind", one("[1]", "[0,4]"), "12345",
                         "data: 1 bytes belong to no tensor"},
                    Case{"no_tensor_but_data", "{}", "1", "data: 1 bytes belong to no tensor"}),
    label_of);

// ---- Lengths and files ------------------------------------------------------------------------

TEST(SafetensorsFileErrors, HeaderLengthIsCheckedAgainstTheFileAndTheLimit) {
  for (const std::size_t size : {0U, 1U, 7U}) {
    EXPECT_NE(refusal_of(std::vector<std::byte>(size)).find("at least 8"), std::string::npos);
  }
  EXPECT_NE(refusal_of(safetensors_bytes(3, "{}", "")).find("exceeds the file"), std::string::npos);
  for (const std::uint64_t length :
       {std::uint64_t{100'000'001}, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    EXPECT_NE(refusal_of(safetensors_bytes(length, "{}", "")).find("exceeds the limit"),
              std::string::npos);
  }
}

TEST(SafetensorsFileErrors, EveryTruncationIsRefused) {
  const std::array<float, 3> values{1, 2, 3};
  const std::vector<TensorEntry> entries{{"w", view(values.data(), {3})}};
  const auto bytes = serialize_safetensors(entries);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    refusal_of(std::span(bytes).first(size));
  }
}

TEST(SafetensorsFileErrors, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  const TemporaryDirectory directory;
  refusal([&] { SafetensorsFile::open(directory / "missing.safetensors"); });
  refusal([&] { SafetensorsFile::open(directory.path()); });
  std::ofstream(directory / "empty");
  refusal([&] { SafetensorsFile::open(directory / "empty"); });
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  refusal([&] { SafetensorsFile::open(directory / "fifo"); });
  refusal([&] { SafetensorsFile::open("/dev/null"); });
}

// ---- Writing ----------------------------------------------------------------------------------

class SafetensorsWriteErrors : public testing::Test {
 protected:
  // Must fail, leave the old file and nothing else in the directory.
  void expect_refused(std::span<const TensorEntry> entries, std::string_view message,
                      const std::map<std::string, std::string>& metadata = {}) {
    const std::string what = refusal([&] { write_safetensors(path_, entries, metadata); });
    EXPECT_NE(what.find(message), std::string::npos) << what;
    EXPECT_EQ(file_bytes(path_), "old contents");
    EXPECT_EQ(directory_.count(), 1U);
  }
  void SetUp() override { std::ofstream(path_) << "old contents"; }

  const std::vector<float> values_ = std::vector<float>(100'000, 1.0F);
  const ConstTensorView view_{values_.data(), {100, 1000}, DType::f32};
  TemporaryDirectory directory_;
  fs::path path_ = directory_ / "old.safetensors";
};

TEST_F(SafetensorsWriteErrors, BadNamesAndViewsAreRefused) {
  expect_refused(std::vector<TensorEntry>{{"a", view_}, {"b", view_}, {"a", view_}},
                 "'a': is given twice");
  expect_refused(std::vector<TensorEntry>{{"", view_}}, "cannot be a tensor's name");
  expect_refused(std::vector<TensorEntry>{{"__metadata__", view_}}, "cannot be a tensor's name");
  expect_refused(std::vector<TensorEntry>{{"\xC0", view_}}, "cannot be a tensor's name");
  expect_refused(std::vector<TensorEntry>{{"a", {nullptr, {1}, DType::f32}}}, "'a': data is null");
  expect_refused(
      std::vector<TensorEntry>{{"a", {values_.data(), {std::int64_t{1} << 62}, DType::f32}}},
      "63 bits");
  expect_refused({}, "metadata 'k': is not UTF-8", {{"k", "\xFF"}});
}

TEST_F(SafetensorsWriteErrors, AHeaderBeyondTheLimitIsRefused) {
  expect_refused({}, "header: needs", {{"k", std::string(100'000'000, 'x')}});
}

TEST_F(SafetensorsWriteErrors, AFullDiskLeavesTheOldFile) {
  struct rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  // In the middle of the data, of the header, and before the first byte.
  for (const rlim_t limit : {rlim_t{5000}, rlim_t{20}, rlim_t{0}}) {
    struct rlimit small = old;
    small.rlim_cur = limit;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    std::string what;
    try {
      write_safetensors(path_, std::vector<TensorEntry>{{"a", view_}});
    } catch (const Error& error) {
      what = error.what();
    }
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_NE(what.find("cannot be written (File too large)"), std::string::npos) << what;
    EXPECT_EQ(file_bytes(path_), "old contents");
    EXPECT_EQ(directory_.count(), 1U);
  }
  std::signal(SIGXFSZ, old_handler);
}

TEST_F(SafetensorsWriteErrors, ADirectoryThatIsMissingOrNoneIsNamed) {
  const std::vector<TensorEntry> entries{{"a", view_}};
  for (const fs::path& path : {directory_ / "missing/x.safetensors", path_ / "x.safetensors"}) {
    const std::string what = refusal([&] { write_safetensors(path, entries); });
    EXPECT_NE(what.find(path.string()), std::string::npos) << what;
    EXPECT_NE(what.find("directory cannot be opened"), std::string::npos) << what;
  }
  EXPECT_EQ(file_bytes(path_), "old contents");
  EXPECT_EQ(directory_.count(), 1U);
}

TEST_F(SafetensorsWriteErrors, AnUnwritableDirectoryLeavesTheOldFile) {
  fs::permissions(directory_.path(), fs::perms::owner_read | fs::perms::owner_exec);
  // Permissions do not bind root, so root becomes the overflow user for a while.
  constexpr uid_t kNobody = 65534;
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(directory_.path().c_str(), kNobody, kNobody), 0);
    if (::seteuid(kNobody) != 0)
      GTEST_SKIP() << "running as root, and cannot switch to another user";
  }
  expect_refused(std::vector<TensorEntry>{{"a", view_}}, "Permission denied");
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  fs::permissions(directory_.path(), fs::perms::owner_all);
}

TEST_F(SafetensorsWriteErrors, DirectoriesAndDevicesAreNotReplaced) {
  const std::vector<TensorEntry> entries{{"a", view_}};
  for (const fs::path& path :
       {directory_.path(), directory_ / "", fs::path("/dev/full"), fs::path("")}) {
    refusal([&] { write_safetensors(path, entries); });
  }
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_EQ(directory_.count(), 1U);
}

}  // namespace
}  // namespace rode
