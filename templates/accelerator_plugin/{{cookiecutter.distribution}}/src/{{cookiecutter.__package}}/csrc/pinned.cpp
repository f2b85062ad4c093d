// The list of the blocks of pinned memory, with their statistics. Nothing is cached.
#include "pinned.h"

#include <map>
#include <mutex>

#include "device.h"

namespace backend {
namespace {

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_usable();
    if (bytes == 0) return {nullptr, c10::kCPU};
    void* const data = allocate_pinned(bytes);
    std::lock_guard lock(mutex_);
    blocks_[static_cast<char*>(data)] = bytes;
    stats_.allocated_bytes.increase(bytes);
    ++stats_.num_host_alloc;
    return {data, data, &free, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }  // memory is freed only after the copies that use it
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(mutex_);
    stats_.allocated_bytes.reset_accumulated();
    stats_.num_host_alloc = stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard lock(mutex_);
    stats_.allocated_bytes.reset_peak();
  }
  bool contains(const void* data) {
    std::lock_guard lock(mutex_);
    const auto after = blocks_.upper_bound(static_cast<char*>(const_cast<void*>(data)));
    if (after == blocks_.begin()) return false;
    const auto& [start, bytes] = *std::prev(after);
    return static_cast<const char*>(data) < start + bytes;
  }

 private:
  static void free(void* data);

  std::mutex mutex_;
  std::map<char*, size_t> blocks_;
  at::HostStats stats_;
};

PinnedMemory& pinned() {
  static auto* const kept = new PinnedMemory;
  return *kept;
}

void PinnedMemory::free(void* data) {
  if (is_in_bad_fork()) return;  // the memory belongs to the parent process, and the lock may have been held at the fork
  {
    auto& self = pinned();
    std::lock_guard lock(self.mutex_);
    const auto block = self.blocks_.find(static_cast<char*>(data));
    self.stats_.allocated_bytes.decrease(block->second);
    ++self.stats_.num_host_free;
    self.blocks_.erase(block);
  }
  free_pinned(data);
}

}  // namespace

at::HostAllocator& pinned_allocator() { return pinned(); }
bool is_pinned(const void* data) { return pinned().contains(data); }

}  // namespace backend
