// Pinned host memory, from and to which a device can copy asynchronously.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace backend {

// Registered with torch, for functions such as torch.accelerator.empty_host_cache.
at::HostAllocator& pinned_allocator();
bool is_pinned(const void* data);

// The device's own functions for pinned memory, which memory.cpp defines.
void* allocate_pinned(size_t bytes);
void free_pinned(void* data) noexcept;

}  // namespace backend
