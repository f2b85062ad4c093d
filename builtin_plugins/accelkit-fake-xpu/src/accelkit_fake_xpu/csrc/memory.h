// Device memory. A block of it is a storage on the host that belongs to one device, is counted against its limit, and is what
// kernels compute on. In protect mode tensors point to a second mapping of the same pages that nobody may touch.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

namespace fake_xpu {

// What the DataPtr of a device storage owns.
struct Block {
  c10::Storage host;
  c10::DeviceIndex device;
  size_t bytes;       // as counted
  void* host_data;    // as it was when the device storage was pointed to it
};

c10::DeviceAllocator& device_allocator();

// The block behind a device storage; null if it has none (nothing was allocated).
Block* block_of(const c10::StorageImpl& storage) noexcept;

// The host storage that kernels compute on.
c10::Storage host_storage(const c10::Storage& device_storage);

// A device storage with the contents of `host`, which a kernel made. Takes it over; copies it in protect mode.
c10::Storage adopt(c10::Storage host, c10::DeviceIndex device);

// After a kernel: point the device storage to what its host storage was reallocated to, if it was.
void follow_host(const c10::Storage& device_storage);

void resize_storage(const c10::Storage& device_storage, size_t bytes);

c10::CachingDeviceAllocator::DeviceStats memory_stats(c10::DeviceIndex device);

// Free bytes, and bytes in all.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);

}  // namespace fake_xpu
