// SPDX-License-Identifier: Apache-2.0
// Reads and writes safetensors files: a JSON header followed by named tensors.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rode/tensor_view.h"

namespace rode {

// One tensor to be written; the memory is borrowed.
struct TensorEntry {
  std::string name;
  ConstTensorView view;
};

// A file that is checked completely when it is opened. A file from any source is refused (Error,
// kind file) unless header, shapes and names are valid and the tensors cover the data exactly: in
// range, without overlaps and without holes. Values are not examined, but a file with a checksum,
// which this library always writes, is refused unless header and data are as written (docs/files.md
// has the format). This reads the file once from beginning to end.
//
// Views point into the file's mapping and live as long as this object, even if it is moved.
// Each is aligned for its dtype. The writer of this library replaces files by renaming, so a
// mapped file may be overwritten by write_safetensors; truncating it in place by other means
// makes later reads fault.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);
  // Copies the bytes; `source_name` stands for the path in error messages.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string source_name);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::vector<std::string>& names() const;  // in the order of the data
  bool contains(std::string_view name) const;
  // Throws Error (kind state_mismatch) with the nearest name if there is no such tensor.
  ConstTensorView tensor(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const;  // without the checksum
  // False for files of other writers: damage to their values is not detected.
  bool has_checksum() const;
  // One line to show when such a file is loaded; empty if there is a checksum.
  std::string checksum_note() const;

 private:
  struct Contents;
  explicit SafetensorsFile(std::unique_ptr<Contents> contents);
  std::unique_ptr<Contents> contents_;
};

// Writes a temporary file in the same directory, syncs it and renames it to `path`. A failure
// before the rename removes the temporary file and leaves an existing file unchanged. If the last
// step, syncing the rename itself, fails, the error says that the new file is in place. A symbolic
// link is followed; a path that is not a regular file is refused.
//
// The bytes depend only on the arguments, not on the order of `entries`: larger elements come
// first, then names in byte order, so that every tensor is aligned for its dtype. The metadata gets
// the entry "rode.checksum", which a caller cannot set.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorEntry> entries,
                       const std::map<std::string, std::string>& metadata = {});

// The same bytes in memory.
std::vector<std::byte> serialize_safetensors(
    std::span<const TensorEntry> entries, const std::map<std::string, std::string>& metadata = {});

}  // namespace rode
