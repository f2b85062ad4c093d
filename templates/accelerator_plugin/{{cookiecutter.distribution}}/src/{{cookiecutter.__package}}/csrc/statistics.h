// Statistics of the memory of each device, as torch.accelerator.memory_stats shows them.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <mutex>
#include <string>

namespace backend {

// Nothing is cached, so the allocated, requested, active and reserved bytes are equal.
struct MemoryStatistics {
  std::mutex mutex;  // protects stats
  c10::CachingDeviceAllocator::DeviceStats stats;

  int64_t allocated_bytes() const;
  void add_block(size_t bytes);
  void remove_block(size_t bytes);

  // Reports an allocation to torch.profiler, or with negative `bytes` a deallocation, after it was counted.
  void report(void* address, int64_t bytes, c10::DeviceIndex device) const;
};

MemoryStatistics& statistics_of(c10::DeviceIndex device);

// These functions lock the mutex, and throw an exception if the device does not exist.
c10::CachingDeviceAllocator::DeviceStats memory_stats(c10::DeviceIndex device);
void reset_accumulated_stats(c10::DeviceIndex device);
void reset_peak_stats(c10::DeviceIndex device);

// For example "1.50 MiB".
std::string spell_bytes(double bytes);

}  // namespace backend
