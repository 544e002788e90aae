// SPDX-License-Identifier: Apache-2.0
// The same function in builds without libcurl: an error that names the remedy.
#include <fmt/format.h>

#include "lab/fetch/dataset.h"
#include "rode/error.h"

namespace rode::lab {

void download(const std::string& url, const std::filesystem::path& /*part*/,
              const std::function<void(std::uint64_t, std::uint64_t)>& /*progress*/) {
  throw Error(ErrorKind::unsupported, "download",
              fmt::format("'{}' cannot be fetched: this build has no libcurl; fetch the file by "
                          "other means, or install the Debian package libcurl4-openssl-dev and "
                          "build again",
                          url));
}

}  // namespace rode::lab
