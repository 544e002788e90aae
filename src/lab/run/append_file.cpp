// SPDX-License-Identifier: Apache-2.0
// Appends with plain system calls: short writes are continued, errors carry the system's text.
#include "lab/run/append_file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rode::lab {

AppendFile::AppendFile(const std::filesystem::path& path, std::uint64_t keep)
    : source_(path.string()) {
  // No O_APPEND: after a failed write the half line is cut off again, and writing continues there.
  const int create = keep == 0 ? O_CREAT : 0;
  file_.reset(::open(path.c_str(), O_WRONLY | create | O_CLOEXEC, 0644));
  if (file_.get() < 0) fail("could not be opened", errno);
  struct stat status = {};
  if (::fstat(file_.get(), &status) != 0) fail("could not be read", errno);
  if (static_cast<std::uint64_t>(status.st_size) < keep) {
    throw file_error("log", source_,
                     fmt::format("has {} bytes; the checkpoint was saved when it had {}; restore "
                                 "the file, or start a new run in another folder",
                                 status.st_size, keep));
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(keep)) != 0)
    fail("could not be truncated", errno);
  size_ = keep;
}

void AppendFile::append(std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(size_ + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int error_number = errno;
      // Best effort: a reader should find whole lines.
      [[maybe_unused]] const int cut = ::ftruncate(file_.get(), static_cast<off_t>(size_));
      fail("could not be written", error_number);
    }
    done += static_cast<std::size_t>(wrote);
  }
  size_ += bytes.size();
}

void AppendFile::sync() {
  if (!file_.sync()) fail("could not be synced to disk", errno);
}

void AppendFile::fail(std::string_view action, int error_number) const {
  const bool full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  throw file_error("log", source_,
                   fmt::format("{}: {}{}", action, std::generic_category().message(error_number),
                               full ? "; free some space and continue with --resume" : ""));
}

}  // namespace rode::lab
