// Operators that are not simply the host's: memory, views, copies, and what the host has in another form.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "kernel.h"

namespace fake_xpu {
namespace {

using at::Tensor;
using c10::IntArrayRef;

// -- memory and views -----------------------------------------------------------------------------------------------------------------

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceGuard on(std::optional<at::Device> device) { return c10::DeviceGuard({kDeviceType, check_device(device ? device->index() : -1)}); }

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided, "fake_xpu has strided tensors only, not ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
}

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, std::optional<at::Device> device,
             std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  const auto guard = on(device);
  return at::detail::empty_generic(size, &device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const auto guard = on(device);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys, c10::dtype_or_default(dtype));
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

void copy_now(const Tensor& to, const Tensor& from) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  sleep_as_slow_copies_do();
  host_view(to).copy_(host_view(from));
}

bool is_pinned_host(const Tensor& tensor) { return tensor.device().is_cpu() && tensor.numel() > 0 && is_pinned(tensor.const_data_ptr()); }

// Between host and device, or between devices. What does not block is queued on the current stream of the device if the host's side is
// pinned; everything else has happened when this returns. (CUDA's rules.)
Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  ensure_usable();
  const bool is_from_device = source.is_privateuseone(), is_to_device = self.is_privateuseone();
  const auto device = (is_to_device ? self : source).device().index();
  if (non_blocking && ((is_to_device && is_pinned_host(source)) || (is_from_device && is_pinned_host(self)))) {
    // Views of the same memory that no Python object knows: the queue's thread may be the last to let go of them.
    enqueue(device, current_stream(device), [to = host_view(self).detach(), from = host_view(source).detach()] { copy_now(to, from); });
    return self;
  }
  if (is_from_device) drain(source.device().index(), current_stream(source.device().index()));
  if (is_to_device) drain(device, current_stream(device));
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

// -- what the host has in another form -------------------------------------------------------------------------------------------------

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
                   IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  Kernel kernel("aten::convolution", HostTensors::kScalarsOnly);
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
  Kernel kernel("aten::convolution_backward", HostTensors::kScalarsOnly);
  for (const auto* tensor : {&grad, &input, &weight}) kernel.takes(*tensor);
  kernel.launch();
  const int64_t bias_size = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [input_grad, weight_grad, bias_grad] =
      at::convolution_backward(host_view(grad), host_view(input), host_view(weight), at::IntArrayRef(bias_size), stride, padding, dilation, transposed,
                               output_padding, groups, mask);
  return {kernel.result(input_grad), kernel.result(weight_grad), kernel.result(bias_grad)};
}

// The cells of recurrent layers, fused as on CUDA: torch asks a device like this one for no others. (Formulas: torch.nn.LSTMCell, torch.nn.GRUCell.)

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) { return bias && bias->defined() ? gates + *bias : gates; }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const auto in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(), out = gates[3].sigmoid();
  const auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy, const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const auto &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const auto hy = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  const auto tanh_cy = cy.tanh();
  auto to_cy = hy * out * (1 - tanh_cy * tanh_cy);
  if (grad_cy && grad_cy->defined()) to_cy = to_cy + *grad_cy;
  const auto grad_gates = at::cat({to_cy * cell * in * (1 - in), to_cy * cx * forget * (1 - forget), to_cy * in * (1 - cell * cell),
                                   hy * tanh_cy * out * (1 - out)},
                                  1);
  return {grad_gates, to_cy * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1), from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (from_input[0] + from_hidden[0]).sigmoid(), update = (from_input[1] + from_hidden[1]).sigmoid();
  const auto fresh = (from_input[2] + reset * from_hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &from_hidden = parts[4];
  const auto to_update = grad_hy * (hx - fresh) * (1 - update) * update, to_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const auto to_reset = to_fresh * from_hidden * (1 - reset) * reset;
  const auto grad_input = at::cat({to_reset, to_update, to_fresh}, 1), grad_hidden = at::cat({to_reset, to_update, to_fresh * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, has_bias ? grad_input.sum(0) : Tensor(), has_bias ? grad_hidden.sum(0) : Tensor()};
}

// The host's kernel draws from the host's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0 || !train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0 : 1 / (1 - p)), mask};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(at::native::view));
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
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
  library.impl("native_dropout", TORCH_FN(native_dropout));
}

}  // namespace
}  // namespace fake_xpu
