// SPDX-License-Identifier: Apache-2.0
// Seeded random mutations of an input, for compilers without libFuzzer.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace fuzz {

class Mutator {
 public:
  Mutator(std::uint64_t seed, std::vector<std::string> corpus);

  // A mutation of a random corpus member; the same seed gives the same sequence everywhere.
  std::string next();

 private:
  // Uniform enough in [0, bound); std::uniform_int_distribution differs between libraries.
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : engine_() % bound; }
  const std::string& member() { return corpus_[below(corpus_.size())]; }
  std::size_t position(const std::string& input);

  void mutate_once(std::string& input);
  void flip_bit(std::string& input);
  void replace_byte(std::string& input);
  void insert_bytes(std::string& input);
  void erase_bytes(std::string& input);
  void repeat_block(std::string& input);
  void splice(std::string& input);
  void patch_integer(std::string& input);
  void patch_number_text(std::string& input);
  void patch_header_length(std::string& input);
  void swap_token(std::string& input);

  std::mt19937_64 engine_;
  std::vector<std::string> corpus_;  // the seeds, then a bounded pool of earlier results
  std::size_t seeds_ = 0;
};

}  // namespace fuzz
