// SPDX-License-Identifier: Apache-2.0
// JPEG files through libjpeg.
#include <csetjmp>
#include <cstdio>

#include <fmt/format.h>
// libjpeg's header needs FILE and size_t declared before it.
#include <jerror.h>
#include <jpeglib.h>

#include "core/file_io.h"
#include "lab/images/image.h"

namespace rode::lab {
namespace {

constexpr std::string_view kOperation = "read jpeg";
constexpr int kMaxSide = 32768;  // a hostile header may not claim all the memory

// libjpeg is C: an error leaves it by longjmp, which must not pass a C++ destructor.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf leave;
  char message[JMSG_LENGTH_MAX];
};

void leave_with_message(j_common_ptr info) {
  auto* manager = reinterpret_cast<ErrorManager*>(info->err);
  (*info->err->format_message)(info, manager->message);
  std::longjmp(manager->leave, 1);
}

// Warnings are common in the wild and do no harm, but libjpeg also "warns" of a file that ends
// early, and paints the rest grey.
void note_end(j_common_ptr info, int /*level*/) {
  if (info->err->msg_code == JWRN_JPEG_EOF) leave_with_message(info);
}

// Adobe's CMYK is stored inverted: 255 is no ink.
void cmyk_row_to_rgb(const JSAMPLE* from, std::uint8_t* to, int width) {
  for (int x = 0; x < width; ++x, from += 4, to += 3) {
    for (int c = 0; c < 3; ++c) {
      to[c] = static_cast<std::uint8_t>((from[c] * from[3] + 127) / 255);
    }
  }
}

// `cmyk` is a row of scratch. False with the message in `errors`.
bool decode(std::span<const std::byte> bytes, Image& image, std::vector<JSAMPLE>& cmyk,
            jpeg_decompress_struct& info, ErrorManager& errors) {
  if (setjmp(errors.leave) != 0) return false;  // NOLINT(cert-err52-cpp): libjpeg's interface
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()),
               static_cast<unsigned long>(bytes.size()));
  jpeg_read_header(&info, TRUE);
  const bool four = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = four ? JCS_CMYK : JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&info);
  const auto width = static_cast<int>(info.output_width);
  const auto height = static_cast<int>(info.output_height);
  if (width > kMaxSide || height > kMaxSide) {
    std::snprintf(errors.message, sizeof(errors.message), "%d x %d pixels", width, height);
    return false;
  }
  image.reshape(width, height);
  if (four) cmyk.resize(static_cast<std::size_t>(width) * 4);
  while (info.output_scanline < info.output_height) {
    std::uint8_t* out = image.at(0, static_cast<int>(info.output_scanline));
    JSAMPROW row = four ? cmyk.data() : out;
    jpeg_read_scanlines(&info, &row, 1);
    if (four) cmyk_row_to_rgb(cmyk.data(), out, width);
  }
  jpeg_finish_decompress(&info);
  return true;
}

}  // namespace

void read_jpeg(const std::filesystem::path& path, Image& image) {
  const FileMapping mapping(path, kOperation);
  std::vector<JSAMPLE> cmyk;
  ErrorManager errors{};
  jpeg_decompress_struct info{};
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave_with_message;
  errors.base.emit_message = note_end;
  jpeg_create_decompress(&info);
  bool good = false;
  if (mapping.bytes().empty()) {
    std::snprintf(errors.message, sizeof(errors.message), "the file is empty");
  } else {
    good = decode(mapping.bytes(), image, cmyk, info, errors);
  }
  jpeg_destroy_decompress(&info);
  if (!good) {
    throw file_error(kOperation, path.string(),
                     fmt::format("cannot be decoded ({}); expected a JPEG image; repair or remove "
                                 "the file",
                                 errors.message));
  }
}

}  // namespace rode::lab
