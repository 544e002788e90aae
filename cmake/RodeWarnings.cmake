# SPDX-License-Identifier: Apache-2.0
# The warnings for rode's own targets; none of this reaches a consumer.

option(RODE_WERROR "Treat compiler warnings in rode's own targets as errors" OFF)

# clang includes sign changes in -Wconversion and g++ does not: this gives one set for both.
set(rode_warning_flags -Wall -Wextra -Wconversion -Wshadow -Wno-sign-conversion)
list(JOIN rode_warning_flags "," rode_host_warning_flags)

add_library(rode_warnings INTERFACE)
# nvcc passes them to the host compiler; its own warnings are errors if those are.
target_compile_options(
  rode_warnings
  INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${rode_warning_flags}>"
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${RODE_WERROR}>>:-Werror>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${rode_host_warning_flags}>"
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${RODE_WERROR}>>:-Xcompiler=-Werror;-Werror=all-warnings>"
)
unset(rode_warning_flags)
unset(rode_host_warning_flags)

# Compiles `target` with the project's warnings. BUILD_INTERFACE keeps the
# helper out of the exported link interface of a static library.
function(rode_target_warnings target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:rode_warnings>)
endfunction()
