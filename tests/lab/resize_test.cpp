// SPDX-License-Identifier: Apache-2.0
// Resizing against Pillow's results, and views for training and evaluation.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/base/sha256.h"
#include "lab/images/augment.h"
#include "lab/support.h"

namespace rode::lab {
namespace {

Image picture(int width, int height) {
  Image image;
  image.reshape(width, height);
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] =
        static_cast<std::uint8_t>((i * 2654435761U % (std::uint64_t{1} << 32U)) >> 24U);
  }
  return image;
}

TEST(Resize, IsPillowsToTheBit) {
  std::ifstream file(RODE_SOURCE_DIR "/tests/lab/golden/resize.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_GE(golden.at("cases").size(), 12U);
  for (const auto& item : golden.at("cases")) {
    const Image from = picture(item.at("from")[0], item.at("from")[1]);
    const auto& b = item.at("box");
    Image to;
    resize(from, {b[0], b[1], b[2], b[3]}, item.at("to")[0], item.at("to")[1], to);
    Sha256 hash;
    hash.update(std::as_bytes(std::span(to.pixels)));
    EXPECT_EQ(hash.hex(), item.at("sha256").get<std::string>()) << item.dump();
  }
}

TEST(Resize, RefusesAPartOutsideTheImage) {
  const Image from = picture(8, 6);
  Image to;
  for (const Box box : {Box{0, 0, 9, 6}, Box{-1, 0, 4, 4}, Box{5, 0, 4, 4}, Box{0, 0, 0, 4}}) {
    EXPECT_MENTIONS(error_of([&] { resize(from, box, 4, 4, to); }), "inside the image");
  }
  EXPECT_MENTIONS(error_of([&] { resize(from, {0, 0, 4, 4}, 0, 4, to); }), "at least 1");
}

TEST(EvaluationView, IsTheCentreOfTheShorterSide) {
  const Image from = picture(500, 375);
  ImageTransform transform;
  transform.size = 224;
  transform.eval_resize = 256;
  Image view;
  evaluation_view(from, transform, view);
  Image whole;
  resize(from, {0, 0, 500, 375}, 341, 256, whole);
  ASSERT_EQ(view.width, 224);
  ASSERT_EQ(view.height, 224);
  for (const auto& [x, y] : {std::pair(0, 0), std::pair(223, 223), std::pair(17, 200)}) {
    EXPECT_TRUE(std::equal(view.at(x, y), view.at(x, y) + 3, whole.at(x + 58, y + 16)));
  }
}

TEST(TrainingView, DrawsPartsInsideTheAllowedAreasAndAspects) {
  const ImageTransform transform;
  Random random(5);
  double smallest = 1;
  double largest = 0;
  for (int i = 0; i < 5000; ++i) {
    const Box box = random_part(400, 300, transform, random);
    ASSERT_GE(box.x, 0);
    ASSERT_GE(box.y, 0);
    ASSERT_LE(box.x + box.width, 400);
    ASSERT_LE(box.y + box.height, 300);
    const double area = box.width * box.height / 120000.0;
    const double aspect = static_cast<double>(box.width) / box.height;
    // Sides are rounded to pixels: one in the shortest side of 74.
    EXPECT_GT(area, 0.08 * (1 - 2.0 / 74));
    EXPECT_LT(aspect, 4.0 / 3.0 * (1 + 2.0 / 74));
    EXPECT_GT(aspect, 3.0 / 4.0 * (1 - 2.0 / 74));
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
  }
  EXPECT_LT(smallest, 0.1);
  EXPECT_GT(largest, 0.9);
}

TEST(TrainingView, FallsBackToTheCentreOfAStrip) {
  ImageTransform transform;
  transform.area_min = 1;  // never fits
  Random random(6);
  const Box wide = random_part(1000, 10, transform, random);
  EXPECT_EQ(wide.height, 10);
  EXPECT_EQ(wide.width, 13);
  EXPECT_EQ(wide.x, 493);
  const Box tall = random_part(10, 1000, transform, random);
  EXPECT_EQ(tall.width, 10);
  EXPECT_EQ(tall.height, 13);
}

TEST(TrainingView, MirrorsHalfOfTheTime) {
  const Image from = picture(8, 8);
  ImageTransform transform;
  transform.size = 8;
  transform.eval_resize = 8;
  transform.area_min = 1;
  transform.aspect_min = transform.aspect_max = 1;  // the whole image
  int mirrored = 0;
  constexpr int kDraws = 2000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    Random random(derive_seed(1, {i}));
    Image view;
    training_view(from, transform, random, view);
    if (view.pixels == from.pixels) continue;
    EXPECT_TRUE(std::equal(view.at(0, 3), view.at(0, 3) + 3, from.at(7, 3)));
    ++mirrored;
  }
  EXPECT_NEAR(mirrored, kDraws / 2, 5 * 23);  // five deviations
}

TEST(Planes, AreNormalisedByChannel) {
  Image image;
  image.reshape(2, 1);
  image.pixels = {0, 128, 255, 10, 20, 30};
  ImageTransform transform;
  std::vector<float> planes(6);
  to_planes(image, transform, planes.data());
  EXPECT_FLOAT_EQ(planes[0], -0.485F / 0.229F);
  EXPECT_FLOAT_EQ(planes[1], (10 / 255.0F - 0.485F) / 0.229F);
  EXPECT_FLOAT_EQ(planes[2], (128 / 255.0F - 0.456F) / 0.224F);
  EXPECT_FLOAT_EQ(planes[4], (1 - 0.406F) / 0.225F);
  std::vector<std::uint8_t> raw(6);
  to_planes(image, raw.data());
  EXPECT_EQ(raw, (std::vector<std::uint8_t>{0, 10, 128, 20, 255, 30}));
}

}  // namespace
}  // namespace rode::lab
