// SPDX-License-Identifier: Apache-2.0
// Files: whole reads by mapping, whole writes by temporary name, sync and rename.
#include "core/file_io.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rode {
namespace {

std::string reason(int error_number) {
  return std::error_code(error_number, std::generic_category()).message();
}

std::string escaped(std::string_view text, std::size_t longest) {
  std::size_t cut = std::min(text.size(), longest);
  if (cut < text.size()) {
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) --cut;
  }
  std::string out;
  for (const char c : text.substr(0, cut)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20U || byte == 0x7FU) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (cut < text.size()) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

std::string_view remedy(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR: return "check the path and create the directory";
    case EACCES:
    case EPERM:
    case EROFS: return "check the permissions or choose another directory";
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "free space or choose another directory";
    default: return "check the path and the disk";
  }
}

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Some network file systems cannot sync a directory and return EINVAL. False with errno set.
bool sync_directory(int descriptor) {
  return retry_interrupted([&] { return ::fsync(descriptor); }) == 0 || errno == EINVAL;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 100;
  return escaped(text, kLongest);
}

Error file_error(std::string_view operation, std::string_view source, std::string_view what,
                 std::source_location where) {
  // Shown in full: paths differ at their end, and come from the user or the file system.
  constexpr std::size_t kLongestPath = 4096;
  return {ErrorKind::file, operation,
          fmt::format("file '{}': {}", escaped(source, kLongestPath), what), where};
}

// ---- FileDescriptor ---------------------------------------------------------------------------

FileDescriptor::~FileDescriptor() { close(); }

void FileDescriptor::reset(int fd) {
  close();
  fd_ = fd;
}

bool FileDescriptor::sync() {
  return retry_interrupted([&] { return ::fsync(fd_); }) == 0;
}

bool FileDescriptor::close() {
  const int fd = std::exchange(fd_, -1);
  // Linux has released the descriptor even after EINTR: closing again could hit another file.
  return fd < 0 || ::close(fd) == 0 || errno == EINTR;
}

// ---- FileMapping ------------------------------------------------------------------------------

FileMapping::FileMapping(const std::filesystem::path& path, std::string_view operation) {
  const auto fail = [&](std::string_view action, int error_number) {
    return file_error(operation, path.string(),
                      fmt::format("cannot be {} ({}); expected a readable regular file; {}", action,
                                  reason(error_number), remedy(error_number)));
  };
  // O_NONBLOCK: opening a FIFO must not wait for its other end.
  const FileDescriptor fd(
      retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (fd.get() < 0) throw fail("opened", errno);

  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) throw fail("examined", errno);
  if (!S_ISREG(info.st_mode)) {
    throw file_error(operation, path.string(),
                     "is not a regular file; expected a file that can be mapped; "
                     "copy its contents to a regular file");
  }
  if (info.st_size == 0) return;  // mmap refuses to map an empty file

  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) throw fail("mapped", errno);
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
}

FileMapping::FileMapping(FileMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileMapping::~FileMapping() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

// ---- Folders ----------------------------------------------------------------------------------

void sync_folder(const std::filesystem::path& folder, std::string_view operation) {
  const FileDescriptor fd(retry_interrupted(
      [&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  // One that may be entered but not read cannot be synchronised: its owner's wish.
  if (fd.get() < 0 && (errno == EACCES || errno == EPERM)) return;
  if (fd.get() >= 0 && sync_directory(fd.get())) return;
  throw file_error(operation, folder.string(),
                   fmt::format("cannot be synchronised ({}); check the disk", reason(errno)));
}

void create_folders(const std::filesystem::path& folder, std::string_view operation) {
  namespace fs = std::filesystem;
  std::vector<fs::path> made;
  for (fs::path at = fs::absolute(folder); !fs::exists(at); at = at.parent_path()) {
    made.push_back(at);
  }
  fs::create_directories(folder);
  for (const fs::path& path : made) sync_folder(path.parent_path(), operation);
}

// ---- AtomicFile -------------------------------------------------------------------------------

AtomicFile::AtomicFile(const std::filesystem::path& path, std::string_view operation)
    : operation_(operation), source_(path.string()) {
  std::filesystem::path target = path;
  std::error_code ignored;
  // Through a link, so that a "latest" link stays a link; a dangling one is replaced.
  if (std::filesystem::exists(path, ignored)) {
    if (auto real = std::filesystem::canonical(path, ignored); !ignored) target = std::move(real);
  }
  name_ = target.filename().string();
  const std::filesystem::path directory =
      target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");

  directory_.reset(retry_interrupted(
      [&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (directory_.get() < 0) fail("its directory cannot be opened", errno);

  // rename() would put a regular file in the place of a device such as /dev/null.
  struct stat old{};
  const bool replaces = ::fstatat(directory_.get(), name_.c_str(), &old, 0) == 0;
  if (name_.empty() || (replaces && !S_ISREG(old.st_mode))) {
    throw file_error(operation_, source_,
                     "does not name a regular file; expected a new name or a regular file to "
                     "replace; choose another path");
  }

  // An independent name: the final one plus a suffix might exceed the longest name allowed.
  constexpr int kAttempts = 100;
  const auto stamp = std::chrono::steady_clock::now().time_since_epoch().count();
  for (int attempt = 0; file_.get() < 0; ++attempt) {
    std::string candidate = fmt::format(".rode-{}-{:x}.tmp", ::getpid(), stamp + attempt);
    file_.reset(retry_interrupted([&] {
      return ::openat(directory_.get(), candidate.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                      0666);
    }));
    if (file_.get() >= 0) {
      temporary_ = std::move(candidate);
    } else if (errno != EEXIST || attempt == kAttempts) {
      fail("a temporary file next to it cannot be created", errno);
    }
  }
  // A replaced file keeps its permissions; if that is refused, the default ones are fine.
  if (replaces) std::ignore = ::fchmod(file_.get(), old.st_mode & 07777U);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlinkat(directory_.get(), temporary_.c_str(), 0);
}

void AtomicFile::fail(std::string_view action, int error_number) const {
  throw file_error(operation_, source_,
                   fmt::format("{} ({}); the file was not changed; {}", action,
                               reason(error_number), remedy(error_number)));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written =
        retry_interrupted([&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
    if (written < 0) fail("cannot be written", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::rewrite(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = retry_interrupted([&] {
      return ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    });
    if (written < 0) fail("cannot be written", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void AtomicFile::commit() {
  // Data first: a rename that reaches the disk before the data would leave an empty file.
  if (!file_.sync()) fail("cannot be written", errno);
  if (!file_.close()) fail("cannot be written", errno);
  if (::renameat(directory_.get(), temporary_.c_str(), directory_.get(), name_.c_str()) != 0) {
    fail("cannot be replaced", errno);
  }
  temporary_.clear();
  if (!sync_directory(directory_.get())) {
    throw file_error(operation_, source_,
                     fmt::format("its directory cannot be synchronised ({}); the new file is "
                                 "complete and in place but may not survive a power cut; "
                                 "check the disk and save again",
                                 reason(errno)));
  }
}

}  // namespace rode
