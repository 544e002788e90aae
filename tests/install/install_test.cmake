# SPDX-License-Identifier: Apache-2.0
# Installs a build tree, moves the result, and builds and runs the consumer against it.
#
# Run as: cmake -DBUILD_DIR=... -DSOURCE_DIR=... -DWORK_DIR=... -DGENERATOR=... -DCONFIG=...
#               -DCXX_COMPILER=... -DVERSION=... [-DTORCH_DIR=...] -P install_test.cmake

cmake_minimum_required(VERSION 3.25)

foreach(argument BUILD_DIR SOURCE_DIR WORK_DIR GENERATOR CONFIG CXX_COMPILER VERSION)
  if(NOT DEFINED ${argument})
    message(FATAL_ERROR "install_test.cmake needs -D${argument}=...")
  endif()
endforeach()

function(run)
  list(JOIN ARGN " " line)
  message(STATUS "${line}")
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
file(MAKE_DIRECTORY "${WORK_DIR}")

# The package must not depend on where it was first installed.
run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${WORK_DIR}/staged")
file(RENAME "${WORK_DIR}/staged" "${WORK_DIR}/prefix")

# Nor may it refer to the trees it was built from.
file(GLOB_RECURSE package_files "${WORK_DIR}/prefix/*.cmake" "${WORK_DIR}/prefix/*.h")
if(NOT package_files)
  message(FATAL_ERROR "nothing was installed under ${WORK_DIR}/prefix")
endif()
foreach(file IN LISTS package_files)
  file(READ "${file}" text)
  foreach(tree "${SOURCE_DIR}" "${BUILD_DIR}" "${WORK_DIR}/staged")
    string(FIND "${text}" "${tree}/" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${tree}")
    endif()
  endforeach()
endforeach()

# Headers of src/ are private.
file(GLOB_RECURSE headers RELATIVE "${WORK_DIR}/prefix/include" "${WORK_DIR}/prefix/include/*")
foreach(header IN LISTS headers)
  if(NOT header MATCHES "^rode/")
    message(FATAL_ERROR "installed header '${header}' is outside include/rode")
  endif()
endforeach()

run(
  "${CMAKE_COMMAND}"
  -S "${SOURCE_DIR}/tests/install/consumer"
  -B "${WORK_DIR}/build"
  -G "${GENERATOR}"
  "-DCMAKE_BUILD_TYPE=${CONFIG}"
  "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
  "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix"
  "-DTorch_DIR=${TORCH_DIR}"
)
run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --config "${CONFIG}")

execute_process(
  COMMAND "${WORK_DIR}/build/consumer" OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY
)
message(STATUS "consumer says: ${output}")
string(FIND "${output}" "rode ${VERSION}" position)
if(position EQUAL -1)
  message(FATAL_ERROR "the consumer did not print 'rode ${VERSION}'")
endif()
if(TORCH_DIR)
  run("${WORK_DIR}/build/torch_consumer")
endif()
