// Nothing is cached: each tensor is an allocation of the driver. A device whose driver is slow to allocate needs a cache here, between
// allocate() and the driver; torch's documentation of CachingDeviceAllocator describes what its statistics mean then.
#include "memory.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/version.h>

#include <array>
#include <map>
#include <mutex>

#include "device.h"

namespace backend {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

struct Ledger {
  std::mutex mutex;
  DeviceStats stats;
};

Ledger& ledger(c10::DeviceIndex device) {
  static auto* const ledgers = new std::array<Ledger, kMostDevices>;
  return (*ledgers)[device];
}

// These statistics are equal, because nothing is cached.
std::array<c10::CachingAllocator::Stat*, 4> byte_stats(DeviceStats& stats) {
  return {&stats.allocated_bytes[kAll], &stats.requested_bytes[kAll], &stats.active_bytes[kAll], &stats.reserved_bytes[kAll]};
}

// What the DataPtr of a device storage owns.
struct Block {
  c10::DeviceIndex device;
  size_t bytes;
  void* address;
};

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  if (is_in_bad_fork()) return;  // the memory belongs to the parent process
  if (driver_free(block->device, block->address) != DRIVER_OK) {
    TORCH_WARN_ONCE("memory of " BACKEND_NAME " was not freed: ", driver_error_text());
    return;  // it stays counted
  }
  auto& [mutex, stats] = ledger(block->device);
  std::lock_guard lock(mutex);
  for (auto* stat : byte_stats(stats)) stat->decrease(block->bytes);
  stats.allocation[kAll].decrease(1);
  ++stats.num_device_free;
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_usable();
    const auto device = check_device(-1);
    if (bytes == 0) return {nullptr, c10::Device(kDeviceType, device)};
    auto block = std::make_unique<Block>(Block{device, bytes, nullptr});
    const auto status = driver_allocate(device, bytes, &block->address);
    auto& [mutex, stats] = ledger(device);
    std::lock_guard lock(mutex);
    if (C10_UNLIKELY(status == DRIVER_OUT_OF_MEMORY)) {
      ++stats.num_ooms;
      TORCH_CHECK_WITH(OutOfMemoryError, false, BACKEND_NAME, " out of memory. Tried to allocate ", spell(bytes), ". ", driver_error_text());
    }
    if (C10_UNLIKELY(status != DRIVER_OK)) raise(status, "driver_allocate");
    for (auto* stat : byte_stats(stats)) stat->increase(bytes);
    stats.allocation[kAll].increase(1);
    ++stats.num_device_alloc;
    void* const address = block->address;
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
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    auto& [mutex, stats] = ledger(check_device(device));
    std::lock_guard lock(mutex);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_info(device); }
#endif

 private:
  static std::string spell(double bytes) {
    const char* unit = "bytes";
    for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
      if (bytes < 1024) break;
      bytes /= 1024;
      unit = next;
    }
    char text[32];
    std::snprintf(text, sizeof(text), "%.2f %s", bytes, unit);
    return text;
  }

  template <class Do>
  void each_stat(c10::DeviceIndex device, Do reset) {
    auto& [mutex, stats] = ledger(check_device(device));
    std::lock_guard lock(mutex);
    for (auto* stat : byte_stats(stats)) reset(*stat);
    reset(stats.allocation[kAll]);
  }
};

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_usable();
    if (bytes == 0) return {nullptr, c10::kCPU};
    void* data = nullptr;
    DRIVER_CHECK(driver_host_allocate(bytes, &data));
    std::lock_guard lock(mutex_);
    blocks_[static_cast<char*>(data)] = bytes;
    stats_.allocated_bytes.increase(bytes);
    ++stats_.num_host_alloc;
    return {data, data, &free, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }  // driver_host_free waits for all work that uses the memory
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(mutex_);
    stats_.allocated_bytes.reset_accumulated();
    stats_.num_host_alloc = stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard lock(mutex_);
    stats_.allocated_bytes.reset_peak();
  }
  bool contains(const void* data) {
    std::lock_guard lock(mutex_);
    const auto after = blocks_.upper_bound(static_cast<char*>(const_cast<void*>(data)));
    if (after == blocks_.begin()) return false;
    const auto& [start, bytes] = *std::prev(after);
    return static_cast<const char*>(data) < start + bytes;
  }

 private:
  static void free(void* data);

  std::mutex mutex_;
  std::map<char*, size_t> blocks_;
  at::HostStats stats_;
};

PinnedMemory& pinned() {
  static auto* const kept = new PinnedMemory;
  return *kept;
}

void PinnedMemory::free(void* data) {
  if (is_in_bad_fork()) return;
  {
    auto& self = pinned();
    std::lock_guard lock(self.mutex_);
    const auto block = self.blocks_.find(static_cast<char*>(data));
    self.stats_.allocated_bytes.decrease(block->second);
    ++self.stats_.num_host_free;
    self.blocks_.erase(block);
  }
  if (driver_host_free(data) != DRIVER_OK) TORCH_WARN_ONCE("pinned memory was not freed: ", driver_error_text());
}

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static auto* const kept = new DeviceMemory;
  return *kept;
}

c10::Allocator& pinned_allocator() { return pinned(); }
bool is_pinned(const void* data) { return pinned().contains(data); }

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
  at::setHostAllocator(kDeviceType, &pinned());
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  ensure_usable();
  size_t free = 0, total = 0;
  DRIVER_CHECK(driver_memory_info(check_device(device), &free, &total));
  return {free, total};
}

}  // namespace backend
