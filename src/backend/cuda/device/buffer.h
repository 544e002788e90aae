// SPDX-License-Identifier: Apache-2.0
// Owners of device memory, pinned host memory, streams and events.
//
// All are move-only; destructors ignore errors, because CUDA may be gone by then.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/backend.h"

namespace rode::cuda {

// Device memory. Not initialised: zero it on the stream that uses it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  // From `host`, on the stream; returns when `host` may be overwritten.
  void upload(const void* host, std::size_t bytes, cudaStream_t stream);
  void clear(cudaStream_t stream);

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Device memory with a table in it, uploaded once.
template <class T>
DeviceBuffer upload_table(const std::vector<T>& rows, cudaStream_t stream) {
  static_assert(std::is_trivially_copyable_v<T>);
  DeviceBuffer buffer(rows.size() * sizeof(T));
  buffer.upload(static_cast<const void*>(rows.data()), rows.size() * sizeof(T), stream);
  return buffer;
}

// Page-locked host memory: copies to and from it do not wait for the host.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

struct DestroyStream {
  void operator()(cudaStream_t stream) const;
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const;
};
struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const;
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using GraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

// Does not wait for the default stream. Urgent ones are served first.
Stream make_stream(bool urgent);
Event make_event();

// Makes `device` current for as long as it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;
};

// While it lives, this thread may allocate and wait although some stream is being captured: for
// calls that have nothing to do with that stream.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Uploads of a table that changes between steps, from pinned copies of it: the host fills one
// while those before are still travelling.
class TableUploads {
 public:
  TableUploads() = default;
  explicit TableUploads(std::size_t bytes);

  // The copy to fill next. Waits only where all copies are on their way.
  std::byte* next();
  // Sends it, in the order of the stream.
  void send(const DeviceBuffer& to, cudaStream_t stream);

 private:
  // A host that binds new gradients every step gets this far ahead of the device.
  static constexpr std::size_t kCopies = 4;
  struct Copy {
    PinnedBuffer memory;
    Event sent;
  };
  Copy copies_[kCopies];
  std::size_t turn_ = 0;
};

// State of the optimizer. `stream`: the backend's, which outlives its buffers.
class StateBuffer final : public Buffer {
 public:
  StateBuffer(std::size_t bytes, int device, const cudaStream_t* stream);
  // Over memory of the caller's.
  StateBuffer(void* memory, std::size_t bytes, int device, const cudaStream_t* stream)
      : data_(memory), bytes_(bytes), device_(device), stream_(stream) {}

  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }
  void upload(const void* host, std::size_t bytes) override;
  const void* host_view() const override;

 private:
  DeviceBuffer buffer_;  // empty where the memory is the caller's
  void* data_;
  std::size_t bytes_;
  int device_;
  const cudaStream_t* stream_;
  mutable std::vector<std::byte> copy_;
};

}  // namespace rode::cuda
