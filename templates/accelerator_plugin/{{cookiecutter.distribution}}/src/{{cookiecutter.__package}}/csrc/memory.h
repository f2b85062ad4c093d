// Device memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "pinned.h"

namespace backend {

c10::DeviceAllocator& device_allocator();
void resize_storage(const c10::Storage& storage, size_t bytes);

// Registers the allocators of device memory and of pinned memory with torch.
void register_allocators();

// Returns the free bytes and the total bytes.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);

}  // namespace backend
