// Operators that the device computes itself: a function for each, and a line of registration. What is not here runs on the CPU
// (fallback.cpp). `accelkit conformance run` tests each as soon as it is registered.
#include <ATen/Functions.h>
#include <torch/library.h>

#include "device.h"
#include "fallback.h"

namespace backend {
namespace {

using at::Tensor;

driver_argument address(const Tensor& tensor) { return {driver_argument::DRIVER_ADDRESS, {.address = const_cast<void*>(tensor.const_data_ptr())}}; }
driver_argument integer(int64_t value) { return {driver_argument::DRIVER_INTEGER, {.integer = value}}; }
driver_argument real(double value) { return {driver_argument::DRIVER_REAL, {.real = value}}; }

template <size_t kCount>
void launch(const Tensor& on, const char* kernel, const driver_argument (&arguments)[kCount]) {
  DRIVER_CHECK(driver_launch(current_driver_stream(on.device().index()), kernel, arguments, kCount));
}

// Whether a kernel for contiguous float32 tensors on one device can take it.
bool is_plain(const Tensor& tensor, const Tensor& other) {
  return tensor.is_privateuseone() && tensor.device() == other.device() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
         !tensor.is_neg() && !tensor._is_zerotensor();
}

Tensor add(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  if (!is_plain(self, self) || !is_plain(other, self) || self.sizes() != other.sizes() || alpha.isComplex()) {
    return on_host<at::_ops::add_Tensor>(self, other, alpha);
  }
  auto out = at::empty_like(self);
  if (out.numel() > 0) launch(out, "add_float32", {address(out), address(self), address(other), real(alpha.toDouble()), integer(out.numel())});
  return out;
}

Tensor mm(const Tensor& self, const Tensor& other) {
  if (self.dim() != 2 || other.dim() != 2 || self.size(1) != other.size(0) || !is_plain(self, self) || !is_plain(other, self)) {
    return on_host<at::_ops::mm>(self, other);
  }
  auto out = at::empty({self.size(0), other.size(1)}, self.options());
  if (out.numel() == 0) return out;
  if (self.size(1) == 0) return out.zero_();
  launch(out, "matmul_float32", {address(out), address(self), address(other), integer(self.size(0)), integer(self.size(1)), integer(other.size(1))});
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("add.Tensor", TORCH_FN(add));
  library.impl("mm", TORCH_FN(mm));
}

}  // namespace
}  // namespace backend
