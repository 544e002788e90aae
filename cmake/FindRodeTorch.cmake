# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch (PyTorch's C++ side) by its files; defines RodeTorch::RodeTorch.
#
# Torch's own package is not loaded: that of a CUDA build enables the CUDA language and searches
# for a toolkit, and the adapter needs neither. Torch is found where that package is: through
# CMAKE_PREFIX_PATH (of libtorch, or Python's torch.utils.cmake_prefix_path) or Torch_DIR.
#
# Input:  Torch_DIR; RodeTorch_ROOT, the folder that holds include/ and lib/; RodeTorch_FALLBACK,
#         such folders to try if neither leads to Torch
# Output: RodeTorch_FOUND, RodeTorch_VERSION, RodeTorch_LIBRARY_DIR, target RodeTorch::RodeTorch;
#         RodeTorch_HAS_C10D, RodeTorch_HAS_GLOO, RodeTorch_HAS_GLOO_HEADERS: what of torch's
#         distributed engine it was built with, and whether its package has the headers of gloo;
#         RodeTorch_HAS_NCCL: the same of NCCL; RodeNccl.cmake looks for its headers;
#         RodeTorch_NOT_FOUND_MESSAGE: why not

include(FindPackageHandleStandardArgs)

# The folder of Torch's package is three levels below the root.
find_path(
  RodeTorch_CONFIG_DIR
  NAMES TorchConfig.cmake
  HINTS "${Torch_DIR}" "${RodeTorch_ROOT}" ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
  PATHS ${RodeTorch_FALLBACK}
  PATH_SUFFIXES Torch share/cmake/Torch
  DOC "Directory of TorchConfig.cmake"
)
mark_as_advanced(RodeTorch_CONFIG_DIR)

# Whether programs get the C++ runtime that Torch loads, libstdc++.so.6. A program with its own
# static runtime has two, and crashes at its first call into Torch with `free(): invalid pointer`.
function(rode_torch_runtime_is_shared result)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/rode_torch_runtime")
  file(WRITE "${folder}/probe.cpp"
       "#include <stdexcept>\nint main(int n, char**) { if (n > 9) throw std::runtime_error(\"\"); }\n")
  # A program with kernels is also linked with the folders of nvcc's host compiler; one that
  # contains only libstdc++.a makes the runtime static.
  set(folders ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
  list(REMOVE_ITEM folders ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES})
  list(TRANSFORM folders PREPEND "-L")
  try_compile(linked "${folder}/build" SOURCES "${folder}/probe.cpp" LINK_OPTIONS ${folders}
              COPY_FILE "${folder}/probe")
  set(needed "")
  if(linked)
    file(STRINGS "${folder}/probe" needed REGEX "^libstdc[+][+][.]so" LIMIT_COUNT 1)
  endif()
  if(linked AND NOT needed)
    set(${result} FALSE PARENT_SCOPE)
  else()
    set(${result} TRUE PARENT_SCOPE)  # or nothing links at all, which other checks report better
  endif()
endfunction()

set(rode_torch_reason
    "install PyTorch or LibTorch, and add Python's torch.utils.cmake_prefix_path or the folder of \
LibTorch to CMAKE_PREFIX_PATH"
)
set(rode_torch_usable FALSE)
if(RodeTorch_CONFIG_DIR)
  file(REAL_PATH "${RodeTorch_CONFIG_DIR}/../../.." rode_torch_root)
  set(RodeTorch_LIBRARY_DIR "${rode_torch_root}/lib")
  file(STRINGS "${RodeTorch_CONFIG_DIR}/TorchConfig.cmake" rode_torch_abi
       REGEX "_GLIBCXX_USE_CXX11_ABI=0" LIMIT_COUNT 1)
  if(EXISTS "${RodeTorch_CONFIG_DIR}/TorchConfigVersion.cmake")
    file(STRINGS "${RodeTorch_CONFIG_DIR}/TorchConfigVersion.cmake" rode_torch_line
         REGEX "set\\(PACKAGE_VERSION" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" RodeTorch_VERSION "${rode_torch_line}")
  endif()
  # Torch's own targets name what it was built with.
  set(rode_torch_definitions "")
  if(EXISTS "${RodeTorch_CONFIG_DIR}/../Caffe2/Caffe2Targets.cmake")
    file(STRINGS "${RodeTorch_CONFIG_DIR}/../Caffe2/Caffe2Targets.cmake" rode_torch_definitions
         REGEX "INTERFACE_COMPILE_DEFINITIONS")
  endif()
  set(RodeTorch_HAS_C10D FALSE)
  if(rode_torch_definitions MATCHES "USE_DISTRIBUTED" AND EXISTS
     "${rode_torch_root}/include/torch/csrc/distributed/c10d/ProcessGroup.hpp"
  )
    set(RodeTorch_HAS_C10D TRUE)
  endif()
  set(RodeTorch_HAS_GLOO FALSE)
  if(RodeTorch_HAS_C10D AND rode_torch_definitions MATCHES "USE_C10D_GLOO")
    set(RodeTorch_HAS_GLOO TRUE)
  endif()
  set(RodeTorch_HAS_GLOO_HEADERS FALSE)
  if(EXISTS "${rode_torch_root}/include/gloo/context.h")
    set(RodeTorch_HAS_GLOO_HEADERS TRUE)
  endif()
  set(RodeTorch_HAS_NCCL FALSE)
  if(RodeTorch_HAS_C10D
     AND rode_torch_definitions MATCHES "USE_C10D_NCCL"
     AND EXISTS "${RodeTorch_LIBRARY_DIR}/libtorch_cuda.so"
  )
    set(RodeTorch_HAS_NCCL TRUE)
  endif()
  if(rode_torch_abi)
    # pip's packages are, up to 2.6; their strings differ from those of this compiler's library.
    set(rode_torch_reason
        "${rode_torch_root} is built with the old C++ ABI: use a 'cxx11 ABI' LibTorch, or 2.7"
    )
  elseif(EXISTS "${RodeTorch_LIBRARY_DIR}/libtorch_cpu.so")
    rode_torch_runtime_is_shared(rode_torch_usable)
    if(NOT rode_torch_usable)
      set(rode_torch_reason
          "programs of ${CMAKE_CXX_COMPILER} are linked with a static C++ runtime (libstdc++.a), and \
LibTorch loads libstdc++.so.6: with two they crash (`free(): invalid pointer`). Take a compiler that \
has libstdc++.so, as Debian's g++ (-DCMAKE_CXX_COMPILER=/usr/bin/g++, for kernels also \
-DCMAKE_CUDA_HOST_COMPILER=/usr/bin/g++), and no -static-libstdc++ in the flags"
      )
    endif()
  endif()
endif()

find_package_handle_standard_args(
  RodeTorch
  REQUIRED_VARS RodeTorch_CONFIG_DIR rode_torch_usable
  VERSION_VAR RodeTorch_VERSION
  REASON_FAILURE_MESSAGE "${rode_torch_reason}"
)

set(RodeTorch_NOT_FOUND_MESSAGE "")
if(NOT RodeTorch_FOUND)
  set(RodeTorch_NOT_FOUND_MESSAGE "${rode_torch_reason}")
endif()
if(RodeTorch_FOUND AND NOT TARGET RodeTorch::RodeTorch)
  add_library(RodeTorch::RodeTorch INTERFACE IMPORTED)
  set(rode_torch_libraries
      "${RodeTorch_LIBRARY_DIR}/libtorch.so" "${RodeTorch_LIBRARY_DIR}/libtorch_cpu.so"
      "${RodeTorch_LIBRARY_DIR}/libc10.so"
  )
  if(EXISTS "${RodeTorch_LIBRARY_DIR}/libtorch_cuda.so")
    # Nothing here calls it, but a torch process only has CUDA if it is loaded. Its own dependencies
    # are found through its run path, which the linker may not follow.
    list(
      APPEND rode_torch_libraries
      "-Wl,--push-state,--no-as-needed,${RodeTorch_LIBRARY_DIR}/libtorch_cuda.so,--pop-state"
      "-Wl,--allow-shlib-undefined"
    )
  endif()
  set_target_properties(
    RodeTorch::RodeTorch
    PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES
        "${rode_torch_root}/include;${rode_torch_root}/include/torch/csrc/api/include"
      INTERFACE_LINK_LIBRARIES "${rode_torch_libraries}"
  )
endif()

unset(rode_torch_reason)
unset(rode_torch_usable)
unset(rode_torch_root)
unset(rode_torch_abi)
unset(rode_torch_definitions)
unset(rode_torch_line)
unset(rode_torch_libraries)
