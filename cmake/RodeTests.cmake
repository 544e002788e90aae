# SPDX-License-Identifier: Apache-2.0
# Registers GoogleTest programs with CTest: each test separately, or each program as a whole.
#
# Separately is right for work on one test (`ctest -R NAME`). As a whole is right for running
# everything: over a thousand processes, most of which load LibTorch or the sanitizers' runtime for
# milliseconds of work, take longer than the tests themselves.
include(GoogleTest)

option(RODE_TEST_WHOLE_PROGRAMS "CTest runs each test program once, instead of each test" OFF)

# Exit status of a program that skipped every test: tests/support/run_all_tests.cpp.
set(rode_skipped_status 77)

# rode_register_tests(PROGRAM LABEL [PREFIX text] [FILTER pattern] [SHARDS count] [ARGUMENTS ...]
#                     [ENVIRONMENT NAME=value ...])
#   PREFIX: prepended to the names of its tests. FILTER: GoogleTest filter of the tests to run.
#   SHARDS: how many processes share the tests of a slow program, if programs run as a whole.
function(rode_register_tests program label)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "PREFIX;FILTER;SHARDS" "ARGUMENTS;ENVIRONMENT")
  if(NOT RODE_TEST_WHOLE_PROGRAMS)
    set(properties LABELS ${label})
    if(arg_ENVIRONMENT)
      list(APPEND properties ENVIRONMENT "${arg_ENVIRONMENT}")
    endif()
    gtest_discover_tests(
      ${program}
      EXTRA_ARGS ${arg_ARGUMENTS}
      TEST_PREFIX "${arg_PREFIX}"
      TEST_FILTER "${arg_FILTER}"
      PROPERTIES ${properties}
      DISCOVERY_TIMEOUT 120
    )
    return()
  endif()
  if(arg_FILTER)
    list(APPEND arg_ARGUMENTS "--gtest_filter=${arg_FILTER}")
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(name ${program})
    set(environment ${arg_ENVIRONMENT})
    if(arg_SHARDS GREATER 1)
      string(APPEND name ".${shard}")
      list(APPEND environment GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${shard})
    endif()
    # CTest cannot see the tests inside the program: tools/summary.py counts them from its report.
    list(APPEND environment "GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/gtest/${name}.xml")
    add_test(NAME ${name} COMMAND ${program} ${arg_ARGUMENTS})
    set_tests_properties(
      ${name} PROPERTIES LABELS ${label} SKIP_RETURN_CODE ${rode_skipped_status}
                         ENVIRONMENT "${environment}"
    )
  endforeach()
endfunction()

# rode_register_gpu_test(NAME COMMAND...): a program run as a whole, with exclusive use of the GPU:
# opening the device costs more than most of the tests.
function(rode_register_gpu_test name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(
    ${name} PROPERTIES LABELS gpu SKIP_RETURN_CODE ${rode_skipped_status} TIMEOUT 1200
  )
endfunction()
