# SPDX-License-Identifier: Apache-2.0
# Embeds text files in a program: cmake -DOUT=F.cpp -DROOT=DIR "-DFILES=a;b" -P RodeEmbed.cmake
set(text "// Made by cmake/RodeEmbed.cmake; do not edit.\n#include <array>\n\n")
string(APPEND text "#include \"lab/base/embedded.h\"\n\nnamespace rode::lab {\nnamespace {\n\n")
list(LENGTH FILES count)
string(APPEND text "constexpr std::array<EmbeddedFile, ${count}> kFiles = {{\n")
foreach(name IN LISTS FILES)
  file(READ "${ROOT}/${name}" content)
  string(APPEND text "{\"${name}\", R\"rode(${content})rode\"},\n")
endforeach()
string(APPEND text "}};\n\n}  // namespace\n\n")
string(APPEND text
       "std::span<const EmbeddedFile> embedded_files() { return kFiles; }\n\n}  // namespace rode::lab\n"
)
file(WRITE "${OUT}" "${text}")
