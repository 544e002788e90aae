# SPDX-License-Identifier: Apache-2.0
# Compiles through ccache if it is installed and no other launcher was chosen.

find_program(RODE_CCACHE ccache DOC "ccache, used as compiler launcher")
mark_as_advanced(RODE_CCACHE)
if(RODE_CCACHE)
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${RODE_CCACHE}")
    endif()
  endforeach()
endif()
