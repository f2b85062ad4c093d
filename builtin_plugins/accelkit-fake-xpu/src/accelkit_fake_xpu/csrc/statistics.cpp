#include "statistics.h"

#include <c10/core/Allocator.h>

#include <array>

#include "device.h"

namespace backend {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

std::array<c10::CachingAllocator::Stat*, 4> byte_stats(DeviceStats& stats) {
  return {&stats.allocated_bytes[kAll], &stats.requested_bytes[kAll], &stats.active_bytes[kAll], &stats.reserved_bytes[kAll]};
}

template <class Do>
void each_stat(c10::DeviceIndex device, Do reset) {
  auto& [mutex, stats] = statistics_of(check_device(device));
  std::lock_guard lock(mutex);
  for (auto* stat : byte_stats(stats)) reset(*stat);
  reset(stats.allocation[kAll]);
}

}  // namespace

int64_t MemoryStatistics::allocated_bytes() const { return stats.allocated_bytes[kAll].current; }

void MemoryStatistics::add_block(size_t bytes) {
  for (auto* stat : byte_stats(stats)) stat->increase(bytes);
  stats.allocation[kAll].increase(1);
  ++stats.num_device_alloc;
}

void MemoryStatistics::remove_block(size_t bytes) {
  for (auto* stat : byte_stats(stats)) stat->decrease(bytes);
  stats.allocation[kAll].decrease(1);
  ++stats.num_device_free;
}

void MemoryStatistics::report(void* address, int64_t bytes, c10::DeviceIndex device) const {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  c10::reportMemoryUsageToProfiler(address, bytes, allocated_bytes(), stats.reserved_bytes[kAll].current, c10::Device(kDeviceType, device));
}

MemoryStatistics& statistics_of(c10::DeviceIndex device) {
  static auto* const all = new std::array<MemoryStatistics, kMostDevices>;
  return (*all)[device];
}

DeviceStats memory_stats(c10::DeviceIndex device) {
  auto& [mutex, stats] = statistics_of(check_device(device));
  std::lock_guard lock(mutex);
  return stats;
}

void reset_accumulated_stats(c10::DeviceIndex device) {
  each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
}

void reset_peak_stats(c10::DeviceIndex device) {
  each_stat(device, [](auto& stat) { stat.reset_peak(); });
}

std::string spell_bytes(double bytes) {
  const char* unit = "bytes";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  char text[32];
  std::snprintf(text, sizeof(text), std::string(unit) == "bytes" ? "%.0f %s" : "%.2f %s", bytes, unit);
  return text;
}

}  // namespace backend
