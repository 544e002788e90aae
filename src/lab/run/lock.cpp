// SPDX-License-Identifier: Apache-2.0
// flock on a file that is never replaced or removed: run.json, which is, would not do.
#include "lab/run/lock.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

namespace rode::lab {

RunLock::RunLock(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / ".lock";
  // For writing: network file systems lock nothing else exclusively.
  file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  const auto reason = [] { return std::generic_category().message(errno); };
  if (file_.get() < 0) {
    throw file_error("train", path.string(),
                     fmt::format("could not be opened ({}); expected a folder that can be written; "
                                 "check the permissions or choose another --out",
                                 reason()));
  }
  while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
    if (errno != EWOULDBLOCK) {
      throw file_error("train", path.string(), fmt::format("could not be locked ({})", reason()));
    }
    throw Error(ErrorKind::file, "train",
                fmt::format("folder '{}': another process trains there; expected one process per "
                            "folder; wait until it ends, stop it, or choose another --out",
                            printable(folder.string())));
  }
  held_ = true;
}

}  // namespace rode::lab
