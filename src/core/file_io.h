// SPDX-License-Identifier: Apache-2.0
// Files as read-only memory, replacement of a file in one step, durable folders, and the text of
// file errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <source_location>
#include <span>
#include <string>
#include <string_view>

#include "rode/error.h"

namespace rode {

// Text from a file, fit for one line of an error message: control characters escaped, and cut
// to about 100 bytes without splitting a UTF-8 sequence.
std::string printable(std::string_view text);

// "[operation] file 'source': what". `what` reads "subject and value; expectation; remedy".
Error file_error(std::string_view operation, std::string_view source, std::string_view what,
                 std::source_location where = std::source_location::current());

// A whole regular file, mapped read-only. Move-only.
class FileMapping {
 public:
  FileMapping() = default;
  FileMapping(const std::filesystem::path& path, std::string_view operation);
  FileMapping(FileMapping&& other) noexcept;
  FileMapping& operator=(FileMapping&& other) noexcept;
  ~FileMapping();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Owns a file descriptor. Neither copied nor moved: it lives in one place until closed.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();

  int get() const { return fd_; }
  void reset(int fd);
  bool sync();   // what was written is on the disk; false with errno set
  bool close();  // false with errno set if the file system reports a late write error

 private:
  int fd_;
};

// Makes the names in a folder outlive a power cut: a new one is lost until its folder is
// synchronised. Throws where the disk fails; a folder that may not be read, and a file system that
// cannot do it, are no errors.
void sync_folder(const std::filesystem::path& folder, std::string_view operation);

// The folder and those above it that are not there yet, each made durable.
void create_folders(const std::filesystem::path& folder, std::string_view operation);

// A file that appears under its name only when complete. If destroyed before commit() has renamed
// it, it removes its temporary file and leaves the file at `path` unchanged.
class AtomicFile {
 public:
  AtomicFile(const std::filesystem::path& path, std::string_view operation);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  // Overwrites bytes that were written before.
  void rewrite(std::uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(std::string_view action, int error_number) const;

  std::string operation_;
  std::string source_;     // the path as the caller wrote it
  std::string name_;       // the final name inside the directory
  std::string temporary_;  // empty if there is nothing to remove
  // Held open from the start: a directory that cannot be synced is noticed before anything is
  // written, and a change of the working directory in between does no harm.
  FileDescriptor directory_;
  FileDescriptor file_;
};

}  // namespace rode
