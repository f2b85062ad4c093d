#include "copies.h"

#include <ATen/Functions.h>
#include <torch/library.h>

#include "device.h"
#include "memory.h"
#include "streams.h"

namespace backend {
namespace {

using at::Tensor;

c10::DeviceIndex index_of(const Tensor& tensor) { return tensor.device().index(); }
driver_stream stream_for(const Tensor& tensor) { return current_driver_stream(index_of(tensor)); }

// The number of bytes from the first element to the end of the last one.
size_t span(const Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return (last + 1) * tensor.dtype().itemsize();
}

bool has_bits(const Tensor& tensor) { return tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor(); }

// Returns whether tensors with the same values have the same bytes, so that bytes can be copied from one to the other.
bool are_alike(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && !has_bits(a) && !has_bits(b) && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense();
}

Tensor empty_on_host_like(const Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
}

bool is_pinned_host(const Tensor& tensor) { return tensor.device().is_cpu() && is_pinned(tensor.const_data_ptr()); }

// Copies from the host. A device tensor with gaps between its elements is read, changed and written back as a whole.
void copy_from_host(Tensor& self, const Tensor& source, bool non_blocking) {
  const auto stream = stream_for(self);
  if (are_alike(self, source)) {
    DRIVER_CHECK(driver_copy_to_device(stream, self.mutable_data_ptr(), source.const_data_ptr(), span(self)));
    if (!non_blocking || !is_pinned_host(source)) DRIVER_CHECK(driver_stream_synchronize(stream));
    return;
  }
  DRIVER_CHECK(driver_stream_synchronize(stream));  // a queued copy may still be writing to the source
  auto host = self.is_non_overlapping_and_dense() && !has_bits(self) ? empty_on_host_like(self) : copy_to_host(self);
  host.copy_(source);
  DRIVER_CHECK(driver_copy_to_device(stream, self.mutable_data_ptr(), host.const_data_ptr(), span(self)));
  DRIVER_CHECK(driver_stream_synchronize(stream));  // `host` is freed when this returns
}

void copy_from_device_to_host(Tensor& self, const Tensor& source, bool non_blocking) {
  if (!are_alike(self, source)) {
    self.copy_(copy_to_host(source));
    return;
  }
  const auto stream = stream_for(source);
  DRIVER_CHECK(driver_copy_to_host(stream, self.mutable_data_ptr(), source.const_data_ptr(), span(source)));
  if (!non_blocking || !is_pinned_host(self)) DRIVER_CHECK(driver_stream_synchronize(stream));
}

// An example of a kernel with a variable number of arguments.
bool copy_strided(Tensor& self, const Tensor& source) {
  if (self.dtype() != source.dtype() || has_bits(self) || has_bits(source)) return false;
  std::vector<driver_argument> arguments(4);
  arguments[0] = {driver_argument::DRIVER_ADDRESS, {.address = self.mutable_data_ptr()}};
  arguments[1] = {driver_argument::DRIVER_ADDRESS, {.address = const_cast<void*>(source.const_data_ptr())}};
  arguments[2] = {driver_argument::DRIVER_INTEGER, {.integer = static_cast<int64_t>(self.dtype().itemsize())}};
  arguments[3] = {driver_argument::DRIVER_INTEGER, {.integer = self.dim()}};
  for (const auto& numbers : {self.sizes(), self.strides(), source.strides()}) {
    for (const int64_t number : numbers) arguments.push_back({driver_argument::DRIVER_INTEGER, {.integer = number}});
  }
  const auto status = driver_launch(stream_for(self), "copy_strided", arguments.data(), static_cast<int>(arguments.size()));
  if (status == DRIVER_NOT_IMPLEMENTED) return false;
  if (status != DRIVER_OK) raise(status, "driver_launch");
  return true;
}

void copy_between_devices(Tensor& self, const Tensor& source) {
  if (index_of(self) == index_of(source)) {
    if (are_alike(self, source)) {
      DRIVER_CHECK(driver_copy_on_device(stream_for(self), self.mutable_data_ptr(), source.const_data_ptr(), span(self)));
    } else if (!copy_strided(self, source)) {
      copy_from_host(self, copy_to_host(source), false);
    }
    return;
  }
  DRIVER_CHECK(driver_stream_synchronize(stream_for(self)));  // wait for work that uses the memory
  if (!are_alike(self, source)) return copy_from_host(self, copy_to_host(source), false);
  DRIVER_CHECK(driver_copy_to_peer(stream_for(source), index_of(self), self.mutable_data_ptr(), source.const_data_ptr(), span(self)));
  DRIVER_CHECK(driver_stream_synchronize(stream_for(source)));
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  Tensor to = target;
  return copy_(to, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  if (self.sizes() != target.sizes()) {
    target.resize_(self.sizes());
    if (self.is_non_overlapping_and_dense()) target.as_strided_(self.sizes(), self.strides());  // keep the layout of the CPU's result
  }
  return copy_from(self, target, false);
}

}  // namespace

Tensor copy_to_host(const Tensor& tensor) {
  auto host = empty_on_host_like(tensor);
  if (tensor._is_zerotensor()) return host.zero_();
  if (tensor.numel() > 0) {
    const auto stream = stream_for(tensor);
    DRIVER_CHECK(driver_copy_to_host(stream, host.mutable_data_ptr(), tensor.const_data_ptr(), span(tensor)));
    DRIVER_CHECK(driver_stream_synchronize(stream));
  }
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

// As with CUDA, a non-blocking copy from or to pinned memory is queued on the current stream; every other copy to or from the host is
// complete when this returns.
Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  ensure_usable();
  const auto from = source.sizes() == self.sizes() ? source : source.expand(self.sizes());
  if (self.numel() == 0 || self.is_same(source)) return self;
  if (!self.is_privateuseone()) {
    copy_from_device_to_host(self, from, non_blocking);
  } else if (!from.is_privateuseone()) {
    copy_from_host(self, from, non_blocking);
  } else {
    copy_between_devices(self, from);
  }
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("copy_", TORCH_FN(copy_));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
}

}  // namespace backend
