// Operators that cannot fall back to the CPU: they create tensors and views, or have another form on the CPU.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "copies.h"
#include "device.h"
#include "memory.h"

namespace backend {
namespace {

using at::Tensor;
using c10::IntArrayRef;

// -- memory ---------------------------------------------------------------------------------------------------------------------------

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceGuard on(std::optional<at::Device> device) { return c10::DeviceGuard({kDeviceType, check_device(device ? device->index() : -1)}); }

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided, BACKEND_NAME, " supports only strided tensors, not ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
}

// In deterministic mode, earlier contents of memory must not be visible.
bool must_fill() { return at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory(); }

Tensor filled_if_deterministic(Tensor tensor) {
  if (C10_UNLIKELY(must_fill())) at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, std::optional<at::Device> device,
             std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  const auto guard = on(device);
  return filled_if_deterministic(at::detail::empty_generic(size, &device_allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const auto guard = on(device);
  return filled_if_deterministic(at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys, c10::dtype_or_default(dtype)));
}

void grow_storage(const Tensor& self) {
  auto* const impl = self.unsafeGetTensorImpl();
  const auto bytes = at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), self.dtype().itemsize(), impl->storage_offset());
  if (impl->numel() > 0 && bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const auto before = self.storage().nbytes();
  if (self.sizes() != size) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    grow_storage(self);
  }
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  if (C10_UNLIKELY(must_fill()) && self.storage().nbytes() > before) at::native::fill_resize_deterministic_(self, before);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(storage), offset, size, stride);
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  grow_storage(self);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(storage), 0, {count}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) { return set_tensor(self, at::empty({0}, self.options())); }

void record_stream(Tensor& self, c10::Stream stream) { device_allocator().recordStream(self.storage().data_ptr(), stream); }

// -- operators that have another form on the host ----------------------------------------------------------------------------------------

Tensor back(const Tensor& host, const Tensor& like) { return host.defined() ? host.to(like.device()) : host; }

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
                   IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  const auto host_bias = bias && bias->defined() ? std::optional(copy_to_host(*bias)) : std::nullopt;
  return back(at::convolution(copy_to_host(input), copy_to_host(weight), host_bias, stride, padding, dilation, transposed, output_padding, groups),
              input);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                                                        int64_t groups, std::array<bool, 3> mask) {
  const int64_t bias_size = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [input_grad, weight_grad, bias_grad] =
      at::convolution_backward(copy_to_host(grad), copy_to_host(input), copy_to_host(weight), at::IntArrayRef(bias_size), stride, padding, dilation,
                               transposed, output_padding, groups, mask);
  return {back(input_grad, input), back(weight_grad, input), back(bias_grad, input)};
}

// The schema does not say that the running statistics are written, so the fallback would not copy them back.
std::tuple<Tensor, Tensor, Tensor> native_batch_norm(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                                                     const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var, bool training,
                                                     double momentum, double eps) {
  if (!running_mean || !running_mean->defined()) return at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
  auto mean = *running_mean, var = *running_var;
  return at::_native_batch_norm_legit(input, weight, bias, mean, var, training, momentum, eps);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("is_set_to", TORCH_FN(at::native::is_set_to));  // true for tensors that share memory, which their copies on the CPU do not
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("convolution_overrideable", TORCH_FN(convolution));
  library.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  library.impl("native_batch_norm", TORCH_FN(native_batch_norm));
}

}  // namespace
}  // namespace backend
