// SPDX-License-Identifier: Apache-2.0
// Compressed files and archives, through libarchive where the build has it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace rode::lab {

// By the ending of the name: .xz, .gz, .zst or .bz2.
bool is_compressed(const std::filesystem::path& path);

// The contents of a compressed file, in pieces. Data that is not of the kind that the name's
// ending says is refused.
void decompress(const std::filesystem::path& path,
                const std::function<void(std::string_view)>& sink);

// Writes the named members of an archive (tar, zip, compressed or not), each to its own new
// path and nowhere else. Throws where one is missing.
void unpack(const std::filesystem::path& archive,
            const std::map<std::string, std::filesystem::path>& members);

}  // namespace rode::lab
