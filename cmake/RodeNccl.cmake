# SPDX-License-Identifier: Apache-2.0
# Headers of NCCL, and of the CUDA libraries that c10d's header of NCCL includes.
#
# Torch's packages bring NCCL as a package of its own beside torch, with its header, in the version
# that torch was built with; it comes first after NCCL_HOME, since another version lays out c10d's options
# differently (nccl_group.cpp compares the two). The headers of CUDA come from the toolkit, or from
# pip's packages beside torch.

# The folders with the headers that have been found, and the names of those that have not.
function(rode_nccl_headers folders missing)
  file(REAL_PATH "${RodeTorch_LIBRARY_DIR}/../.." site)
  file(GLOB packages "${site}/nvidia/*/include")
  set(toolkit ${CUDAToolkit_INCLUDE_DIRS} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  if(CMAKE_CUDA_COMPILER)
    get_filename_component(bin "${CMAKE_CUDA_COMPILER}" DIRECTORY)
    list(APPEND toolkit "${bin}/../include")
  endif()
  set(found "")
  set(absent "")
  # Of CUDA, the toolkit's first: one set of headers.
  foreach(header cuda_runtime_api.h cublas_v2.h cublasLt.h cusparse.h cusolverDn.h)
    find_path(
      RODE_NCCL_${header} NAMES ${header}
      HINTS ${toolkit} ENV CUDA_HOME ENV CUDA_PATH
      PATHS /usr/local/cuda ${packages}
      PATH_SUFFIXES include
    )
    mark_as_advanced(RODE_NCCL_${header})
    list(APPEND found "${RODE_NCCL_${header}}")
  endforeach()
  find_path(
    RODE_NCCL_nccl.h NAMES nccl.h
    HINTS ENV NCCL_HOME "${site}/nvidia/nccl"
    PATHS ${packages} ${toolkit} /usr/local/cuda
    PATH_SUFFIXES include
  )
  mark_as_advanced(RODE_NCCL_nccl.h)
  list(PREPEND found "${RODE_NCCL_nccl.h}")
  foreach(header nccl.h cuda_runtime_api.h cublas_v2.h cublasLt.h cusparse.h cusolverDn.h)
    if(NOT RODE_NCCL_${header})
      list(APPEND absent ${header})
    endif()
  endforeach()
  list(FILTER found EXCLUDE REGEX "-NOTFOUND$")
  list(REMOVE_DUPLICATES found)
  # Named again, the compiler's own would hide the C++ library's wrappers of C headers.
  list(REMOVE_ITEM found ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  set(${folders} "${found}" PARENT_SCOPE)
  set(${missing} "${absent}" PARENT_SCOPE)
endfunction()

# Compiles `source` of the target with NCCL where LibTorch has it and its headers do; elsewhere the
# source refuses by name.
function(rode_use_nccl target source)
  if(NOT RodeTorch_HAS_NCCL)
    return()
  endif()
  rode_nccl_headers(folders missing)
  if(missing)
    list(JOIN missing ", " missing)
    message(STATUS "Groups of NCCL: no, for lack of ${missing}; set NCCL_HOME and CUDA_HOME")
    return()
  endif()
  list(TRANSFORM folders PREPEND "-isystem" OUTPUT_VARIABLE options)
  set(includes "${PROJECT_SOURCE_DIR}/include" "${CMAKE_CURRENT_SOURCE_DIR}/include")
  get_target_property(torch RodeTorch::RodeTorch INTERFACE_INCLUDE_DIRECTORIES)
  # These headers are many, and of versions that nobody has tried together: better no NCCL than no
  # program.
  if(NOT RODE_NCCL_COMPILES)  # again after a failure: NCCL_HOME may have changed
    message(STATUS "Groups of NCCL: compiling c10d's header")
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    try_compile(
      RODE_NCCL_COMPILES
      SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${includes};${torch};${folders}"
      COMPILE_DEFINITIONS -DRODE_HAS_NCCL
      CXX_STANDARD 20
      CXX_STANDARD_REQUIRED ON
      OUTPUT_VARIABLE said
    )
    if(NOT RODE_NCCL_COMPILES)
      file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/nccl.log" "${said}")
    endif()
  endif()
  if(NOT RODE_NCCL_COMPILES)
    message(STATUS "Groups of NCCL: no, c10d's header does not compile with those in ${folders}; \
see ${CMAKE_CURRENT_BINARY_DIR}/nccl.log")
    return()
  endif()
  message(STATUS "Groups of NCCL: yes, with the header in ${RODE_NCCL_nccl.h}")
  set_source_files_properties(
    ${source}
    PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON
      COMPILE_OPTIONS "${options}"
      COMPILE_DEFINITIONS RODE_HAS_NCCL
  )
endfunction()
