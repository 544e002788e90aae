# SPDX-License-Identifier: Apache-2.0
# Enables CUDA as a language, with the architectures and flags that rode's kernels are built with.
#
# Input:  RODE_CUDA_ARCHITECTURES; CMAKE_CUDA_COMPILER or CUDACXX in the environment, if nvcc
#         is not in PATH
# Output: the language CUDA, the targets of CUDAToolkit

set(
  RODE_CUDA_ARCHITECTURES "90a"
  CACHE STRING "Architectures of the kernels: a list out of 80 86 89 90a 100 120, or all"
)

# CMake 3.25 (Debian 12) does not know nvcc's flag for C++20, which nvcc supports since 12.0.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()

# The host side of a .cu file is compiled by the same compiler as everything else, if nvcc accepts
# it.
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
endif()

# Each target sets its own architectures; without a value CMake would pick one for its probes.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(
    FATAL_ERROR
    "RODE_WITH_CUDA is ON but nvcc was not found; `make cuda` finds or installs one, or set "
    "CMAKE_CUDA_COMPILER to it, or configure with -DRODE_WITH_CUDA=OFF"
  )
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
  message(
    FATAL_ERROR
    "${CMAKE_CUDA_COMPILER} is CUDA ${CMAKE_CUDA_COMPILER_VERSION}; rode needs 12.0 or later "
    "(C++20), and 12.8 or later for architectures 100 and 120"
  )
endif()
find_package(CUDAToolkit REQUIRED)

# ---- Architectures: validated and named, never detected ---------------------------------
# "real": machine code for that chip only. No PTX, so nothing is compiled at run time.
function(rode_cuda_architectures result)
  set(known 80 86 89 90a 100 120)
  set(blackwell 100 120)  # known to nvcc since 12.8
  set(wanted ${RODE_CUDA_ARCHITECTURES})
  if(wanted STREQUAL "all")
    set(wanted ${known})
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
      list(REMOVE_ITEM wanted ${blackwell})
    endif()
  endif()
  if(NOT wanted)
    message(FATAL_ERROR "RODE_CUDA_ARCHITECTURES is empty; expected some of ${known}, or all")
  endif()
  set(real "")
  foreach(architecture IN LISTS wanted)
    if(NOT architecture IN_LIST known)
      list(JOIN known " " known)
      message(
        FATAL_ERROR
        "RODE_CUDA_ARCHITECTURES names '${architecture}'; expected some of ${known}, or all"
      )
    endif()
    if(architecture IN_LIST blackwell AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
      message(
        FATAL_ERROR
        "architecture ${architecture} needs CUDA 12.8 or later, and ${CMAKE_CUDA_COMPILER} is "
        "${CMAKE_CUDA_COMPILER_VERSION}; use a newer toolkit or leave it out of "
        "RODE_CUDA_ARCHITECTURES"
      )
    endif()
    list(APPEND real "${architecture}-real")
  endforeach()
  list(REMOVE_DUPLICATES real)
  set(${result} "${real}" PARENT_SCOPE)
endfunction()
rode_cuda_architectures(rode_cuda_real_architectures)
list(JOIN rode_cuda_real_architectures " " rode_cuda_text)
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}, kernels for ${rode_cuda_text}")
unset(rode_cuda_text)

# ---- Flags ------------------------------------------------------------------------------
# Optimised and without assertions in every configuration: a device assertion is a function
# call, and one call in a kernel makes ptxas serialise the tensor-core pipeline (C7510). Line
# numbers cost nothing at run time and let compute-sanitizer name lines.
foreach(configuration DEBUG RELEASE RELWITHDEBINFO MINSIZEREL)
  set(CMAKE_CUDA_FLAGS_${configuration} "-O3 -DNDEBUG -lineinfo")
endforeach()

# Gives a target of .cpp and .cu files the language version, architectures and runtime. Further
# arguments: its architectures, instead of RODE_CUDA_ARCHITECTURES.
function(rode_target_cuda target)
  set(architectures ${rode_cuda_real_architectures})
  if(ARGN)
    set(architectures ${ARGN})
  endif()
  set_target_properties(
    ${target}
    PROPERTIES
      CUDA_STANDARD 20
      CUDA_STANDARD_REQUIRED ON
      CUDA_EXTENSIONS OFF
      CUDA_ARCHITECTURES "${architectures}"
      CUDA_RUNTIME_LIBRARY Static
      CUDA_SEPARABLE_COMPILATION OFF
      UNITY_BUILD OFF  # one kernel per file, which newer versions of CMake would join
  )
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
