# SPDX-License-Identifier: Apache-2.0
# The warnings that rode's own targets are compiled with; nothing of this reaches a consumer.

option(RODE_WERROR "Treat compiler warnings in rode's own targets as errors" OFF)

add_library(rode_warnings INTERFACE)
target_compile_options(
  rode_warnings
  INTERFACE
    -Wall
    -Wextra
    -Wconversion
    -Wshadow
    # clang counts sign changes under -Wconversion and g++ does not: one set for both.
    -Wno-sign-conversion
    $<$<BOOL:${RODE_WERROR}>:-Werror>
)

# Compiles `target` with the project's warnings. BUILD_INTERFACE keeps the
# helper out of the exported link interface of a static library.
function(rode_target_warnings target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:rode_warnings>)
endfunction()
