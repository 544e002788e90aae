// SPDX-License-Identifier: Apache-2.0
// Torch's messages without file names, line numbers and stack traces.
#include "lab/train/torch_messages.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace rode::lab {
namespace {

std::string on_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// Without "[enforce fail at FILE:LINE] CONDITION. ".
std::string_view without_place(std::string_view text) {
  if (!text.starts_with("[enforce fail")) return text;
  const std::size_t condition = text.find("] ");
  const std::size_t message =
      condition == std::string_view::npos ? condition : text.find(". ", condition);
  return message == std::string_view::npos ? text : text.substr(message + 2);
}

// "4096 bytes" of "you tried to allocate 4096 bytes. Error code 12"; "2.00 GiB" of the GPU's.
std::string asked_for(std::string_view text) {
  constexpr std::string_view kBefore = "ried to allocate ";
  std::size_t begin = text.find(kBefore);
  if (begin == std::string_view::npos) return {};
  begin += kBefore.size();
  const std::size_t unit = text.find(' ', begin);
  if (unit == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_first_of(". ", unit + 1) - begin));
}

}  // namespace

void WarningNotes::process(const c10::Warning& warning) {
  const std::string text = on_one_line(warning.msg());
  if (told_.insert(text).second) note_("Torch warns: " + text);
}

Error error_without_memory(const std::string& asked) {
  return {ErrorKind::unsupported, "train",
          "out of memory" + (asked.empty() ? asked : ": " + asked + " were requested at once") +
              "; in the task, lower batch or raise accumulate, set checkpoint_activations = true, "
              "or make the model smaller; saved checkpoints are kept"};
}

Error error_of_torch(const c10::Error& error) {
  const std::string_view text = error.msg();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      text.find("can't allocate memory") != std::string_view::npos ||
      text.find("not enough memory") != std::string_view::npos) {
    return error_without_memory(asked_for(text));
  }
  // The first line is the message; what follows it is advice for programs in Python.
  const std::string first = on_one_line(without_place(text.substr(0, text.find('\n'))));
  return {ErrorKind::unsupported, "train",
          "Torch returned an error: " + first +
              "; check the sizes in the task and the device; what was saved is kept: --resume "
              "continues from there"};
}

}  // namespace rode::lab
