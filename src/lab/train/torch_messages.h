// SPDX-License-Identifier: Apache-2.0
// What Torch says, in this project's words: warnings as notes, errors as rode::Error.
#pragma once

#include <functional>
#include <new>
#include <set>
#include <string>

#include <c10/util/Exception.h>

#include "rode/error.h"

namespace rode::lab {

// Hands each warning on once, as one line without its place in Torch's source.
class WarningNotes : public c10::WarningHandler {
 public:
  explicit WarningNotes(std::function<void(const std::string&)> note) : note_(std::move(note)) {}
  void process(const c10::Warning& warning) override;

 private:
  std::function<void(const std::string&)> note_;
  std::set<std::string> told_;
};

Error error_of_torch(const c10::Error& error);
Error error_without_memory(const std::string& asked);

// Runs `work` on this thread: its warnings go to `notes`, and what it throws is a rode::Error.
template <class Work>
auto with_torch_messages(WarningNotes& notes, Work&& work) {
  const c10::WarningUtils::WarningHandlerGuard guard(&notes);
  try {
    return work();
  } catch (const c10::Error& error) {
    throw error_of_torch(error);
  } catch (const std::bad_alloc&) {
    throw error_without_memory({});
  }
}

}  // namespace rode::lab
