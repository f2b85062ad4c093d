// A kernel: an operator that computes on the host's view of device memory. Nothing is copied on the way in or out.
//
// A device tensor becomes a host tensor on the same memory, the host's operator runs on it, and what it returns becomes a device
// tensor again: the argument itself, a view of it, or new memory that the device takes over.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "device.h"
#include "faults.h"
#include "memory.h"
#include "streams.h"

namespace fake_xpu {

// The host's view of a device tensor; any other tensor as it is.
at::Tensor host_view(const at::Tensor& tensor);

// What a kernel did to a tensor's shape or memory through its host view.
void follow_host_view(const at::Tensor& tensor, const at::Tensor& host);

// How a kernel treats tensors that are on the CPU.
enum class HostTensors {
  kScalarsOnly,  // 0-d, as CUDA's pointwise kernels
  kAllowed,      // some argument belongs there: indices, lengths, batch sizes
};

class Kernel {
 public:
  explicit Kernel(const char* name, HostTensors host_tensors = HostTensors::kScalarsOnly) : name_(name), host_tensors_(host_tensors) { ensure_usable(); }

  // To be called for every argument before launch(). A scalar of the CPU's may be read, never written.
  void takes(const at::Tensor& tensor, bool is_written = false) {
    if (!tensor.defined()) return;
    if (C10_LIKELY(tensor.is_privateuseone())) {
      takes_device(tensor.device().index());
      inputs_.push_back(&tensor);
    } else if (tensor.dim() > 0 || is_written || tensor.device().type() != c10::kCPU) {
      stranger_ = &tensor;
    }
  }
  void takes_device(c10::DeviceIndex device) {
    if (device_ == -1) device_ = device;
    if (C10_UNLIKELY(device_ != device)) refuse(c10::Device(kDeviceType, device));
  }

  // Waits for the stream's turn and counts. From here on the kernel may touch device memory.
  // An operator that only looks at memory in another shape does neither.
  void launch(bool is_view = false);

  c10::DeviceIndex device() const noexcept { return device_; }

  // For what the kernel wrote in place: NaN, if that fault was asked for.
  void spoil(const at::Tensor& host) const;

  // What the kernel returned, on the device.
  at::Tensor result(const at::Tensor& host);

 private:
  [[noreturn]] void refuse(c10::Device other) const;

  const char* name_;
  HostTensors host_tensors_;
  c10::DeviceIndex device_ = -1;
  const at::Tensor* stranger_ = nullptr;
  c10::SmallVector<const at::Tensor*, 6> inputs_;
  c10::SmallVector<std::pair<c10::Storage, c10::Storage>, 1> adopted_;  // host, device
  c10::impl::ExcludeDispatchKeyGuard below_{c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
};

int64_t kernel_count(c10::DeviceIndex device);
void reset_kernel_counts();

}  // namespace fake_xpu
