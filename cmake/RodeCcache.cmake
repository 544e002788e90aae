# SPDX-License-Identifier: Apache-2.0
# Compiles through ccache if it is installed and no other launcher was chosen.
#
# Paths below the sources count relative to the build folder: the presets, and checkouts in other
# places, then share what they compile alike, also joined files, which lie in the build folder.

find_program(RODE_CCACHE ccache DOC "ccache, used as compiler launcher")
mark_as_advanced(RODE_CCACHE)
if(RODE_CCACHE)
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(
        CMAKE_${language}_COMPILER_LAUNCHER
        "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${RODE_CCACHE}"
      )
    endif()
  endforeach()
endif()
