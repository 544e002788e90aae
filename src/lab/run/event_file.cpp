// SPDX-License-Identifier: Apache-2.0
// The record format and the few protobuf fields that scalars need.
#include "lab/run/event_file.h"

#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

namespace rode::lab {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, reflected
constexpr std::uint32_t kMaskDelta = 0xa282ead8;

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table = {};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}
constexpr auto kTable = make_table();

template <class Word>
void put_word(std::string& out, Word word) {
  for (std::size_t i = 0; i < sizeof(Word); ++i) {
    out += static_cast<char>((word >> (8 * i)) & 0xffU);
  }
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7U) out += static_cast<char>((value & 0x7fU) | 0x80U);
  out += static_cast<char>(value);
}

// Wire types of protobuf.
enum class Wire : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_key(std::string& out, unsigned field, Wire wire) {
  put_varint(out, (field << 3U) | static_cast<unsigned>(wire));
}

void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event_at(std::int64_t step) {
  std::string event;
  put_key(event, 1, Wire::fixed64);
  put_word(event, std::bit_cast<std::uint64_t>(now()));
  put_key(event, 2, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

// TensorBoard reads the files of a folder in the order of their names, and a start voids what it
// has read until then. So a new file's name comes after every other: a number tells starts within
// one second apart, of whatever process, and a clock that was set back is not followed.
std::filesystem::path new_name(const std::filesystem::path& folder) {
  constexpr std::string_view kPrefix = "events.out.tfevents.";
  auto seconds = static_cast<std::int64_t>(now());
  int number = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(".rode")) continue;
    std::int64_t its_seconds = 0;
    int its_number = 0;
    const char* const end = name.data() + name.size();
    const auto first = std::from_chars(name.data() + kPrefix.size(), end, its_seconds);
    if (first.ec != std::errc() || first.ptr == end) continue;
    if (std::from_chars(first.ptr + 1, end, its_number).ec != std::errc()) continue;
    if (std::pair(its_seconds, its_number) < std::pair(seconds, number)) continue;
    seconds = its_seconds;
    number = its_number + 1;
  }
  return folder / fmt::format("{}{:010}.{:03}.{}.rode", kPrefix, seconds, number, ::getpid());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t value = ~0U;
  for (const char c : bytes) {
    value = (value >> 8U) ^ kTable[(value ^ static_cast<unsigned char>(c)) & 0xffU];
  }
  return ~value;
}

// A checksum over data that holds checksums would be weak: TensorFlow rotates and shifts it.
std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + kMaskDelta;
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t first_step)
    : file_(new_name(folder), 0) {
  std::string version = event_at(0);
  put_bytes(version, 3, "brain.Event:2");
  record(version);
  std::string start;
  put_key(start, 1, Wire::varint);
  put_varint(start, 1);
  std::string session = event_at(first_step);
  put_bytes(session, 7, start);
  record(session);
}

void EventFile::scalars(std::int64_t step, std::span<const std::pair<std::string, double>> values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::fixed32);
    put_word(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    put_bytes(summary, 1, value);
  }
  std::string event = event_at(step);
  put_bytes(event, 5, summary);
  record(event);
}

void EventFile::record(const std::string& event) {
  std::string bytes;
  put_word(bytes, static_cast<std::uint64_t>(event.size()));
  put_word(bytes, masked_crc32c(bytes));
  bytes += event;
  put_word(bytes, masked_crc32c(event));
  file_.append(bytes);
}

}  // namespace rode::lab
