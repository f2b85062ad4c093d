// Device memory. A block is a host storage that belongs to one device and counts towards its limit. Kernels compute on it.
// In protect mode, tensors point to a second mapping of the same pages, which cannot be accessed.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "pinned.h"

namespace backend {

// The object that the DataPtr of a device storage owns.
struct Block {
  c10::Storage host;
  c10::DeviceIndex device;
  size_t bytes;       // the size that was counted
  void* host_data;    // the address of `host` when the device storage was set to it
  void* address;      // the address that tensors see

  // See memory_history.h.
  Block *older = nullptr, *newer = nullptr;
  c10::StreamId stream = 0;
  std::shared_ptr<c10::GatheredContext> traceback = nullptr;
};

c10::DeviceAllocator& device_allocator();

// Returns the block of a device storage. Null if nothing was allocated.
Block* block_of(const c10::StorageImpl& storage) noexcept;

// Returns the host storage on which kernels compute.
c10::Storage host_storage(const c10::Storage& device_storage);

// Returns a device storage with the contents of `host`, which a kernel created. Takes ownership of `host`, or copies it in protect mode.
c10::Storage adopt(c10::Storage host, c10::DeviceIndex device);

// Updates the device storage if a kernel reallocated its host storage.
void follow_host(const c10::Storage& device_storage);

void resize_storage(const c10::Storage& device_storage, size_t bytes);

// Registers the allocators of device memory and of pinned memory with torch.
void register_allocators();

// Returns the free bytes and the total bytes.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);

}  // namespace backend
