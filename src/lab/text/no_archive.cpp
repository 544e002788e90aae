// SPDX-License-Identifier: Apache-2.0
// The same functions in builds without libarchive: an error that names the remedy.
#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/text/decompress.h"

namespace rode::lab {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view operation) {
  throw Error(ErrorKind::unsupported, operation,
              fmt::format("file '{}' is compressed and this build has no libarchive; decompress it "
                          "first, or install the Debian package libarchive-dev and build again",
                          printable(path.string())));
}

}  // namespace

bool is_compressed(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  return ending == ".xz" || ending == ".gz" || ending == ".zst" || ending == ".bz2";
}

void decompress(const std::filesystem::path& path,
                const std::function<void(std::string_view)>& /*sink*/) {
  refuse(path, "read text");
}

void unpack(const std::filesystem::path& archive,
            const std::map<std::string, std::filesystem::path>& /*members*/) {
  refuse(archive, "unpack");
}

}  // namespace rode::lab
