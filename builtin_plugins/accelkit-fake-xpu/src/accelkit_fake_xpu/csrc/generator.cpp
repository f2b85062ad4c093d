#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <deque>
#include <mutex>

#include "device.h"

namespace fake_xpu {
namespace {

// Kernels run on the host, so the numbers are those of the host's Mersenne twister; the state is the device's own.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device, uint64_t seed = c10::default_rng_seed_val)
      : GeneratorImpl(c10::Device(kDeviceType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(at::detail::createCPUGenerator(seed)) {}

  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device().index());
    copy->host = host.clone();
    return copy;
  }

  at::Generator host;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto* const generators = new std::deque<at::Generator>;  // a deque: references stay good
  device = check_device(device);
  std::lock_guard lock(mutex);
  while (generators->size() <= static_cast<size_t>(device)) {
    const auto index = static_cast<c10::DeviceIndex>(generators->size());
    generators->push_back(at::make_generator<Generator>(index));
  }
  return (*generators)[device];
}

at::Generator new_generator(c10::DeviceIndex device) { return at::make_generator<Generator>(check_device(device)); }

const at::Generator& host_generator(const at::Generator& generator) {
  auto* const impl = dynamic_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(impl != nullptr, "Expected a 'fake_xpu' device type for generator but found '", generator.device().type(), "'");
  return impl->host;
}

}  // namespace fake_xpu
