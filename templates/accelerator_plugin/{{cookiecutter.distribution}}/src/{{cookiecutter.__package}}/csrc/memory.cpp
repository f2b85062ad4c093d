// Nothing is cached: each tensor is an allocation of the driver. A device whose driver is slow to allocate needs a cache here, between
// allocate() and the driver; torch's documentation of CachingDeviceAllocator describes what its statistics mean then.
#include "memory.h"

#include <c10/core/DeviceGuard.h>
#include <torch/version.h>

#include "device.h"
#include "statistics.h"
#include "streams.h"

namespace backend {
namespace {

// What the DataPtr of a device storage owns.
struct Block {
  c10::DeviceIndex device;
  size_t bytes;
  void* address;
};

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  if (is_in_bad_fork()) return;  // the memory belongs to the parent process
  if (const auto status = driver_free(block->device, block->address)) return raise_late(status, "driver_free");  // the block stays counted
  auto& statistics = statistics_of(block->device);
  std::lock_guard lock(statistics.mutex);
  statistics.remove_block(block->bytes);
  statistics.report(block->address, -static_cast<int64_t>(block->bytes), block->device);
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_usable();
    const auto device = check_device(-1);
    if (bytes == 0) return {nullptr, c10::Device(kDeviceType, device)};
    auto block = std::make_unique<Block>(Block{device, bytes, nullptr});
    const auto status = driver_allocate(device, bytes, &block->address);
    auto& statistics = statistics_of(device);
    std::lock_guard lock(statistics.mutex);
    if (C10_UNLIKELY(status == DRIVER_OUT_OF_MEMORY)) {
      ++statistics.stats.num_ooms;
      TORCH_CHECK_WITH(OutOfMemoryError, false, BACKEND_NAME, " out of memory. Tried to allocate ", spell_bytes(bytes), ". ", driver_error_text());
    }
    if (C10_UNLIKELY(status != DRIVER_OK)) raise(status, "driver_allocate");
    statistics.add_block(bytes);
    void* const address = block->address;
    statistics.report(address, static_cast<int64_t>(bytes), device);
    return {address, block.release(), &free_block, c10::Device(kDeviceType, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // a bare pointer does not tell its size
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const auto device = check_device(-1);
    DRIVER_CHECK(driver_copy_on_device(current_driver_stream(device), to, from, bytes));
  }
  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // driver_free waits for all work that uses the memory
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override { return memory_stats(device); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { reset_accumulated_stats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak_stats(device); }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_info(device); }
#endif
};

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static auto* const kept = new DeviceMemory;
  return *kept;
}

void* allocate_pinned(size_t bytes) {
  void* data = nullptr;
  DRIVER_CHECK(driver_host_allocate(bytes, &data));
  return data;
}

void free_pinned(void* data) noexcept {
  if (const auto status = driver_host_free(data)) raise_late(status, "driver_host_free");
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  auto& impl = *storage.unsafeGetStorageImpl();
  const auto device = storage.device().index();
  const c10::DeviceGuard guard(storage.device());
  auto data = device_allocator().allocate(bytes);
  const auto kept = std::min(bytes, impl.nbytes());
  if (kept > 0) DRIVER_CHECK(driver_copy_on_device(current_driver_stream(device), data.mutable_get(), impl.data(), kept));
  impl.set_data_ptr_noswap(std::move(data));
  impl.set_nbytes(bytes);
}

void register_allocators() {
  c10::SetAllocator(kDeviceType, &device_allocator());
  at::setHostAllocator(kDeviceType, &pinned_allocator());
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  ensure_usable();
  size_t free = 0, total = 0;
  DRIVER_CHECK(driver_memory_info(check_device(device), &free, &total));
  return {free, total};
}

}  // namespace backend
