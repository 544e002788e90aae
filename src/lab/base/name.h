// SPDX-License-Identifier: Apache-2.0
// What may be the name of a task, an optimizer of a task, a dataset or a file of one.
#pragma once

#include <string_view>

namespace rode::lab {

// Names become folders and files, and come from files of others: none may lead out of its folder,
// hide a file or look like a flag.
inline constexpr std::string_view kNameRule =
    "a name of 1 to 100 letters (a-z, A-Z), digits, '.', '_', '-' or '+' that begins with a "
    "letter, "
    "a digit or '_'";

bool is_name(std::string_view text);

// Throws ErrorKind::invalid_argument where `text` is none; `what` says whose name it is: "task".
void require_name(std::string_view text, std::string_view operation, std::string_view what);

}  // namespace rode::lab
