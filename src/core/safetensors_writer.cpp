// SPDX-License-Identifier: Apache-2.0
// Lays out named tensors as a safetensors file, in memory or atomically replacing a file.
#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "core/file_io.h"
#include "core/safetensors_format.h"
#include "rode/safetensors.h"

namespace rode {
namespace {

using namespace safetensors;

// Everything checked and decided before the first byte is written.
struct Layout {
  std::string header;                     // preceded by its length, padded
  std::vector<const TensorEntry*> order;  // order of the data
  std::vector<std::size_t> sizes;         // bytes, in the same order
  std::size_t total = 0;                  // bytes of header and data
  std::size_t digits_at = 0;              // of the checksum, zeros until the data is known
};

// Below this a thread costs more than the hash.
constexpr std::size_t kHashedBeside = std::size_t{1} << 20U;

[[noreturn]] void refuse(std::string_view source, std::string_view name, std::string_view what) {
  throw file_error(kOperation, source, fmt::format("tensor '{}': {}", printable(name), what));
}

// A JSON string; empty if the text is not UTF-8, which JSON cannot represent.
std::optional<std::string> quote(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// The checksum comes first, so that the first tag in the file is its own.
std::string metadata_object(const std::map<std::string, std::string>& metadata,
                            std::string_view source) {
  std::string out = fmt::format("\"{}\":\"{}\"", kChecksumKey, checksum_placeholder());
  for (const auto& [key, value] : metadata) {
    if (key == kChecksumKey) {
      throw file_error(kOperation, source,
                       fmt::format("metadata '{}': is made when the file is written; expected "
                                   "other keys; leave it out",
                                   key));
    }
    const auto quoted_key = quote(key);
    const auto quoted_value = quote(value);
    if (!quoted_key || !quoted_value) {
      throw file_error(kOperation, source,
                       fmt::format("metadata '{}': is not UTF-8; expected text; encode binary "
                                   "values, for example as base64",
                                   printable(key)));
    }
    out += fmt::format(",{}:{}", *quoted_key, *quoted_value);
  }
  return "{" + out + "}";
}

std::size_t checked_size(const TensorEntry& entry, std::string_view source) {
  const auto bytes = checked_bytes(entry.view.shape.dims(), entry.view.dtype);
  if (!bytes) {
    refuse(source, entry.name,
           fmt::format("shape {} of {} exceeds 63 bits; expected a tensor in memory; "
                       "correct the shape",
                       to_string(entry.view.shape), to_string(entry.view.dtype)));
  }
  if (*bytes != 0 && entry.view.data == nullptr) {
    refuse(source, entry.name,
           fmt::format("data is null for shape {}; expected {} bytes; pass the tensor's memory",
                       to_string(entry.view.shape), *bytes));
  }
  return *bytes;
}

std::vector<const TensorEntry*> ordered(std::span<const TensorEntry> entries,
                                        std::string_view source) {
  std::vector<const TensorEntry*> order;
  order.reserve(entries.size());
  for (const TensorEntry& entry : entries) order.push_back(&entry);

  std::ranges::sort(order, {}, &TensorEntry::name);
  const auto twin = std::ranges::adjacent_find(order, {}, &TensorEntry::name);
  if (twin != order.end()) {
    refuse(source, (*twin)->name, "is given twice; expected distinct names; rename one of them");
  }
  // Stable: equal element sizes stay in the order of names.
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [](const TensorEntry* e) { return size_of(e->view.dtype); });
  return order;
}

Layout plan(std::span<const TensorEntry> entries,
            const std::map<std::string, std::string>& metadata, std::string_view source) {
  Layout layout;
  layout.order = ordered(entries, source);
  std::string json = fmt::format("\"{}\":{}", kMetadataKey, metadata_object(metadata, source));
  std::size_t offset = 0;
  for (const TensorEntry* entry : layout.order) {
    const auto name = quote(entry->name);
    if (!name || entry->name.empty() || entry->name == kMetadataKey) {
      refuse(source, entry->name,
             fmt::format("cannot be a tensor's name; expected non-empty UTF-8 other than '{}'; "
                         "rename the tensor",
                         kMetadataKey));
    }
    const std::size_t size = checked_size(*entry, source);
    std::size_t end = 0;
    if (__builtin_add_overflow(offset, size, &end)) {
      refuse(source, entry->name, "ends beyond 64 bits; expected less data; use several files");
    }
    json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", *name,
                        to_string(entry->view.dtype), fmt::join(entry->view.shape.dims(), ","),
                        offset, end);
    layout.sizes.push_back(size);
    offset = end;
  }
  json = "{" + json + "}";
  static_assert(kLengthBytes % kAlignment == 0, "padding the JSON alone aligns the data");
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (json.size() > kMaxHeaderBytes) {
    throw file_error(kOperation, source,
                     fmt::format("header: needs {} bytes; expected at most {}; use several files",
                                 json.size(), kMaxHeaderBytes));
  }
  const std::uint64_t length = json.size();
  layout.header.resize(kLengthBytes);
  std::memcpy(layout.header.data(), &length, kLengthBytes);
  layout.header += json;
  layout.digits_at = layout.header.find(kChecksumTag) + kChecksumTag.size();
  if (__builtin_add_overflow(layout.header.size(), offset, &layout.total)) {
    throw file_error(kOperation, source,
                     "data: ends beyond 64 bits; expected less data; use several files");
  }
  return layout;
}

// Passes the file's bytes to `sink` in pieces, with zeros in place of the checksum's digits.
template <typename Sink>
void emit(const Layout& layout, Sink&& sink) {
  sink(std::as_bytes(std::span(layout.header)));
  for (std::size_t i = 0; i < layout.order.size(); ++i) {
    // A zero-element tensor may have no memory at all.
    if (layout.sizes[i] == 0) continue;
    sink(std::span(static_cast<const std::byte*>(layout.order[i]->view.data), layout.sizes[i]));
  }
}

// Computes the digits while the caller does other work: hashing is far faster than a disk, and adds
// no time to a save if a second core is free. If no thread can be started, they are computed when
// they are requested.
std::future<std::string> digits_of(const Layout& layout) {
  const auto policy = layout.total < kHashedBeside ? std::launch::deferred
                                                   : std::launch::async | std::launch::deferred;
  return std::async(policy, [&layout] {
    Checksum sum;
    emit(layout, [&](std::span<const std::byte> bytes) { sum.add(bytes); });
    return sum.digits();
  });
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorEntry> entries,
                       const std::map<std::string, std::string>& metadata) {
  const Layout layout = plan(entries, metadata, path.string());
  AtomicFile file(path, kOperation);
  auto hash = digits_of(layout);  // its destructor waits for the thread if writing fails
  emit(layout, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  const std::string digits = hash.get();
  file.rewrite(layout.digits_at, std::as_bytes(std::span(digits)));
  file.commit();
}

std::vector<std::byte> serialize_safetensors(std::span<const TensorEntry> entries,
                                             const std::map<std::string, std::string>& metadata) {
  const Layout layout = plan(entries, metadata, "(memory)");
  std::vector<std::byte> out;
  out.reserve(layout.total);
  auto hash = digits_of(layout);
  emit(layout, [&](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
  });
  const std::string digits = hash.get();
  std::memcpy(out.data() + layout.digits_at, digits.data(), digits.size());
  return out;
}

}  // namespace rode
