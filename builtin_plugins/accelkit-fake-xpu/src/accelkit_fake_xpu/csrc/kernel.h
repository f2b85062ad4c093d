// A kernel is an operator that computes on host views of device memory. Neither inputs nor outputs are copied.
//
// A device tensor becomes a host tensor with the same memory, the host's operator runs on it, and its result becomes a device
// tensor again: the argument itself, a view of it, or new memory that the device takes over.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "activities.h"
#include "device.h"
#include "faults.h"
#include "memory.h"
#include "streams.h"

namespace backend {

// Returns the host view of a device tensor. Any other tensor is returned unchanged.
at::Tensor host_view(const at::Tensor& tensor);

// Applies the changes that a kernel made to the shape or memory of a host view to the device tensor.
void follow_host_view(const at::Tensor& tensor, const at::Tensor& host);

// The CPU tensors that a kernel accepts.
enum class HostTensors {
  kScalarsOnly,  // 0-d tensors, as for CUDA's pointwise kernels
  kAllowed,      // all, because an argument (indices, lengths, batch sizes) must be on the CPU
};

class Kernel {
 public:
  explicit Kernel(const char* name, HostTensors host_tensors = HostTensors::kScalarsOnly) : name_(name), host_tensors_(host_tensors) { ensure_usable(); }

  // Call this for every argument before launch(). A CPU scalar may be read, but not written.
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

  // Waits until the stream has finished earlier work, and counts the kernel. Afterwards, the kernel may access device memory.
  // For an operator that only creates a view, this neither waits nor counts.
  void launch(bool is_view = false);

  c10::DeviceIndex device() const noexcept { return device_; }

  // Makes in-place results NaN or wrong if such a fault was requested.
  void spoil(const at::Tensor& host) const;

  // Returns a result of the kernel as a device tensor.
  at::Tensor result(const at::Tensor& host);

 private:
  [[noreturn]] void refuse(c10::Device other) const;

  const char* name_;
  HostTensors host_tensors_;
  c10::DeviceIndex device_ = -1;
  const at::Tensor* stranger_ = nullptr;
  c10::SmallVector<const at::Tensor*, 6> inputs_;
  c10::SmallVector<std::pair<c10::Storage, c10::Storage>, 1> adopted_;  // host, device
  Activity activity_{ActivityKind::kKernel};
  c10::impl::ExcludeDispatchKeyGuard below_{c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
};

int64_t kernel_count(c10::DeviceIndex device);
void reset_kernel_counts();

}  // namespace backend
