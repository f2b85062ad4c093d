// Pinned host memory: what a device can copy from and to while the host goes on.
#pragma once

#include <c10/core/Allocator.h>

namespace fake_xpu {

c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);

// Makes torch find it, for torch.accelerator.empty_host_cache and its like.
void register_pinned_allocator();

}  // namespace fake_xpu
