// SPDX-License-Identifier: Apache-2.0
// fsync of folders, which some file systems and permissions do not allow.
#include "lab/train/durable.h"

#include <cerrno>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "core/file_io.h"

namespace rode::lab {

namespace fs = std::filesystem;

void sync_folder(const fs::path& folder) {
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // One that may be entered but not read cannot be synchronised: its owner's wish.
  if (fd.get() < 0 && (errno == EACCES || errno == EPERM)) return;
  // Some network file systems say EINVAL.
  if (fd.get() >= 0 && (::fsync(fd.get()) == 0 || errno == EINVAL)) return;
  throw file_error("train", folder.string(),
                   fmt::format("could not be made durable ({}); check the disk",
                               std::generic_category().message(errno)));
}

void create_folders(const fs::path& folder) {
  std::vector<fs::path> made;
  for (fs::path at = fs::absolute(folder); !fs::exists(at); at = at.parent_path()) {
    made.push_back(at);
  }
  fs::create_directories(folder);
  for (const fs::path& path : made) sync_folder(path.parent_path());
}

}  // namespace rode::lab
