// The blocks of device memory that exist, and the history of their allocation: torch.fake_xpu.memory._record_memory_history and _snapshot.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace backend {

struct Block;

// Adds the block to the blocks that exist, and to the history. Do not hold a lock when calling it: it may wait for Python's.
void record_alloc(Block* block);

// Removes the block again. Call it before its memory can be given to another block.
void record_free(Block* block) noexcept;

// Records that an allocation failed when `free_bytes` were left. Do not hold a lock when calling it.
void record_oom(c10::DeviceIndex device, size_t bytes, int64_t free_bytes);

// The arguments are those of torch.cuda.memory._record_memory_history, with empty strings instead of None. An empty `enabled` ends the
// recording and discards the history.
void record_memory_history(const std::string& enabled, const std::string& context, int64_t max_entries, bool clear_history,
                           const std::vector<std::string>& skip_actions);

// The actions of all entries of the history; the device, address, bytes, stream, time in microseconds and traceback of each entry; the device,
// address, bytes, stream and traceback of each block; the frames of each traceback; the file, function and line of each frame. A traceback is
// an index, or -1 if there is none.
using Rows = std::vector<std::vector<int64_t>>;
using Names = std::vector<std::string>;
std::tuple<Names, Rows, Rows, Rows, Names, Names, std::vector<int64_t>> memory_history();

}  // namespace backend
