// Pinned host memory, from and to which a device can copy asynchronously.
#pragma once

#include <c10/core/Allocator.h>

namespace backend {

c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);

// Registers it with torch, for functions such as torch.accelerator.empty_host_cache.
void register_pinned_allocator();

}  // namespace backend
