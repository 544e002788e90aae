# SPDX-License-Identifier: Apache-2.0
# Finds oneDNN's C++ API, used for bf16 products; defines RodeOneDNN::RodeOneDNN.
#
# Input:  RodeOneDNN_INCLUDE_DIR, RodeOneDNN_LIBRARY (cache; set them to override)
# Output: RodeOneDNN_FOUND, RodeOneDNN_VERSION, target RodeOneDNN::RodeOneDNN

include(FindPackageHandleStandardArgs)

find_path(RodeOneDNN_INCLUDE_DIR NAMES dnnl.hpp DOC "Directory of oneDNN's dnnl.hpp")
find_library(RodeOneDNN_LIBRARY NAMES dnnl DOC "oneDNN library")
mark_as_advanced(RodeOneDNN_INCLUDE_DIR RodeOneDNN_LIBRARY)

set(rode_onednn_header "${RodeOneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h")
if(EXISTS "${rode_onednn_header}")
  set(RodeOneDNN_VERSION "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${rode_onednn_header}" rode_onednn_line
         REGEX "^#define DNNL_VERSION_${part}[ \t]+[0-9]+" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*[ \t]([0-9]+).*" "\\1" rode_onednn_part "${rode_onednn_line}")
    list(APPEND RodeOneDNN_VERSION "${rode_onednn_part}")
  endforeach()
  list(JOIN RodeOneDNN_VERSION "." RodeOneDNN_VERSION)
endif()

find_package_handle_standard_args(
  RodeOneDNN
  REQUIRED_VARS RodeOneDNN_LIBRARY RodeOneDNN_INCLUDE_DIR
  VERSION_VAR RodeOneDNN_VERSION
  REASON_FAILURE_MESSAGE
    "install the Debian package libdnnl-dev, or configure with -DRODE_WITH_ONEDNN=OFF"
)

if(RodeOneDNN_FOUND AND NOT TARGET RodeOneDNN::RodeOneDNN)
  add_library(RodeOneDNN::RodeOneDNN UNKNOWN IMPORTED)
  set_target_properties(
    RodeOneDNN::RodeOneDNN
    PROPERTIES
      IMPORTED_LOCATION "${RodeOneDNN_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${RodeOneDNN_INCLUDE_DIR}"
  )
endif()

unset(rode_onednn_header)
unset(rode_onednn_line)
unset(rode_onednn_part)
