# SPDX-License-Identifier: Apache-2.0
# Compiles through ccache where it is installed and no other launcher was chosen.

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(RODE_CCACHE ccache DOC "ccache, used as compiler launcher")
  mark_as_advanced(RODE_CCACHE)
  if(RODE_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${RODE_CCACHE}")
  endif()
endif()
