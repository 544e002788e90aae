// SPDX-License-Identifier: Apache-2.0
// What a run is made with: the source's commit, versions, the chip. Decides nothing of the run.
#pragma once

#include <string_view>

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

namespace rode::lab {

// "51f8d9b4a1c2", with "-dirty" where files were changed; "unknown" outside of a git checkout. In
// the file that cmake/RodeCommit.cmake writes.
std::string_view source_commit();

nlohmann::ordered_json describe_environment(c10::Device device);

}  // namespace rode::lab
