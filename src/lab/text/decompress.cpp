// SPDX-License-Identifier: Apache-2.0
// libarchive: compressed text, and single members of archives.
#include "lab/text/decompress.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include "core/file_io.h"

namespace rode::lab {
namespace {

constexpr std::size_t kBlock = 1U << 20U;

struct Format {
  std::string_view ending;
  std::string_view name;
  int filter;
};
constexpr std::array<Format, 4> kFormats = {{{".xz", "xz", ARCHIVE_FILTER_XZ},
                                             {".gz", "gzip", ARCHIVE_FILTER_GZIP},
                                             {".zst", "zstd", ARCHIVE_FILTER_ZSTD},
                                             {".bz2", "bzip2", ARCHIVE_FILTER_BZIP2}}};

const Format* format_of(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  const auto* const found =
      std::find_if(kFormats.begin(), kFormats.end(),
                   [&](const Format& format) { return format.ending == ending; });
  return found == kFormats.end() ? nullptr : found;
}

struct Free {
  void operator()(archive* handle) const { archive_read_free(handle); }
};

class Reader {
 public:
  Reader(const std::filesystem::path& path, std::string_view operation, bool raw)
      : path_(path), operation_(operation), handle_(archive_read_new()) {
    if (!handle_) throw std::bad_alloc();
    // Not filter_all, some of which start other programs.
    for (const Format& format : kFormats) {
      archive_read_support_filter_by_code(handle_.get(), format.filter);
    }
    if (raw) {
      archive_read_support_format_raw(handle_.get());
      archive_read_support_format_empty(handle_.get());  // compressed, of no bytes
    } else {
      archive_read_support_format_tar(handle_.get());
      archive_read_support_format_zip(handle_.get());
    }
    // A mapping first: its message for a missing file is the same everywhere.
    const FileMapping readable(path, operation);
    if (archive_read_open_filename(handle_.get(), path.c_str(), kBlock) != ARCHIVE_OK) fail();
  }

  // The next member's name; nullptr after the last.
  const char* next() {
    archive_entry* entry = nullptr;
    const int status = archive_read_next_header(handle_.get(), &entry);
    if (status == ARCHIVE_EOF) return nullptr;
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) fail();
    const char* name = archive_entry_pathname(entry);
    return name == nullptr ? "" : name;
  }

  // What the outermost layer of the file is; ARCHIVE_FILTER_NONE where it is not compressed.
  int outer_filter() const { return archive_filter_code(handle_.get(), 0); }

  // The current member's contents.
  void read(const std::function<void(std::string_view)>& sink) {
    std::vector<char> block(kBlock);
    for (;;) {
      const la_ssize_t count = archive_read_data(handle_.get(), block.data(), block.size());
      if (count < 0) fail();
      if (count == 0) return;
      sink({block.data(), static_cast<std::size_t>(count)});
    }
  }

 private:
  [[noreturn]] void fail() const {
    const char* reason = archive_error_string(handle_.get());
    throw file_error(operation_, path_.string(),
                     fmt::format("cannot be unpacked ({}); expected a whole compressed file; "
                                 "download it again",
                                 reason == nullptr ? "unknown reason" : reason));
  }

  std::filesystem::path path_;
  std::string operation_;
  std::unique_ptr<archive, Free> handle_;
};

}  // namespace

bool is_compressed(const std::filesystem::path& path) { return format_of(path) != nullptr; }

void decompress(const std::filesystem::path& path,
                const std::function<void(std::string_view)>& sink) {
  Reader reader(path, "read text", true);
  const Format* format = format_of(path);
  if (format != nullptr && reader.outer_filter() != format->filter) {
    throw file_error("read text", path.string(),
                     fmt::format("is not {0} data, although its name says so; expected a file made "
                                 "by {0}; download it again, or rename it",
                                 format->name));
  }
  if (reader.next() != nullptr) reader.read(sink);
}

void unpack(const std::filesystem::path& archive,
            const std::map<std::string, std::filesystem::path>& members) {
  Reader reader(archive, "unpack", false);
  std::size_t found = 0;
  while (const char* name = reader.next()) {
    const auto member = members.find(name);
    if (member == members.end()) continue;
    AtomicFile file(member->second, "unpack");
    reader.read([&](std::string_view data) { file.write(std::as_bytes(std::span(data))); });
    file.commit();
    ++found;
  }
  if (found != members.size()) {
    throw file_error("unpack", archive.string(),
                     fmt::format("holds {} of the {} expected members, '{}' the first of them; "
                                 "download it again or correct the manifest",
                                 found, members.size(), printable(members.begin()->first)));
  }
}

}  // namespace rode::lab
