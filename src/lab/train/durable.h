// SPDX-License-Identifier: Apache-2.0
// Folders whose entries outlive the machine: a new name is lost with the power until its folder is
// synchronised.
#pragma once

#include <filesystem>

namespace rode::lab {

// Throws rode::Error where the disk fails; a file system that cannot do it is no error.
void sync_folder(const std::filesystem::path& folder);

// The folder and those above it that are not there yet, each made durable.
void create_folders(const std::filesystem::path& folder);

}  // namespace rode::lab
