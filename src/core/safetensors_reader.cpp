// SPDX-License-Identifier: Apache-2.0
// Opens safetensors files and refuses everything that is not a valid one.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/checksum.h"
#include "core/file_io.h"
#include "core/nearest.h"
#include "core/safetensors_format.h"
#include "core/safetensors_header.h"
#include "rode/error.h"
#include "rode/safetensors.h"

namespace rode {
namespace {

using namespace safetensors;

using RecordMap = decltype(Header::records);

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The length of the JSON, after the checks that make reading it safe.
std::size_t header_length(std::span<const std::byte> file, std::string_view source) {
  if (file.size() < kLengthBytes) {
    throw file_error(kOperation, source,
                     fmt::format("header: the file has {} bytes; expected at least {}; the file "
                                 "may be truncated: copy or save it again",
                                 file.size(), kLengthBytes));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    throw file_error(kOperation, source,
                     fmt::format("header: length {} exceeds the limit; expected at most {} bytes; "
                                 "check that this is a safetensors file",
                                 length, kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    throw file_error(kOperation, source,
                     fmt::format("header: length {} exceeds the file; expected at most {} bytes; "
                                 "the file may be truncated: copy or save it again",
                                 length, file.size() - kLengthBytes));
  }
  return length;
}

// Whether the file has a checksum; throws if it is wrong. Called before the rest of the header is
// read, because errors caused by the damage would only mislead.
bool verify_checksum(std::span<const std::byte> file, std::size_t header_bytes,
                     std::string_view source) {
  const auto at = find_checksum(as_text(file.first(header_bytes)));
  if (!at) return false;
  const std::string_view found = as_text(file).substr(*at, kChecksumDigits);
  const std::string expected = checksum_of(file, *at);
  if (found == expected) return true;
  throw file_error(kOperation, source,
                   fmt::format("checksum: header and data give {}; expected {}, as recorded in the "
                               "file; it was damaged, or changed by a program that kept metadata "
                               "'{}'; restore it from a copy, or save it again without that entry",
                               expected, printable(found), kChecksumKey));
}

// Records in the order of their data, after checking that they cover it exactly.
std::vector<RecordMap::const_pointer> in_data_order(const RecordMap& records,
                                                    std::uint64_t data_bytes,
                                                    std::string_view source) {
  std::vector<RecordMap::const_pointer> order;
  order.reserve(records.size());
  for (const auto& item : records) order.push_back(&item);
  // Also by end: a tensor without elements comes before the one that begins at the same place.
  std::ranges::stable_sort(order, {}, [](RecordMap::const_pointer item) {
    return std::pair(item->second.begin, item->second.end);
  });

  std::uint64_t covered = 0;
  std::string_view previous;
  for (const auto* item : order) {
    const auto& [name, record] = *item;
    if (record.begin < covered) {
      throw file_error(kOperation, source,
                       fmt::format("tensor '{}': begins at {} inside tensor '{}'; expected {}; "
                                   "write the file again with a safetensors library",
                                   printable(name), record.begin, printable(previous), covered));
    }
    if (record.begin > covered) {
      throw file_error(kOperation, source,
                       fmt::format("tensor '{}': begins at {} after a hole; expected {}; "
                                   "write the file again with a safetensors library",
                                   printable(name), record.begin, covered));
    }
    covered = record.end;
    previous = name;
  }
  if (covered != data_bytes) {
    throw file_error(kOperation, source,
                     fmt::format("data: {} bytes belong to no tensor; expected the data to end at "
                                 "{}; write the file again with a safetensors library",
                                 data_bytes - covered, covered));
  }
  return order;
}

// Only a hint in an error message: bounded, because the names may be many, long and hostile.
std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 4096;
  constexpr std::size_t kLongestName = 256;
  if (wanted.size() > kLongestName) return {};
  std::vector<std::string> candidates;
  for (const std::string& name : std::span(names).first(std::min(names.size(), kMostNames))) {
    if (name.size() <= kLongestName) candidates.push_back(name);
  }
  return nearest(wanted, candidates);
}

}  // namespace

struct SafetensorsFile::Contents {
  std::string source;
  FileMapping mapping;  // one of these two holds the file
  std::vector<std::byte> bytes;
  std::vector<std::unique_ptr<std::byte[]>> realigned;  // copies of misaligned tensors
  std::vector<std::string> names;
  std::map<std::string, ConstTensorView, std::less<>> views;
  std::map<std::string, std::string> metadata;
  bool has_checksum = false;

  void index(std::span<const std::byte> file);
  const void* aligned(std::span<const std::byte> tensor, DType dtype);
};

void SafetensorsFile::Contents::index(std::span<const std::byte> file) {
  const std::size_t length = header_length(file, source);
  const auto json = file.subspan(kLengthBytes, length);
  const auto data = file.subspan(kLengthBytes + length);
  has_checksum = verify_checksum(file, kLengthBytes + length, source);
  Header header = parse_header(as_text(json), data.size(), source);
  // It describes the bytes of this file, not what a caller may write into another.
  const auto entry = header.metadata.find(std::string(kChecksumKey));
  if (entry != header.metadata.end()) {
    if (!has_checksum) {
      throw file_error(
          kOperation, source,
          fmt::format("metadata '{}' is '{}'; expected '{}' and {} digits; the file "
                      "was damaged: restore it from a copy",
                      kChecksumKey, printable(entry->second), kChecksumTag, kChecksumDigits));
    }
    header.metadata.erase(entry);
  }
  for (const auto* item : in_data_order(header.records, data.size(), source)) {
    const auto& [name, record] = *item;
    const auto tensor = data.subspan(record.begin, record.end - record.begin);
    names.push_back(name);
    views.try_emplace(name, aligned(tensor, record.dtype), record.shape, record.dtype);
  }
  metadata = std::move(header.metadata);
}

// Other writers align the start of the data but may put floats after an odd number of bytes, and
// old ones do not align at all. Tensors do not overlap, so copies never exceed the file's size.
const void* SafetensorsFile::Contents::aligned(std::span<const std::byte> tensor, DType dtype) {
  alignas(std::max_align_t) static constexpr std::byte kNoElements{};
  if (tensor.empty()) return &kNoElements;
  if (reinterpret_cast<std::uintptr_t>(tensor.data()) % size_of(dtype) == 0) return tensor.data();
  auto& copy = realigned.emplace_back(std::make_unique_for_overwrite<std::byte[]>(tensor.size()));
  std::memcpy(copy.get(), tensor.data(), tensor.size());
  return copy.get();
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<Contents> contents)
    : contents_(std::move(contents)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  auto contents = std::make_unique<Contents>();
  contents->source = path.string();
  contents->mapping = FileMapping(path, kOperation);
  contents->index(contents->mapping.bytes());
  return SafetensorsFile(std::move(contents));
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string source_name) {
  auto contents = std::make_unique<Contents>();
  contents->source = std::move(source_name);
  contents->bytes.assign(bytes.begin(), bytes.end());
  contents->index(contents->bytes);
  return SafetensorsFile(std::move(contents));
}

const std::vector<std::string>& SafetensorsFile::names() const { return contents_->names; }

bool SafetensorsFile::contains(std::string_view name) const {
  return contents_->views.find(name) != contents_->views.end();
}

ConstTensorView SafetensorsFile::tensor(std::string_view name) const {
  const auto at = contents_->views.find(name);
  if (at != contents_->views.end()) return at->second;
  const std::string close = nearest_name(name, contents_->names);
  throw Error(ErrorKind::state_mismatch, kOperation,
              fmt::format("file '{}': tensor '{}': is not in the file; expected one of its {} "
                          "names{}; check the name and the file",
                          printable(contents_->source), printable(name), contents_->names.size(),
                          close.empty() ? "" : fmt::format(", nearest '{}'", printable(close))));
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return contents_->metadata;
}

bool SafetensorsFile::has_checksum() const { return contents_->has_checksum; }

std::string SafetensorsFile::checksum_note() const {
  if (has_checksum()) return {};
  return file_error(kOperation, contents_->source,
                    "has no checksum; damage to its values would not be noticed; files that rode "
                    "writes have one")
      .what();
}

}  // namespace rode
