#include "memory_history.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

#include "device.h"
#include "memory.h"
#include "streams.h"

namespace backend {
namespace {

using Traceback = std::shared_ptr<c10::GatheredContext>;

struct Entry {
  const char* action;
  int64_t address, bytes;
  c10::StreamId stream;
  int64_t time_us;
  Traceback traceback;
};

// Python's lock is never requested while `mutex` is held, because a thread that has Python's lock may be waiting for `mutex`.
struct MemoryHistory {
  std::mutex mutex;
  Block* newest = nullptr;  // the head of the list of blocks that have memory
  std::map<c10::DeviceIndex, std::deque<Entry>> entries;
  std::vector<std::string> skipped;
  size_t max_entries = 0;
  bool keeps_tracebacks = false;  // whether entries have the tracebacks of allocations, not only blocks

  void add(c10::DeviceIndex device, Entry entry) {
    if (std::find(skipped.begin(), skipped.end(), entry.action) != skipped.end()) return;
    if (!keeps_tracebacks) entry.traceback = nullptr;
    auto& kept = entries[device];
    kept.push_back(std::move(entry));
    while (kept.size() > max_entries) kept.pop_front();
  }
};

MemoryHistory& history() {
  static auto* const kept = new MemoryHistory;  // never destroyed, because threads may outlive main()
  return *kept;
}

std::atomic<bool> is_history_on{false}, has_tracebacks{false};

Traceback traceback_of_this_thread() {
  if (!has_tracebacks.load(std::memory_order_relaxed)) return nullptr;
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

int64_t now_us() { return c10::getTime() / 1000; }

}  // namespace

void record_alloc(Block* block) {
  if (block->bytes == 0) return;
  const bool is_on = is_history_on.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(is_on)) {
    block->stream = current_stream(block->device);
    block->traceback = traceback_of_this_thread();
  }
  auto& all = history();
  std::lock_guard lock(all.mutex);
  block->older = all.newest;
  if (block->older != nullptr) block->older->newer = block;
  all.newest = block;
  if (C10_LIKELY(!is_on)) return;
  for (const char* action : {"segment_alloc", "alloc"}) {
    all.add(block->device, {action, reinterpret_cast<int64_t>(block->address), static_cast<int64_t>(block->bytes), block->stream, now_us(), block->traceback});
  }
}

void record_free(Block* block) noexcept {
  if (block->bytes == 0 || is_in_bad_fork()) return;  // the lock may have been held when the process was forked
  auto& all = history();
  std::lock_guard lock(all.mutex);
  (block->newer != nullptr ? block->newer->older : all.newest) = block->older;
  if (block->older != nullptr) block->older->newer = block->newer;
  if (C10_LIKELY(!is_history_on.load(std::memory_order_relaxed))) return;
  for (const char* action : {"free_requested", "free_completed", "segment_free"}) {
    all.add(block->device, {action, reinterpret_cast<int64_t>(block->address), static_cast<int64_t>(block->bytes), block->stream, now_us(), nullptr});
  }
}

void record_oom(c10::DeviceIndex device, size_t bytes, int64_t free_bytes) {
  if (!is_history_on.load(std::memory_order_relaxed)) return;
  auto traceback = traceback_of_this_thread();
  auto& all = history();
  std::lock_guard lock(all.mutex);
  all.add(device, {"oom", free_bytes, static_cast<int64_t>(bytes), current_stream(device), now_us(), std::move(traceback)});
}

void record_memory_history(const std::string& enabled, const std::string& context, int64_t max_entries, bool clear_history,
                           const std::vector<std::string>& skip_actions) {
  if (is_in_bad_fork()) ensure_usable();  // throws an exception
  auto& all = history();
  std::lock_guard lock(all.mutex);
  if (enabled.empty() || clear_history) all.entries.clear();
  all.skipped = skip_actions;
  all.max_entries = enabled == "state" ? 1 : max_entries;
  all.keeps_tracebacks = context == "alloc" || context == "all";
  has_tracebacks = !enabled.empty() && !context.empty();
  is_history_on = !enabled.empty();
}

std::tuple<Names, Rows, Rows, Rows, Names, Names, std::vector<int64_t>> memory_history() {
  ensure_usable();
  Names actions;
  Rows entries, blocks;
  std::vector<Traceback> tracebacks;
  std::unordered_map<const c10::GatheredContext*, int64_t> indices;
  const auto index_of = [&](const Traceback& traceback) -> int64_t {
    if (traceback == nullptr) return -1;
    const auto [position, is_new] = indices.try_emplace(traceback.get(), tracebacks.size());
    if (is_new) tracebacks.push_back(traceback);
    return position->second;
  };
  {
    auto& all = history();
    std::lock_guard lock(all.mutex);
    if (is_history_on) {
      for (c10::DeviceIndex device = 0; device < device_count(); ++device) all.add(device, {"snapshot", 0, 0, 0, now_us(), nullptr});
    }
    for (const auto& [device, kept] : all.entries) {
      for (const auto& entry : kept) {
        actions.emplace_back(entry.action);
        entries.push_back({device, entry.address, entry.bytes, entry.stream, entry.time_us, index_of(entry.traceback)});
      }
    }
    for (const auto* block = all.newest; block != nullptr; block = block->older) {
      blocks.push_back({block->device, reinterpret_cast<int64_t>(block->address), static_cast<int64_t>(block->bytes), block->stream, index_of(block->traceback)});
    }
  }
  std::vector<torch::CapturedTraceback*> gathered;
  for (const auto& traceback : tracebacks) gathered.push_back(static_cast<torch::CapturedTraceback*>(traceback.get()));
  const auto symbolized = torch::symbolize(gathered);
  Names files, functions;
  std::vector<int64_t> lines;
  for (const auto& frame : symbolized.all_frames) {
    files.push_back(frame.filename);
    functions.push_back(frame.funcname);
    lines.push_back(static_cast<int64_t>(frame.lineno));
  }
  Rows stacks;
  for (const auto& stack : symbolized.tracebacks) stacks.emplace_back(stack.begin(), stack.end());
  return {std::move(actions), std::move(entries), std::move(blocks), std::move(stacks), std::move(files), std::move(functions), std::move(lines)};
}

}  // namespace backend
