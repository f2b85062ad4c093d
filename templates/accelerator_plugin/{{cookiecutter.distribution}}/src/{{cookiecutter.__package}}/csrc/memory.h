// Device memory, and pinned host memory, from and to which a device copies asynchronously.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

namespace backend {

c10::DeviceAllocator& device_allocator();
c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);
void resize_storage(const c10::Storage& storage, size_t bytes);

// Registers both allocators with torch.
void register_allocators();

// Returns the free bytes and the total bytes.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex device);

}  // namespace backend
