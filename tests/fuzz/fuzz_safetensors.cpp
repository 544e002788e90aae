// SPDX-License-Identifier: Apache-2.0
// Fuzzes the safetensors reader: any bytes give a file or an Error, and a file round-trips. An
// input with a checksum is tried twice, unchanged and with the right checksum: otherwise mutations
// would stop there and never reach the code after it.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "core/checksum.h"
#include "fuzz/fuzz_target.h"
#include "rode/error.h"
#include "rode/safetensors.h"

namespace {

using rode::ConstTensorView;
using rode::SafetensorsFile;
using rode::TensorEntry;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_safetensors: %s\n", what);
  std::abort();
}

template <typename Word>
std::uint64_t sum_words(const void* data, std::size_t bytes) {
  std::uint64_t sum = 0;
  for (const Word w : std::span(static_cast<const Word*>(data), bytes / sizeof(Word))) sum += w;
  return sum;
}

// Loads of the dtype's width: the sanitizers see a byte out of range and a misaligned pointer.
std::uint64_t read_all(const ConstTensorView& view) {
  switch (rode::size_of(view.dtype)) {
    case 8: return sum_words<std::uint64_t>(view.data, view.bytes());
    case 4: return sum_words<std::uint32_t>(view.data, view.bytes());
    case 2: return sum_words<std::uint16_t>(view.data, view.bytes());
    default: return sum_words<std::uint8_t>(view.data, view.bytes());
  }
}

// Without overlaps and holes, the tensors' sizes add up to the size of the data.
void check_coverage(const SafetensorsFile& file, std::span<const std::uint8_t> input) {
  std::uint64_t expected = 0;
  std::memcpy(&expected, input.data(), sizeof expected);
  expected += sizeof expected;
  for (const std::string& name : file.names()) expected += file.tensor(name).bytes();
  require(expected == input.size(), "the tensors do not cover the data exactly");
}

void check_round_trip(const SafetensorsFile& file) {
  volatile std::uint64_t sum = 0;  // keeps the loads
  std::vector<TensorEntry> entries;
  for (const std::string& name : file.names()) {
    entries.push_back({name, file.tensor(name)});
    sum = sum + read_all(entries.back().view);
  }
  const auto again =
      SafetensorsFile::parse(serialize_safetensors(entries, file.metadata()), "again");
  require(again.metadata() == file.metadata(), "metadata changed by the round trip");
  require(again.names().size() == entries.size(), "number of tensors changed by the round trip");
  for (const TensorEntry& entry : entries) {
    const ConstTensorView view = again.tensor(entry.name);
    require(view.dtype == entry.view.dtype, "dtype changed by the round trip");
    require(view.shape == entry.view.shape, "shape changed by the round trip");
    require(std::memcmp(view.data, entry.view.data, view.bytes()) == 0,
            "data changed by the round trip");
  }
}

// Whether the input was a valid file.
bool read(std::span<const std::uint8_t> input) {
  try {
    const auto file = SafetensorsFile::parse(std::as_bytes(input), "fuzz");
    try {
      check_coverage(file, input);
      check_round_trip(file);
    } catch (const rode::Error& error) {
      require(false, error.what());  // what was read must be writable
    }
    return true;
  } catch (const rode::Error& error) {
    require(error.kind() == rode::ErrorKind::file, "an error of another kind than file");
    require(std::string_view(error.what()).starts_with("[safetensors] file 'fuzz': "),
            error.what());
    require(std::string_view(error.what()).size() < 1000, "the input floods the message");
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const bool is_file = read({data, size});
  std::vector<std::uint8_t> repaired(data, data + size);
  const std::string_view text(reinterpret_cast<const char*>(repaired.data()), size);
  const auto at = rode::find_checksum(text);
  if (is_file || !at || *at + rode::kChecksumDigits > size) return 0;
  const std::string digits = rode::checksum_of(std::as_bytes(std::span(repaired)), *at);
  std::memcpy(repaired.data() + *at, digits.data(), digits.size());
  read(repaired);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  const std::array<double, 6> values{1, -2, 3.5, 0, 1e300, -0.0};
  const auto entry = [&](const char* name, rode::Shape shape, rode::DType dtype) {
    return TensorEntry{name, ConstTensorView(values.data(), shape, dtype)};
  };
  using D = rode::DType;
  const std::vector<std::vector<TensorEntry>> contents{
      {},
      {entry("w", {2, 3}, D::f32)},
      {entry("state.w.momentum", {3, 2}, D::f64), entry("state.w.step", {1}, D::i64),
       entry("param.w", {3, 2}, D::bf16), entry("mask", {3}, D::boolean)},
      {entry("scalar", {}, D::u8), entry("empty", {0, 4}, D::f16),
       entry("r8", {1, 1, 1, 1, 1, 1, 1, 2}, D::i32)}};
  std::vector<std::string> seeds;
  for (const auto& entries : contents) {
    for (const auto& metadata :
         {std::map<std::string, std::string>{}, {{"format", "pt"}, {"k\n", "\"é\""}}}) {
      const auto bytes = serialize_safetensors(entries, metadata);
      seeds.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  // As another writer may lay it out: fields and tensors in any order, and misaligned data.
  const std::string json =
      R"({"b":{"data_offsets":[3,7],"shape":[1],"dtype":"F32"},)"
      R"("__metadata__":{},"a":{"dtype":"I8","shape":[3,1],"data_offsets":[0,3]}}  )";
  std::string foreign(sizeof(std::uint64_t), '\0');
  const std::uint64_t length = json.size();
  std::memcpy(foreign.data(), &length, sizeof length);
  seeds.push_back(foreign + json + "abcdefg");
  return seeds;
}
