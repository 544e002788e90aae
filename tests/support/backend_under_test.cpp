// SPDX-License-Identifier: Apache-2.0
// The backend of this process.
#include "support/backend_under_test.h"

#include "rode/error.h"

namespace rode::test {
namespace {

struct Tested {
  Device device = Device::cpu;
  std::unique_ptr<Backend> memory;
  std::string problem;
};

// Never destroyed: buffers of static objects may outlive everything else.
Tested& tested() {
  static Tested* const only = new Tested;
  return *only;
}

}  // namespace

Device tested_device() { return tested().device; }

void set_tested_device(Device device) {
  Tested& t = tested();
  t.device = device;
  try {
    t.memory = device == Device::cuda ? make_cuda_backend({}) : make_cpu_backend({.threads = 1});
    t.memory->allocate(1);  // throws if the device exists but cannot be used
  } catch (const Error& error) {
    t.problem = error.what();
  }
}

const std::string& device_problem() { return tested().problem; }

Backend& memory_backend() {
  Tested& t = tested();
  if (t.memory == nullptr) set_tested_device(t.device);
  return *t.memory;
}

}  // namespace rode::test
