// SPDX-License-Identifier: Apache-2.0
// DLPack's C layout, and the same through attributes.
#include "tensor_reader.h"

#include <utility>

namespace nb = nanobind;

namespace rode::python {

// The layouts of DLPack 1.2, which its major version keeps. Written here because the packages of
// distributions are older than the exchange table: Debian 12's libdlpack-dev is DLPack 0.6.
struct DlpackTensor {
  void* data;
  struct {
    std::int32_t type, id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DlpackExchange {
  std::uint32_t major, minor;
  DlpackExchange* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_object;
  void* managed_tensor_to_object;
  int (*tensor_from_object)(void* object, DlpackTensor* out);
  void* current_work_stream;
};

namespace {

constexpr std::uint32_t kMajor = 1;
constexpr std::uint8_t kFloat = 2, kBfloat = 4;

bool contiguous(const DlpackTensor& t) {
  if (t.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t i = t.ndim; i-- > 0;) {
    if (t.shape[i] == 0) return true;
    if (t.shape[i] != 1 && t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}

bool same_shape(const DlpackTensor& t, const Shape& shape) {
  if (t.ndim != shape.rank()) return false;
  for (std::int32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] != shape[i]) return false;
  }
  return true;
}

// The same of a torch.Size, which is a tuple.
bool same_extents(PyObject* extents, const Shape& shape) {
  if (!PyTuple_Check(extents) || PyTuple_GET_SIZE(extents) != shape.rank()) return false;
  for (int i = 0; i < shape.rank(); ++i) {
    if (PyLong_AsLongLong(PyTuple_GET_ITEM(extents, i)) != shape[i]) return false;
  }
  return true;
}

}  // namespace

TensorReader::TensorReader(nb::object exchange, nb::object float32, nb::object bfloat16)
    : exchange_(std::move(exchange)),
      float32_(std::move(float32)),
      bfloat16_(std::move(bfloat16)),
      data_ptr_(nb::str("data_ptr")),
      is_contiguous_(nb::str("is_contiguous")),
      dtype_(nb::str("dtype")),
      shape_(nb::str("shape")) {
  if (exchange_.is_none()) return;
  const auto* table = static_cast<const DlpackExchange*>(
      PyCapsule_GetPointer(exchange_.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) {
    PyErr_Clear();
    return;
  }
  while (table != nullptr && table->major != kMajor) table = table->previous;
  if (table != nullptr && table->tensor_from_object != nullptr) table_ = table;
}

TensorInfo TensorReader::read(nb::handle tensor, const Shape& shape) const {
  const TensorInfo info =
      table_ != nullptr ? read_table(tensor, shape) : read_methods(tensor, shape);
  if (!info.plain) PyErr_Clear();  // sparse, or a tensor only by name
  return info;
}

TensorInfo TensorReader::read_table(nb::handle tensor, const Shape& shape) const {
  DlpackTensor t{};
  if (table_->tensor_from_object(tensor.ptr(), &t) != 0) return {};
  const bool f32 = t.dtype.code == kFloat && t.dtype.bits == 32;
  const bool bf16 = t.dtype.code == kBfloat && t.dtype.bits == 16;
  if (t.dtype.lanes != 1 || !(f32 || bf16) || !same_shape(t, shape) || !contiguous(t)) return {};
  const auto address =
      t.data == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(t.data) + t.byte_offset;
  return {address, f32 ? DType::f32 : DType::bf16, true,
          (std::int64_t{t.device.type} << 32) + t.device.id};
}

TensorInfo TensorReader::read_methods(nb::handle tensor, const Shape& shape) const {
  const nb::object dtype = nb::steal(PyObject_GetAttr(tensor.ptr(), dtype_.ptr()));
  if (!dtype.is_valid() || !(dtype.is(float32_) || dtype.is(bfloat16_))) return {};
  const nb::object extents = nb::steal(PyObject_GetAttr(tensor.ptr(), shape_.ptr()));
  if (!extents.is_valid() || !same_extents(extents.ptr(), shape)) return {};
  const nb::object flat = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), is_contiguous_.ptr()));
  if (!flat.is_valid() || flat.ptr() != Py_True) return {};
  const nb::object address = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), data_ptr_.ptr()));
  if (!address.is_valid()) return {};
  return {static_cast<std::uintptr_t>(PyLong_AsUnsignedLongLong(address.ptr())),
          dtype.is(float32_) ? DType::f32 : DType::bf16, true, 0};
}

}  // namespace rode::python
