// SPDX-License-Identifier: Apache-2.0
// Bilinear resizing with antialiasing, in whole numbers.
#pragma once

#include "lab/images/image.h"

namespace rode::lab {

struct Box {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
};

// The part `box` of `from`, resized to width x height.
//
// Output pixel i of a line has its centre at c = (i + 1/2) s, s = input / output length. It is
// the mean of the input pixels j with weights max(0, 1 - |j + 1/2 - c| / max(s, 1)), normalised:
// linear interpolation where it enlarges, a triangle over all the pixels it covers where it
// shrinks. Only pixels inside the box count. Rows first, then columns, each pass rounded to 8
// bits; weights have 22 fractional bits. This is Pillow's BILINEAR, bit for bit.
void resize(const Image& from, const Box& box, int width, int height, Image& to);

}  // namespace rode::lab
