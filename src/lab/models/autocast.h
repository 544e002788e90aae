// SPDX-License-Identifier: Apache-2.0
// Autocast as it stands on a device type, to be put back or set for a scope.
#pragma once

#include <ATen/autocast_mode.h>

namespace rode::lab {

struct AutocastState {
  bool enabled = false;
  at::ScalarType dtype = at::kFloat;

  static AutocastState of(at::DeviceType device) {
    return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  }
};

// Autocast's cache of cast weights. One from a pass without gradients must not serve a later pass
// with them, and whether torch sees to that depends on its version.
enum class CastCache {
  none,  // a part of a pass
  own,   // a whole pass: the cache ends with the scope, because the weights move after it
};

class AutocastScope {
 public:
  AutocastScope(at::DeviceType device, AutocastState state, CastCache cache = CastCache::none)
      : device_(device),
        cache_(cache),
        before_(AutocastState::of(device)),
        cached_(at::autocast::is_autocast_cache_enabled()) {
    set(state, cache == CastCache::own);
  }
  ~AutocastScope() {
    if (cache_ == CastCache::own) at::autocast::clear_cache();
    set(before_, cached_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void set(AutocastState state, bool cached) const {
    at::autocast::set_autocast_enabled(device_, state.enabled);
    at::autocast::set_autocast_dtype(device_, state.dtype);
    at::autocast::set_autocast_cache_enabled(cached);
  }

  at::DeviceType device_;
  CastCache cache_;
  AutocastState before_;
  bool cached_;
};

}  // namespace rode::lab
