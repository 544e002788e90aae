// SPDX-License-Identifier: Apache-2.0
// What names and shapes of parameters tell about a model, and the route that it takes by itself.
#pragma once

#include <cstddef>
#include <string_view>

#include "rode/routing.h"
#include "rode/tensor_view.h"

namespace rode {

// The component of a dotted name that marks an embedding or a head; empty if none does.
inline std::string_view vocabulary_component(std::string_view name) {
  while (!name.empty()) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    if (part.starts_with("emb") || part.starts_with("unembed") || part == "wte" || part == "wpe" ||
        part == "lm_head" || part == "head" || part == "output") {
      return part;
    }
    if (dot == std::string_view::npos) break;
    name.remove_prefix(dot + 1);
  }
  return {};
}

inline bool is_embedding_name(std::string_view name) {
  const std::string_view part = vocabulary_component(name);
  return part.starts_with("emb") || part == "wte" || part == "wpe";
}

// Whether f holds for a component of a dotted name.
template <class F>
bool any_component(std::string_view name, F&& f) {
  while (true) {
    const std::size_t dot = name.find('.');
    if (f(name.substr(0, dot))) return true;
    if (dot == std::string_view::npos) return false;
    name.remove_prefix(dot + 1);
  }
}

inline bool is_lora_name(std::string_view name) {
  return any_component(name, [](std::string_view part) { return part.starts_with("lora_"); });
}

// What decides the automatic route.
struct Signs {
  bool lora = false, embedding = false, convolution = false;

  // A tensor whose module is not known.
  void add(std::string_view name, const Shape& shape, Role role) {
    lora = lora || (shape.rank() == 2 && is_lora_name(name));
    embedding = embedding || role == Role::embedding ||
                (role == Role::by_name && shape.rank() == 2 && is_embedding_name(name));
    convolution = convolution || shape.rank() >= 4;
  }

  RouteChoice choose(Route route) const {
    if (route != Route::automatic) return {route, {}};
    if (lora) return {Route::lora, "it has tensors named lora_*"};
    if (embedding) return {Route::language, "it has an embedding"};
    if (convolution) return {Route::vision, "it has convolutions and no embedding"};
    return {Route::language, "it has neither an embedding nor convolutions"};
  }
};

}  // namespace rode
