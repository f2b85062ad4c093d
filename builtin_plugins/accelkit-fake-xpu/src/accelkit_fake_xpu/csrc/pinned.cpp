#include "pinned.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>

#include "device.h"

namespace backend {
namespace {

// Ordinary host memory with a list of its blocks. Nothing is cached.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_usable();
    auto inner = c10::GetCPUAllocator()->allocate(bytes);
    if (bytes == 0) return inner;  // all empty blocks have the same address
    void* const data = inner.get();
    std::lock_guard lock(mutex_);
    blocks_[data] = bytes;
    stats_.allocated_bytes.increase(bytes);
    ++stats_.num_host_alloc;
    return {data, new c10::DataPtr(std::move(inner)), &free, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool record_event(void*, void*, c10::Stream) override { return true; }  // a queued copy holds a reference to its memory
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
    const auto after = blocks_.upper_bound(data);
    if (after == blocks_.begin()) return false;
    const auto& [start, bytes] = *std::prev(after);
    return data == start || static_cast<const char*>(data) < static_cast<const char*>(start) + bytes;
  }

 private:
  static void free(void* context);

  std::mutex mutex_;
  std::map<const void*, size_t> blocks_;
  at::HostStats stats_;
};

PinnedAllocator& allocator() {
  static auto* const kept = new PinnedAllocator;
  return *kept;
}

void PinnedAllocator::free(void* context) {
  auto* const inner = static_cast<c10::DataPtr*>(context);
  if (!is_in_bad_fork()) {  // the lock may have been held when the process was forked
    auto& self = allocator();
    std::lock_guard lock(self.mutex_);
    const auto block = self.blocks_.find(inner->get());
    self.stats_.allocated_bytes.decrease(block->second);
    ++self.stats_.num_host_free;
    self.blocks_.erase(block);
  }
  delete inner;
}

}  // namespace

c10::Allocator& pinned_allocator() { return allocator(); }
bool is_pinned(const void* data) { return allocator().contains(data); }
void register_pinned_allocator() { at::setHostAllocator(kDeviceType, &allocator()); }

}  // namespace backend
