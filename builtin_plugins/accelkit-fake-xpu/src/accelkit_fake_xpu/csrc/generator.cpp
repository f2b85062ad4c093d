#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <ATen/core/Tensor.h>

#include <deque>
#include <mutex>

#include "device.h"

namespace backend {
namespace {

constexpr uint64_t kOffsetsPerKernel = 4;  // offsets are multiples of 4, as in CUDA

// Random numbers depend only on seed and offset: each kernel uses its own host generator, and advances the offset. The state has the layout of
// CUDA's state, 8 bytes of seed and 8 bytes of offset, which DTensor requires.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device, uint64_t seed = c10::default_rng_seed_val)
      : GeneratorImpl(c10::Device(kDeviceType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), seed_(seed) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % kOffsetsPerKernel == 0, "offset must be a multiple of 4");
    offset_ = offset;
  }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == sizeof(seed_) + sizeof(offset_), "RNG state is wrong size: ", state.numel(), " bytes, not 16");
    const auto* const bytes = static_cast<const char*>(state.data());
    uint64_t offset;
    std::memcpy(&seed_, bytes, sizeof(seed_));
    std::memcpy(&offset, bytes + sizeof(seed_), sizeof(offset));
    set_offset(offset);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({sizeof(seed_) + sizeof(offset_)}, at::kByte);
    auto* const bytes = state.mutable_data_ptr<uint8_t>();
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device().index(), seed_);
    copy->offset_ = offset_;
    return copy;
  }

  at::Generator draw() {
    const uint64_t offset = std::exchange(offset_, offset_ + kOffsetsPerKernel);
    return at::detail::createCPUGenerator(offset == 0 ? seed_ : mixed(seed_ + offset * 0x9E3779B97F4A7C15));
  }

 private:
  // The finalizer of SplitMix64 (Steele, Lea and Flood 2014), which maps neighbouring offsets to unrelated seeds.
  static uint64_t mixed(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
  }

  uint64_t seed_, offset_ = 0;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto* const generators = new std::deque<at::Generator>;  // a deque keeps references valid
  device = check_device(device);
  std::lock_guard lock(mutex);
  while (generators->size() <= static_cast<size_t>(device)) {
    const auto index = static_cast<c10::DeviceIndex>(generators->size());
    generators->push_back(at::make_generator<Generator>(index));
  }
  return (*generators)[device];
}

at::Generator new_generator(c10::DeviceIndex device) { return at::make_generator<Generator>(check_device(device)); }

at::Generator host_generator(const at::Generator& generator) {
  auto* const impl = dynamic_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(impl != nullptr, "Expected a '" BACKEND_NAME "' device type for generator but found '", generator.device().type(), "'");
  std::lock_guard lock(impl->mutex_);
  return impl->draw();
}

}  // namespace backend
