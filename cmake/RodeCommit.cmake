# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a source file that names the commit of the tree in ROOT; left alone where it says the same.
cmake_minimum_required(VERSION 3.25)

execute_process(
  COMMAND git -C "${ROOT}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET
  RESULT_VARIABLE failed
)
if(failed OR NOT commit MATCHES "^[0-9a-f]+(-dirty)?$")
  set(commit "unknown")
endif()
file(
  CONFIGURE
  OUTPUT "${OUT}"
  CONTENT
    "// Written by cmake/RodeCommit.cmake.
#include \"lab/train/environment.h\"

namespace rode::lab {

std::string_view source_commit() { return \"@commit@\"; }

}  // namespace rode::lab
"
  @ONLY
)
