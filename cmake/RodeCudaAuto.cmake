# SPDX-License-Identifier: Apache-2.0
# Resolves RODE_WITH_CUDA = AUTO, which the Python package uses: on if nvcc is found and PyTorch has
# CUDA. If the build cannot see PyTorch (pip's isolation hides it), nvcc alone decides.
#
# Input:  Python_EXECUTABLE, if given; CUDACXX from the environment
# Output: RODE_WITH_CUDA, CMAKE_CUDA_COMPILER

execute_process(
  COMMAND "${CMAKE_CURRENT_LIST_DIR}/../tools/find_nvcc.sh"
  OUTPUT_VARIABLE rode_nvcc
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET
)

find_package(Python 3.10 QUIET COMPONENTS Interpreter)
# Reads only the version file: importing torch takes seconds.
set(
  rode_torch_query
  "import importlib.util, pathlib, runpy
spec = importlib.util.find_spec('torch')
if spec is None:
    print('unseen')
else:
    version = pathlib.Path(spec.origin).with_name('version.py')
    print(runpy.run_path(str(version))['cuda'] or 'none')"
)
set(rode_torch_cuda "unseen")
if(Python_Interpreter_FOUND)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "${rode_torch_query}"
    OUTPUT_VARIABLE rode_torch_cuda
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
  )
endif()

if(NOT rode_nvcc)
  set(rode_cuda OFF)
  set(rode_reason "no nvcc of CUDA 12.0 or later was found")
elseif(rode_torch_cuda STREQUAL "none")
  set(rode_cuda OFF)
  set(rode_reason "the installed PyTorch has no CUDA")
elseif(rode_torch_cuda MATCHES "^[0-9]")
  set(rode_cuda ON)
  set(rode_reason "${rode_nvcc}, and PyTorch has CUDA ${rode_torch_cuda}")
else()
  set(rode_cuda ON)
  set(rode_reason "${rode_nvcc}; the build cannot see PyTorch")
endif()
if(rode_cuda AND NOT DEFINED CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER "${rode_nvcc}" CACHE FILEPATH "nvcc")
endif()
message(STATUS "RODE_WITH_CUDA=AUTO: ${rode_cuda} (${rode_reason}); set it to ON or OFF to override")
set(RODE_WITH_CUDA ${rode_cuda} CACHE BOOL "" FORCE)
