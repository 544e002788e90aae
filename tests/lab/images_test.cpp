// SPDX-License-Identifier: Apache-2.0
// CIFAR-100, folders of JPEG, and batches that do not depend on the number of threads.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include <jpeglib.h>

#include "lab/images/cifar.h"
#include "lab/stream/image_stream.h"
#include "lab/support.h"
#include "lab/synthetic/tiny_vision.h"

namespace rode::lab {
namespace {

// A plain colour, which JPEG keeps to a level or two, in RGB (3), grey (1) or CMYK (4).
void write_jpeg(const std::filesystem::path& path, int width, int height,
                const std::vector<JSAMPLE>& colour) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  jpeg_stdio_dest(&info, file);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = static_cast<int>(colour.size());
  info.in_color_space = colour.size() == 3   ? JCS_RGB
                        : colour.size() == 1 ? JCS_GRAYSCALE
                                             : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  jpeg_start_compress(&info, TRUE);
  std::vector<JSAMPLE> row;
  for (int x = 0; x < width; ++x) row.insert(row.end(), colour.begin(), colour.end());
  for (int y = 0; y < height; ++y) {
    JSAMPROW line = row.data();
    jpeg_write_scanlines(&info, &line, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

void expect_colour(const Image& image, int red, int green, int blue) {
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      ASSERT_NEAR(image.at(x, y)[0], red, 3);
      ASSERT_NEAR(image.at(x, y)[1], green, 3);
      ASSERT_NEAR(image.at(x, y)[2], blue, 3);
    }
  }
}

TEST(Jpeg, ReadsColourGreyAndCmyk) {
  const Scratch scratch;
  Image image;
  write_jpeg(scratch / "rgb.jpg", 19, 11, {200, 30, 90});
  read_jpeg(scratch / "rgb.jpg", image);
  EXPECT_EQ(image.width, 19);
  EXPECT_EQ(image.height, 11);
  expect_colour(image, 200, 30, 90);
  write_jpeg(scratch / "grey.jpg", 8, 9, {77});
  read_jpeg(scratch / "grey.jpg", image);
  expect_colour(image, 77, 77, 77);
  write_jpeg(scratch / "cmyk.jpg", 8, 9, {255, 128, 0, 200});  // as Adobe stores it, inverted
  read_jpeg(scratch / "cmyk.jpg", image);
  expect_colour(image, 200, 100, 0);
}

TEST(Jpeg, RefusesWhatIsNone) {
  const Scratch scratch;
  Image image;
  const auto message = [&](std::string_view bytes) {
    write_file(scratch / "bad.jpg", bytes);
    return error_of([&] { read_jpeg(scratch / "bad.jpg", image); });
  };
  EXPECT_MENTIONS(message(""), "the file is empty");
  EXPECT_MENTIONS(message("\x89PNG and more"), "expected a JPEG image");
  EXPECT_MENTIONS(message("\x89PNG and more"), "bad.jpg");
  EXPECT_MENTIONS(error_of([&] { read_jpeg(scratch / "none.jpg", image); }), "cannot be opened");
}

TEST(Jpeg, RefusesAFileThatEndsEarly) {
  const Scratch scratch;
  write_jpeg(scratch / "whole.jpg", 64, 64, {200, 30, 90});
  const auto size = std::filesystem::file_size(scratch / "whole.jpg");
  std::filesystem::copy_file(scratch / "whole.jpg", scratch / "cut.jpg");
  std::filesystem::resize_file(scratch / "cut.jpg", size - 40);
  Image image;
  read_jpeg(scratch / "whole.jpg", image);
  EXPECT_MENTIONS(error_of([&] { read_jpeg(scratch / "cut.jpg", image); }), "cut.jpg");
}

TEST(ImageFolder, LabelsByTheOrderOfNames) {
  const Scratch scratch;
  for (const char* name : {"b/deep", "a", "c"}) {
    std::filesystem::create_directories(scratch / name);
  }
  write_jpeg(scratch / "b/deep/1.JPEG", 8, 8, {0, 0, 255});
  write_jpeg(scratch / "a/2.jpg", 8, 8, {255, 0, 0});
  write_jpeg(scratch / "a/1.jpeg", 9, 8, {255, 0, 0});
  write_jpeg(scratch / "c/1.jpg", 8, 8, {0, 255, 0});
  write_file(scratch / "c/notes.txt", "no image");
  const ImageFolder folder(scratch.path());
  EXPECT_EQ(folder.class_names(), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_EQ(folder.size(), 4U);
  Image image;
  EXPECT_EQ(folder.read(0, image), 0);
  EXPECT_EQ(image.width, 9);
  EXPECT_EQ(folder.read(2, image), 1);
  expect_colour(image, 0, 0, 254);
  EXPECT_EQ(folder.read(3, image), 2);
  std::filesystem::create_directories(scratch / "d");
  EXPECT_MENTIONS(error_of([&] { const ImageFolder again(scratch.path()); }), "class 'd'");
  EXPECT_MENTIONS(error_of([&] { const ImageFolder none(scratch / "nowhere"); }), "listed");
}

std::string cifar_record(int coarse, int fine, int seed) {
  std::string record = {static_cast<char>(coarse), static_cast<char>(fine)};
  for (int i = 0; i < 3072; ++i) record += static_cast<char>((i * 7 + seed) % 256);
  return record;
}

TEST(Cifar100, ReadsPlanesAndTheFineLabel) {
  const Scratch scratch;
  write_file(scratch / "train.bin", cifar_record(3, 42, 0) + cifar_record(19, 99, 5));
  const Cifar100 cifar(scratch / "train.bin");
  ASSERT_EQ(cifar.size(), 2U);
  Image image;
  EXPECT_EQ(cifar.read(1, image), 99);
  EXPECT_EQ(cifar.read(0, image), 42);
  EXPECT_EQ(image.width, 32);
  for (const int c : {0, 1, 2}) {
    EXPECT_EQ(image.at(4, 2)[c], (c * 1024 + 2 * 32 + 4) * 7 % 256);
  }
}

TEST(Cifar100, RefusesOtherFiles) {
  const Scratch scratch;
  const auto message = [&](const std::string& bytes) {
    write_file(scratch / "bad.bin", bytes);
    return error_of([&] { const Cifar100 cifar(scratch / "bad.bin"); });
  };
  EXPECT_MENTIONS(message(""), "0 bytes");
  EXPECT_MENTIONS(message(cifar_record(1, 1, 0) + "x"), "3075 bytes");
  EXPECT_MENTIONS(message(cifar_record(1, 1, 0) + cifar_record(20, 1, 0)), "record 1");
  EXPECT_MENTIONS(message(cifar_record(1, 100, 0)), "labels 1 and 100");
}

ImageTransform small_transform() {
  ImageTransform transform;
  transform.size = 24;
  transform.eval_resize = 28;
  return transform;
}

TEST(ImageStream, DoesNotDependOnThreads) {
  const auto source = std::make_shared<TinyVision>(40, 32, 0);
  constexpr std::size_t kBatch = 16;
  std::vector<std::vector<float>> results;
  std::vector<std::vector<std::int64_t>> labels;
  for (const int threads : {1, 2, 7}) {
    ImageStream stream(source, small_transform(), {.seed = 8}, threads);
    std::vector<float> all;
    std::vector<std::int64_t> all_labels;
    for (int i = 0; i < 4; ++i) {
      std::vector<float> pixels(kBatch * 3 * 24 * 24);
      std::vector<std::int64_t> batch(kBatch);
      stream.next(std::span(pixels), batch);
      all.insert(all.end(), pixels.begin(), pixels.end());
      all_labels.insert(all_labels.end(), batch.begin(), batch.end());
    }
    results.push_back(std::move(all));
    labels.push_back(std::move(all_labels));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(labels[0], labels[2]);
}

TEST(ImageStream, ResumesBitForBitAndAugmentsAnewEachEpoch) {
  const auto source = std::make_shared<TinyVision>(12, 32, 0);
  ImageStream stream(source, small_transform(), {.seed = 8}, 2);
  std::vector<std::uint8_t> first(12 * 3 * 24 * 24);
  std::vector<std::uint8_t> second(first.size());
  std::vector<std::uint8_t> again(first.size());
  std::vector<std::int64_t> labels(12);
  stream.next(std::span(first), labels);
  const StreamPosition position = stream.position();
  stream.next(std::span(second), labels);
  EXPECT_NE(first, second);
  ImageStream resumed(source, small_transform(), {.seed = 8}, 1);
  resumed.seek(position);
  resumed.next(std::span(again), labels);
  EXPECT_EQ(second, again);
}

TEST(EvaluationImages, GoInOrderAndEnd) {
  const auto source = std::make_shared<TinyVision>(30, 32, 1);
  EvaluationImages images(source, small_transform(), 14, 2);
  std::vector<std::uint8_t> pixels(6 * 3 * 24 * 24);
  std::vector<std::int64_t> labels(6);
  std::vector<std::int64_t> seen;
  for (std::size_t n = images.next(std::span(pixels), labels); n > 0;
       n = images.next(std::span(pixels), labels)) {
    seen.insert(seen.end(), labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(n));
  }
  ASSERT_EQ(seen.size(), 14U);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i], static_cast<std::int64_t>(i % 12));
  }
  EvaluationImages second(source, small_transform(), 5, 2, 1, 2);
  EXPECT_EQ(second.next(std::span(pixels), labels), 2U);
  EXPECT_EQ(labels[1], 3);
}

TEST(OnThreads, ThrowsTheFirstFailureByIndex) {
  for (const int threads : {1, 3}) {
    EXPECT_EQ(error_of([&] {
                on_threads(threads, 20, [](std::size_t i) {
                  if (i % 7 == 6) throw Error(ErrorKind::file, "test", std::to_string(i));
                });
              }),
              "[test] 6");
  }
  on_threads(2, 0, [](std::size_t) { FAIL(); });
}

}  // namespace
}  // namespace rode::lab
