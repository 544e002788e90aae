# SPDX-License-Identifier: Apache-2.0
# RODE_SANITIZE instruments every target of this project: a half-instrumented program reports nonsense.

set(RODE_SANITIZE "" CACHE STRING "Sanitizers: empty, address (with undefined) or thread")
set_property(CACHE RODE_SANITIZE PROPERTY STRINGS "" address thread)

if(RODE_SANITIZE STREQUAL "address")
  # Undefined behaviour ends the program: with only a message, the test would pass.
  set(rode_sanitize_flags -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(RODE_SANITIZE STREQUAL "thread")
  set(rode_sanitize_flags -fsanitize=thread)
elseif(NOT RODE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "RODE_SANITIZE is '${RODE_SANITIZE}'; expected empty, address or thread")
endif()

if(RODE_SANITIZE)
  # Not the .cu files: their host side is launches, and nvcc does not know the flags.
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CXX>:${rode_sanitize_flags};-fno-omit-frame-pointer>"
  )
  add_link_options(${rode_sanitize_flags})
endif()

option(RODE_FUZZ "Build the fuzz targets on libFuzzer (clang only)" OFF)

if(RODE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(
      FATAL_ERROR
      "RODE_FUZZ needs clang, and the compiler is ${CMAKE_CXX_COMPILER_ID}; "
      "`make fuzz` finds one, or set CMAKE_CXX_COMPILER"
    )
  endif()
  # Coverage counters everywhere; only the fuzz targets link the driver (-fsanitize=fuzzer).
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
