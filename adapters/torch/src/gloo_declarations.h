// SPDX-License-Identifier: Apache-2.0
// The names of gloo that c10d's ProcessGroupGloo.hpp mentions, for packages of LibTorch that
// contain gloo but not its headers. Declarations alone: our files only hold pointers to these
// types, make the group and call it through c10d::Backend, so that nothing here is laid out or
// called.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

}  // namespace gloo
