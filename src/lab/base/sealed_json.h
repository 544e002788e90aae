// SPDX-License-Identifier: Apache-2.0
// JSON that carries its checksum: the last member of an object, in a file or in a line of one.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace rode::lab {

inline constexpr const char* kChecksumMember = "checksum";

// The object as text with its checksum, in one line or indented; without a line end.
std::string sealed(nlohmann::ordered_json object, int indent = -1);

enum class Seal { right, absent, wrong };

// What became of it; the member is taken out of the object that `text` was parsed to. Text that is
// not an object has none.
Seal unseal(std::string_view text, nlohmann::ordered_json& parsed);

}  // namespace rode::lab
