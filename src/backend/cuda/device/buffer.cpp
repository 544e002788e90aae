// SPDX-License-Identifier: Apache-2.0
// Allocates, copies and frees.
#include "backend/cuda/device/buffer.h"

#include <cstring>

#include "backend/cuda/device/check.h"

namespace rode::cuda {

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) RODE_CUDA_CHECK(cudaMalloc(&data_, bytes));
}

DeviceBuffer::~DeviceBuffer() { ignore(cudaFree(data_)); }

void DeviceBuffer::upload(const void* host, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  RODE_CUDA_CHECK(cudaMemcpyAsync(data_, host, bytes, cudaMemcpyHostToDevice, stream));
  // Without this the copy of pinned memory would still be reading `host`.
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
}

void DeviceBuffer::clear(cudaStream_t stream) {
  if (bytes_ > 0) RODE_CUDA_CHECK(cudaMemsetAsync(data_, 0, bytes_, stream));
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) RODE_CUDA_CHECK(cudaMallocHost(&data_, bytes));
}

PinnedBuffer::~PinnedBuffer() { ignore(cudaFreeHost(data_)); }

void DestroyStream::operator()(cudaStream_t stream) const { ignore(cudaStreamDestroy(stream)); }
void DestroyEvent::operator()(cudaEvent_t event) const { ignore(cudaEventDestroy(event)); }
void DestroyGraph::operator()(cudaGraphExec_t graph) const { ignore(cudaGraphExecDestroy(graph)); }

Stream make_stream(bool urgent) {
  int least = 0, greatest = 0;
  RODE_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  RODE_CUDA_CHECK(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  RODE_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

DeviceGuard::DeviceGuard(int device) {
  int current = -1;
  RODE_CUDA_CHECK(cudaGetDevice(&current));
  if (current == device) return;
  RODE_CUDA_CHECK(cudaSetDevice(device));
  before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) ignore(cudaSetDevice(before_));
}

RelaxedCapture::RelaxedCapture() { RODE_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_)); }

RelaxedCapture::~RelaxedCapture() { ignore(cudaThreadExchangeStreamCaptureMode(&mode_)); }

TableUploads::TableUploads(std::size_t bytes) {
  for (Copy& copy : copies_) {
    copy.memory = PinnedBuffer(bytes);
    if (bytes > 0) std::memset(copy.memory.data(), 0, bytes);
    copy.sent = make_event();
  }
}

std::byte* TableUploads::next() {
  const Copy& copy = copies_[turn_];
  RODE_CUDA_CHECK(cudaEventSynchronize(copy.sent.get()));
  return copy.memory.as<std::byte>();
}

void TableUploads::send(const DeviceBuffer& to, cudaStream_t stream) {
  const Copy& copy = copies_[turn_];
  if (to.bytes() == 0) return;
  RODE_CUDA_CHECK(
      cudaMemcpyAsync(to.data(), copy.memory.data(), to.bytes(), cudaMemcpyHostToDevice, stream));
  RODE_CUDA_CHECK(cudaEventRecord(copy.sent.get(), stream));
  turn_ = (turn_ + 1) % kCopies;
}

StateBuffer::StateBuffer(std::size_t bytes, int device, const cudaStream_t* stream)
    : buffer_(bytes > 0 ? bytes : 1),  // a pointer that is not null, as the CPU gives
      data_(buffer_.data()),
      bytes_(bytes),
      device_(device),
      stream_(stream) {
  buffer_.clear(*stream_);
}

void StateBuffer::upload(const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  const DeviceGuard guard(device_);
  RODE_CUDA_CHECK(cudaMemcpyAsync(data_, host, bytes, cudaMemcpyHostToDevice, *stream_));
  // Without this the copy of pinned memory would still be reading `host`.
  RODE_CUDA_CHECK(cudaStreamSynchronize(*stream_));
}

const void* StateBuffer::host_view() const {
  const DeviceGuard guard(device_);
  copy_.resize(bytes_);
  if (bytes_ == 0) return copy_.data();
  RODE_CUDA_CHECK(cudaMemcpyAsync(copy_.data(), data_, bytes_, cudaMemcpyDeviceToHost, *stream_));
  RODE_CUDA_CHECK(cudaStreamSynchronize(*stream_));
  return copy_.data();
}

}  // namespace rode::cuda
