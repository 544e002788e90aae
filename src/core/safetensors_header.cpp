// SPDX-License-Identifier: Apache-2.0
// Parses the JSON header of a safetensors file event by event, so that hostile input builds
// nothing.
#include "core/safetensors_header.h"

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.h"
#include "core/safetensors_format.h"

namespace rode::safetensors {
namespace {

constexpr std::string_view kKnownDTypes =
    "F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8 or BOOL";
constexpr std::string_view kWriteAgain = "write the file again with a safetensors library";

// Receives the JSON as events. The grammar has a fixed depth, so the place alone determines what
// may come next: nesting cannot grow, and no tree of hostile size is ever built.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::string_view source, std::uint64_t data_bytes)
      : source_(source), data_bytes_(data_bytes) {}

  Header take() { return std::move(header_); }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_float(double, const std::string& text) override { unexpected(printable(text)); }
  bool number_integer(std::int64_t value) override { unexpected(fmt::to_string(value)); }
  bool binary(nlohmann::json::binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::shape_extents) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(fmt::format("extent {} exceeds 63 bits; expected a size in elements", value),
             kWriteAgain);
      }
      if (extents_.size() == static_cast<std::size_t>(kMaxRank)) {
        fail(fmt::format("rank is more than {0}; expected rank 0 to {0}", kMaxRank),
             "merge dimensions before saving");
      }
      extents_.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offset_pair) {
      if (offsets_.size() == 2) fail_offset_count("more than 2");
      offsets_.push_back(value);
    } else {
      unexpected(fmt::to_string(value));
    }
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::dtype) {
      const auto dtype = dtype_from_string(value);
      if (!dtype) {
        fail(fmt::format("dtype '{}' is unknown; expected {}", printable(value), kKnownDTypes),
             "convert the tensor before saving");
      }
      record_->dtype = *dtype;
      place_ = Place::fields;
    } else if (place_ == Place::metadata_value) {
      *metadata_value_ = std::move(value);
      place_ = Place::metadata_entries;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::root: place_ = Place::tensors; break;
      case Place::tensor: place_ = Place::fields; break;
      case Place::metadata: place_ = Place::metadata_entries; break;
      default: unexpected("an object");
    }
    return true;
  }

  bool key(std::string& name) override {
    switch (place_) {
      case Place::tensors: begin_entry(name); break;
      case Place::fields: begin_field(name); break;
      default: {  // metadata_entries: keys occur in these three objects only
        const auto [at, is_new] = header_.metadata.try_emplace(std::move(name));
        subject_ = fmt::format("metadata '{}'", printable(at->first));
        if (!is_new) fail("is given twice; expected distinct keys", kWriteAgain);
        metadata_value_ = &at->second;
        place_ = Place::metadata_value;
      }
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::fields) end_tensor();
    place_ = place_ == Place::tensors ? Place::done : Place::tensors;
    return true;
  }

  bool start_array(std::size_t) override {
    switch (place_) {
      case Place::shape: place_ = Place::shape_extents; break;
      case Place::offsets: place_ = Place::offset_pair; break;
      default: unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offset_pair && offsets_.size() != 2) {
      fail_offset_count(fmt::to_string(offsets_.size()));
    }
    place_ = Place::fields;
    return true;
  }

  // The parser's own message repeats the input; only the position helps.
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    subject_ = "header";
    fail(fmt::format("is not JSON at byte {}; expected one JSON object in UTF-8",
                     position + kLengthBytes),
         kWriteAgain);
  }

 private:
  enum class Place {
    root,
    tensors,
    tensor,
    fields,
    dtype,
    shape,
    shape_extents,
    offsets,
    offset_pair,
    metadata,
    metadata_entries,
    metadata_value,
    done,
  };

  [[noreturn]] void fail(std::string_view what, std::string_view remedy) const {
    throw file_error(kOperation, source_, fmt::format("{}: {}; {}", subject_, what, remedy));
  }

  [[noreturn]] void fail_offset_count(std::string_view count) const {
    fail(fmt::format("data_offsets has {} numbers; expected [begin, end]", count), kWriteAgain);
  }

  [[noreturn]] void unexpected(std::string_view found) const {
    const auto expected = [&]() -> std::string_view {
      switch (place_) {
        case Place::tensor: return "an object with dtype, shape and data_offsets";
        case Place::dtype: return "a string as dtype";
        case Place::shape: return "an array as shape";
        case Place::shape_extents: return "extents that are integers of 0 or more";
        case Place::offsets: return "an array as data_offsets";
        case Place::offset_pair: return "offsets that are integers of 0 or more";
        case Place::metadata: return "an object of strings";
        case Place::metadata_value: return "a string as value";
        default: return "one object of tensors";
      }
    }();
    fail(fmt::format("has {}; expected {}", found, expected), kWriteAgain);
  }

  void begin_entry(std::string& name) {
    if (name == kMetadataKey) {
      subject_ = "metadata";
      if (has_metadata_) fail("is given twice; expected it once", kWriteAgain);
      has_metadata_ = true;
      place_ = Place::metadata;
      return;
    }
    subject_ = fmt::format("tensor '{}'", printable(name));
    if (name.empty()) fail("has an empty name; expected a name", kWriteAgain);
    const auto [at, is_new] = header_.records.try_emplace(std::move(name));
    if (!is_new) fail("is given twice; expected distinct names", kWriteAgain);
    record_ = &at->second;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    extents_.clear();
    offsets_.clear();
    place_ = Place::tensor;
  }

  void begin_field(const std::string& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      seen = &has_dtype_;
      place_ = Place::dtype;
    } else if (name == "shape") {
      seen = &has_shape_;
      place_ = Place::shape;
    } else if (name == "data_offsets") {
      seen = &has_offsets_;
      place_ = Place::offsets;
    } else {
      fail(fmt::format("has the field '{}'; expected only dtype, shape and data_offsets",
                       printable(name)),
           kWriteAgain);
    }
    if (*seen) fail(fmt::format("has {} twice; expected it once", name), kWriteAgain);
    *seen = true;
  }

  // Checked here and not field by field: the fields may come in any order.
  void end_tensor() {
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      fail(fmt::format("has no {}; expected dtype, shape and data_offsets",
                       !has_dtype_ ? "dtype" : (!has_shape_ ? "shape" : "data_offsets")),
           kWriteAgain);
    }
    record_->shape = Shape(std::span<const std::int64_t>(extents_));
    record_->begin = offsets_[0];
    record_->end = offsets_[1];
    if (record_->begin > record_->end) {
      fail(fmt::format("data_offsets [{}, {}] are reversed; expected begin <= end", record_->begin,
                       record_->end),
           kWriteAgain);
    }
    if (record_->end > data_bytes_) {
      fail(fmt::format("data_offsets [{}, {}] exceed the data; expected at most {} bytes",
                       record_->begin, record_->end, data_bytes_),
           "the file may be truncated: copy or save it again");
    }
    const auto bytes = checked_bytes(extents_, record_->dtype);
    const std::string form =
        fmt::format("shape {} of {}", to_string(record_->shape), to_string(record_->dtype));
    if (!bytes) fail(form + " exceeds 63 bits; expected a smaller shape", kWriteAgain);
    if (*bytes != record_->end - record_->begin) {
      fail(fmt::format("data_offsets [{}, {}] hold {} bytes; expected {} for {}", record_->begin,
                       record_->end, record_->end - record_->begin, *bytes, form),
           kWriteAgain);
    }
  }

  std::string source_;
  std::uint64_t data_bytes_;
  Header header_;
  Place place_ = Place::root;
  std::string subject_ = "header";
  Record* record_ = nullptr;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<std::int64_t> extents_;
  std::vector<std::uint64_t> offsets_;
  std::string* metadata_value_ = nullptr;
};

}  // namespace

Header parse_header(std::string_view json, std::uint64_t data_bytes, std::string_view source) {
  const auto refuse = [&](std::string_view what) {
    return file_error(kOperation, source, fmt::format("header: {}; {}", what, kWriteAgain));
  };
  if (!json.starts_with('{')) {
    throw refuse("does not begin with '{'; expected a JSON object with nothing before it");
  }
  // The JSON parser treats a NUL as the end of its input and would accept anything after it.
  if (json.find('\0') != std::string_view::npos) {
    throw refuse("has a NUL byte; expected a JSON object padded with spaces");
  }
  HeaderReader reader(source, data_bytes);
  // The handler throws on every error; false would be a bug in the parser.
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    throw refuse("is not JSON; expected one JSON object in UTF-8");
  }
  return reader.take();
}

}  // namespace rode::safetensors
