// The devices of the simulated driver: their settings, faults and memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "driver.h"

namespace simulated {

// Returns the environment variable that is named like the device in capitals followed by `suffix`, or `otherwise` if it is not set.
inline std::string setting(const char* suffix, const char* otherwise) {
  std::string name = BACKEND_NAME;
  for (char& letter : name) letter = static_cast<char>(std::toupper(letter));
  const char* const value = std::getenv((name + suffix).c_str());
  return value == nullptr || *value == 0 ? otherwise : value;
}

// -- faults ---------------------------------------------------------------------------------------------------------------------------

inline std::atomic<int64_t> allocations_left{0}, work_left{0};
inline std::atomic<bool> is_lost{false};

// Returns the part of ${NAME}_FAULT after `kind` and @. Empty if the variable has another fault or none.
inline std::string fault(const std::string& kind) {
  const std::string text = setting("_FAULT", "");
  return text.rfind(kind + "@", 0) == 0 ? text.substr(kind.size() + 1) : "";
}

inline void read_faults() {
  allocations_left = std::atoll(fault("oom").c_str());
  work_left = std::atoll(fault("lost").c_str());
}

inline const std::string& missing_function() {
  static const auto* const name = new std::string(fault("missing"));
  return *name;
}

inline bool is_due(std::atomic<int64_t>& left) { return left > 0 && left.fetch_sub(1) == 1; }

// -- memory ---------------------------------------------------------------------------------------------------------------------------

struct Block {
  std::unique_ptr<char[]> contents;
  size_t bytes, mapped;
};

struct Device {
  std::mutex mutex;
  std::map<const char*, Block> blocks;  // by their first address
  size_t used = 0;
  std::set<driver_stream> streams;
};

inline int count_devices() {
  static const int count = std::atoi(setting("_DEVICES", "2").c_str());
  return count;
}

inline size_t total_memory() {
  static const size_t bytes = std::strtoull(setting("_MEMORY", "4294967296").c_str(), nullptr, 10);
  return bytes;
}

inline std::vector<Device>& devices() {
  static auto* const all = new std::vector<Device>(count_devices());
  return *all;
}

// Returns a pointer to the contents of device memory at `address`. Null for an address that the device does not have.
inline char* contents(int device, const void* address, size_t bytes) {
  auto& [mutex, blocks, used, streams] = devices()[device];
  std::lock_guard lock(mutex);
  const auto* const wanted = static_cast<const char*>(address);
  auto after = blocks.upper_bound(wanted);
  if (after == blocks.begin()) return nullptr;
  const auto& [start, block] = *--after;
  return wanted + bytes <= start + block.bytes ? block.contents.get() + (wanted - start) : nullptr;
}

}  // namespace simulated
