# SPDX-License-Identifier: Apache-2.0
# Finds OpenBLAS with its own cblas.h, the OpenMP build first; defines RodeBLAS::RodeBLAS.
#
# Debian installs each build in its own directory and lets "alternatives" pick the one that the
# plain names refer to. Searching in the directory ensures that the header, the library and (through
# its run path) the loaded file come from one build.
# The serial build is refused: it is not thread-safe. The pthread build is
# accepted but runs a thread pool next to the engine's.
#
# Input:  RodeBLAS_INCLUDE_DIR, RodeBLAS_LIBRARY (cache; set them to override)
# Output: RodeBLAS_FOUND, target RodeBLAS::RodeBLAS

include(FindPackageHandleStandardArgs)

find_path(
  RodeBLAS_INCLUDE_DIR
  NAMES cblas.h
  PATH_SUFFIXES openblas-openmp openblas openblas-pthread
  DOC "Directory of OpenBLAS's cblas.h"
)
find_library(
  RodeBLAS_LIBRARY
  NAMES openblas
  PATH_SUFFIXES openblas-openmp openblas openblas-pthread
  DOC "OpenBLAS library"
)
mark_as_advanced(RodeBLAS_INCLUDE_DIR RodeBLAS_LIBRARY)

set(rode_blas_reason "install the Debian package libopenblas-openmp-dev")
set(rode_blas_usable FALSE)
if(RodeBLAS_INCLUDE_DIR AND RodeBLAS_LIBRARY)
  # The engine sets OpenBLAS's thread count, which other versions of cblas.h do not declare.
  file(STRINGS "${RodeBLAS_INCLUDE_DIR}/cblas.h" rode_blas_declaration
       REGEX "openblas_set_num_threads" LIMIT_COUNT 1)
  file(REAL_PATH "${RodeBLAS_LIBRARY}" rode_blas_real_path)
  if(rode_blas_real_path MATCHES "openblas-serial")
    string(PREPEND rode_blas_reason "${RodeBLAS_LIBRARY} is the serial build, which is not thread-safe: ")
  elseif(NOT rode_blas_declaration)
    string(PREPEND rode_blas_reason "${RodeBLAS_INCLUDE_DIR}/cblas.h is not that of OpenBLAS: ")
  else()
    set(rode_blas_usable TRUE)
  endif()
endif()

find_package_handle_standard_args(
  RodeBLAS
  REQUIRED_VARS RodeBLAS_LIBRARY RodeBLAS_INCLUDE_DIR rode_blas_usable
  REASON_FAILURE_MESSAGE "${rode_blas_reason}"
)

if(RodeBLAS_FOUND AND NOT TARGET RodeBLAS::RodeBLAS)
  add_library(RodeBLAS::RodeBLAS UNKNOWN IMPORTED)
  set_target_properties(
    RodeBLAS::RodeBLAS
    PROPERTIES
      IMPORTED_LOCATION "${RodeBLAS_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${RodeBLAS_INCLUDE_DIR}"
      # The OpenMP build takes its thread count from the runtime it was linked with;
      # the engine sets that count, with whatever compiler it is built.
      INTERFACE_LINK_LIBRARIES gomp
  )
endif()

unset(rode_blas_reason)
unset(rode_blas_usable)
unset(rode_blas_declaration)
unset(rode_blas_real_path)
