// Operators that cannot use the host's kernels directly: memory, views, copies, and operators that have another form on the host.
#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernel.h"
#include "pinned.h"

namespace backend {
namespace {

using at::Tensor;
using c10::IntArrayRef;

// -- memory and views -----------------------------------------------------------------------------------------------------------------

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceGuard on(std::optional<at::Device> device) { return c10::DeviceGuard({kDeviceType, check_device(device ? device->index() : -1)}); }

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided, "fake_xpu supports only strided tensors, not ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
}

// In deterministic mode, earlier contents of memory must not be visible.
Tensor filled_if_deterministic(Tensor tensor) {
  const auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) at::native::fill_empty_deterministic_(tensor);
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

Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(storage), offset, size, stride);
  auto* const impl = self.unsafeGetTensorImpl();
  if (stride.data() == nullptr) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  const size_t needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize(), offset);
  if (self.numel() > 0 && needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
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

// -- copies ---------------------------------------------------------------------------------------------------------------------------

const char* copy_name(bool is_from_device, bool is_to_device) {
  return !is_from_device ? "Memcpy HtoD" : is_to_device ? "Memcpy DtoD" : "Memcpy DtoH";
}

void copy_now(const Tensor& to, const Tensor& from) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  sleep_as_slow_copies_do();
  host_view(to).copy_(host_view(from));
}

bool is_pinned_host(const Tensor& tensor) { return tensor.device().is_cpu() && tensor.numel() > 0 && is_pinned(tensor.const_data_ptr()); }

// Copies between host and device, or between devices. As with CUDA, a non-blocking copy is queued on the current stream of the device if the
// host memory is pinned; every other copy is complete when this returns.
Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  ensure_usable();
  const bool is_from_device = source.is_privateuseone(), is_to_device = self.is_privateuseone();
  const auto device = (is_to_device ? self : source).device().index();
  const auto stream = current_stream(device);
  const char* const name = copy_name(is_from_device, is_to_device);
  if (non_blocking && ((is_to_device && is_pinned_host(source)) || (is_from_device && is_pinned_host(self)))) {
    // Views of the same memory without Python objects, because the thread of the queue may release them last.
    enqueue(device, stream, [=, to = host_view(self).detach(), from = host_view(source).detach(), caller = current_operator()] {
      Activity activity(ActivityKind::kCopy);
      activity.start(name, device, stream, caller);
      copy_now(to, from);
    });
    return self;
  }
  if (is_from_device) drain(source.device().index(), current_stream(source.device().index()));
  if (is_to_device) drain(device, stream);
  Activity activity(ActivityKind::kCopy);
  activity.start(name, device, stream, current_operator());
  copy_now(self, source);
  follow_host_view(self, host_view(self));
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  Tensor to = target;
  return copy_(to, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

// -- operators that have another form on the host ----------------------------------------------------------------------------------------

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
                   IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  Kernel kernel("aten::convolution");
  kernel.takes(input);
  kernel.takes(weight);
  if (bias) kernel.takes(*bias);
  kernel.launch();
  return kernel.result(at::convolution(host_view(input), host_view(weight), bias ? std::optional(host_view(*bias)) : std::nullopt, stride, padding,
                                       dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                                                        int64_t groups, std::array<bool, 3> mask) {
  Kernel kernel("aten::convolution_backward");
  for (const auto* tensor : {&grad, &input, &weight}) kernel.takes(*tensor);
  kernel.launch();
  const int64_t bias_size = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [input_grad, weight_grad, bias_grad] =
      at::convolution_backward(host_view(grad), host_view(input), host_view(weight), at::IntArrayRef(bias_size), stride, padding, dilation, transposed,
                               output_padding, groups, mask);
  return {kernel.result(input_grad), kernel.result(weight_grad), kernel.result(bias_grad)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("convolution_overrideable", TORCH_FN(convolution));
  library.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace
}  // namespace backend
