#include "kernel.h"

#include <array>

namespace backend {
namespace {

std::array<std::atomic<int64_t>, kMostDevices> counts{};

// Properties of a tensor besides its values: conjugated, negated or known to be all zero. Operators check these bits.
const c10::DispatchKeySet kBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

at::Tensor make_tensor(c10::Storage storage, c10::DispatchKey backend, const at::Tensor& like) {
  const auto keys = c10::DispatchKeySet(backend) | (like.key_set() & kBits);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  return make_tensor(host_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
}

void follow_host_view(const at::Tensor& tensor, const at::Tensor& host) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return;
  auto& to = *tensor.unsafeGetTensorImpl();
  const auto& from = *host.unsafeGetTensorImpl();
  follow_host(tensor.storage());
  if (C10_UNLIKELY(to.sizes() != from.sizes() || to.strides() != from.strides() || to.storage_offset() != from.storage_offset())) {
    to.set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  }
}

void Kernel::launch(bool is_view) {
  if (device_ == -1) device_ = check_device(-1);
  if (C10_UNLIKELY(stranger_ != nullptr && host_tensors_ == HostTensors::kScalarsOnly)) refuse(stranger_->device());
  if (is_view) return;
  const auto stream = current_stream(device_);
  drain(device_, stream);
  activity_.start(name_, device_, stream, current_operator());
  counts[device_].fetch_add(1, std::memory_order_relaxed);
  if (C10_UNLIKELY(faults().is_active)) count_kernel_for_faults(name_);
}

void Kernel::refuse(c10::Device other) const {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", c10::Device(kDeviceType, device_), " and ",
              other, "! (when checking arguments of ", name_, ")");
  std::abort();  // unreachable
}

void Kernel::spoil(const at::Tensor& host) const {
  if (C10_LIKELY(!faults().is_active) || !(host.is_floating_point() || host.is_complex())) return;
  if (is_to_be_nan(name_)) host.fill_(std::numeric_limits<double>::quiet_NaN());
  if (is_to_be_wrong(name_) && host.numel() > 0) {
    const auto largest = host.abs().max().item<double>();
    auto last = host;
    while (last.dim() > 0) last = last.select(0, last.size(0) - 1);
    last.add_(largest > 0 ? largest : 1.0);
  }
}

at::Tensor Kernel::result(const at::Tensor& host) {
  if (!host.defined()) return host;
  TORCH_CHECK_NOT_IMPLEMENTED(host.layout() == c10::kStrided && !host.is_quantized(), name_, " returns a ", host.layout(),
                              host.is_quantized() ? " quantized" : "", " tensor, which fake_xpu does not support");
  spoil(host);
  auto* const storage = host.storage().unsafeGetStorageImpl();
  for (const auto* input : inputs_) {
    const auto* block = block_of(*input->storage().unsafeGetStorageImpl());
    if (C10_UNLIKELY(block != nullptr && block->host.unsafeGetStorageImpl() == storage)) {
      return make_tensor(input->storage(), c10::DispatchKey::PrivateUse1, host);
    }
  }
  for (const auto& [from, to] : adopted_) {
    if (from.unsafeGetStorageImpl() == storage) return make_tensor(to, c10::DispatchKey::PrivateUse1, host);
  }
  adopted_.emplace_back(host.storage(), adopt(host.storage(), device_));
  return make_tensor(adopted_.back().second, c10::DispatchKey::PrivateUse1, host);
}

int64_t kernel_count(c10::DeviceIndex device) { return counts[check_device(device)].load(); }

void reset_kernel_counts() {
  for (auto& count : counts) count = 0;
}

}  // namespace backend
