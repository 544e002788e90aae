// SPDX-License-Identifier: Apache-2.0
// Which of a fixed number of places holds the latest entries: the newest takes the oldest's.
#pragma once

#include <algorithm>
#include <cstddef>

namespace rode {

class Ring {
 public:
  explicit Ring(std::size_t places = 0) : places_(places) {}

  std::size_t places() const { return places_; }
  std::size_t size() const { return std::min(written_, places_); }
  // The place of the next entry. There must be one.
  std::size_t push() { return written_++ % places_; }
  // That of entry i, the oldest that is left first; i < size().
  std::size_t at(std::size_t i) const { return (written_ - size() + i) % places_; }
  void clear() { written_ = 0; }

 private:
  std::size_t places_;
  std::size_t written_ = 0;
};

}  // namespace rode
