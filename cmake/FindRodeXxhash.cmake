# SPDX-License-Identifier: Apache-2.0
# Finds xxhash.h, the checksum of files. Only the header: it is compiled in, nothing is linked.
#
# Input:  RodeXxhash_INCLUDE_DIR (cache; set it to the folder of xxhash.h to override)
# Output: RodeXxhash_FOUND, RodeXxhash_VERSION, RodeXxhash_INCLUDE_DIR

include(FindPackageHandleStandardArgs)

find_path(RodeXxhash_INCLUDE_DIR NAMES xxhash.h DOC "Directory of xxhash.h")
mark_as_advanced(RodeXxhash_INCLUDE_DIR)

if(EXISTS "${RodeXxhash_INCLUDE_DIR}/xxhash.h")
  set(RodeXxhash_VERSION "")
  foreach(part MAJOR MINOR RELEASE)
    file(STRINGS "${RodeXxhash_INCLUDE_DIR}/xxhash.h" rode_xxhash_line
         REGEX "^#define XXH_VERSION_${part}[ \t]+[0-9]+" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*[ \t]([0-9]+).*" "\\1" rode_xxhash_part "${rode_xxhash_line}")
    list(APPEND RodeXxhash_VERSION "${rode_xxhash_part}")
  endforeach()
  list(JOIN RodeXxhash_VERSION "." RodeXxhash_VERSION)
endif()

find_package_handle_standard_args(
  RodeXxhash
  REQUIRED_VARS RodeXxhash_INCLUDE_DIR
  VERSION_VAR RodeXxhash_VERSION
  REASON_FAILURE_MESSAGE
    "install the Debian package libxxhash-dev, or put xxhash.h (0.8 or later, no other file of it \
is needed) into a folder and configure with -DRodeXxhash_INCLUDE_DIR=FOLDER"
)

unset(rode_xxhash_line)
unset(rode_xxhash_part)
