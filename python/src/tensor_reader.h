// SPDX-License-Identifier: Apache-2.0
// Reads address, shape and type of a torch tensor without any of torch's headers.
//
// Newer PyTorch (2.10) offers DLPack's exchange table: plain C functions, 20 ns per tensor. Before
// that, the tensor's own methods are called.
#pragma once

#include <cstdint>

#include <nanobind/nanobind.h>

#include "rode/dtype.h"
#include "rode/tensor_view.h"

namespace rode::python {

struct TensorInfo {
  std::uintptr_t address = 0;
  DType dtype = DType::f32;
  // Dense, contiguous, f32 or bf16; only then are the other fields set.
  bool plain = false;
  // Device kind and number as DLPack counts them; 0 where not read.
  std::int64_t device = 0;
};

struct DlpackExchange;

class TensorReader {
 public:
  // `exchange`: torch.Tensor.__dlpack_c_exchange_api__, or None.
  TensorReader(nanobind::object exchange, nanobind::object float32, nanobind::object bfloat16);

  // What the tensor is; plain only where its shape is `shape`.
  TensorInfo read(nanobind::handle tensor, const Shape& shape) const;
  // Whether a move to another device shows.
  bool reads_device() const { return table_ != nullptr; }

 private:
  TensorInfo read_table(nanobind::handle tensor, const Shape& shape) const;
  TensorInfo read_methods(nanobind::handle tensor, const Shape& shape) const;

  nanobind::object exchange_;
  const DlpackExchange* table_ = nullptr;
  nanobind::object float32_, bfloat16_;
  nanobind::object data_ptr_, is_contiguous_, dtype_, shape_;  // names of attributes
};

}  // namespace rode::python
