#include "memory.h"

#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <map>
#include <mutex>

#include "device.h"
#include "faults.h"

namespace backend {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

struct Ledger {
  std::mutex mutex;
  DeviceStats stats;
};

Ledger& ledger(c10::DeviceIndex device) {
  static auto* const ledgers = new std::array<Ledger, kMostDevices>;
  return (*ledgers)[device];
}

// Nothing is cached, so all these statistics are equal.
std::array<c10::CachingAllocator::Stat*, 4> byte_stats(DeviceStats& stats) {
  return {&stats.allocated_bytes[kAll], &stats.requested_bytes[kAll], &stats.active_bytes[kAll], &stats.reserved_bytes[kAll]};
}

std::string spell(double bytes) {
  const char* unit = "bytes";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  char text[32];
  std::snprintf(text, sizeof(text), std::string(unit) == "bytes" ? "%.0f %s" : "%.2f %s", bytes, unit);
  return text;
}

void charge(c10::DeviceIndex device, size_t bytes) {
  const bool is_to_fail = is_this_allocation_to_fail();
  auto& [mutex, stats] = ledger(device);
  std::lock_guard lock(mutex);
  const auto used = stats.allocated_bytes[kAll].current, limit = memory_limit(device);
  if (C10_UNLIKELY(is_to_fail || static_cast<int64_t>(bytes) > limit - used)) {
    ++stats.num_ooms;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "fake_xpu out of memory. Tried to allocate ", spell(bytes), ". fake_xpu:", static_cast<int>(device),
                     " has a total capacity of ", spell(limit), " of which ", spell(limit - used), " is free; ", spell(used),
                     " is allocated by PyTorch.", is_to_fail ? " This allocation fails because FAKE_XPU_FAULT requests it." : "");
  }
  for (auto* stat : byte_stats(stats)) stat->increase(bytes);
  stats.allocation[kAll].increase(1);
  ++stats.num_device_alloc;
}

void discharge(c10::DeviceIndex device, size_t bytes) {
  if (is_in_bad_fork()) return;  // the lock may have been held when the process was forked
  auto& [mutex, stats] = ledger(device);
  std::lock_guard lock(mutex);
  for (auto* stat : byte_stats(stats)) stat->decrease(bytes);
  stats.allocation[kAll].decrease(1);
  ++stats.num_device_free;
}

// Counts memory before it is allocated, and subtracts it again if the allocation fails.
class Charge {
 public:
  Charge(c10::DeviceIndex device, size_t bytes) : device_(device), bytes_(bytes) { charge(device, bytes); }
  Charge(const Charge&) = delete;
  ~Charge() {
    if (!is_taken_) discharge(device_, bytes_);
  }

  // From here on, the block owns the memory and its count.
  c10::DataPtr block(c10::Storage host, void* visible);

 private:
  c10::DeviceIndex device_;
  size_t bytes_;
  bool is_taken_ = false;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  discharge(block->device, block->bytes);
  delete block;
}

struct DoubleMapping;

// The mappings by the address that tensors use, for pointers without a block.
struct Mappings {
  std::mutex mutex;
  std::map<const char*, const DoubleMapping*> by_closed;
};
Mappings& mappings() {
  static auto* const kept = new Mappings;
  return *kept;
}

// Two mappings of the same pages: kernels use `open`, and tensors point to `closed`.
struct DoubleMapping {
  void *open, *closed;
  size_t bytes;

  explicit DoubleMapping(size_t wanted) {
    const size_t page = sysconf(_SC_PAGESIZE);
    bytes = (std::max<size_t>(wanted, 1) + page - 1) / page * page;
#ifdef __linux__
    const int file = memfd_create("fake_xpu", MFD_CLOEXEC);
#else
    const std::string name = "/fake_xpu_" + std::to_string(getpid());
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file >= 0) shm_unlink(name.c_str());
#endif
    const bool is_sized = file >= 0 && ftruncate(file, bytes) == 0;
    open = is_sized ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    closed = is_sized ? mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) close(file);
    TORCH_CHECK(open != MAP_FAILED && closed != MAP_FAILED, "fake_xpu: the system could not allocate protected memory of ", spell(bytes));
    std::lock_guard lock(mappings().mutex);
    mappings().by_closed[static_cast<const char*>(closed)] = this;
  }
  ~DoubleMapping() {
    {
      std::lock_guard lock(mappings().mutex);
      mappings().by_closed.erase(static_cast<const char*>(closed));
    }
    munmap(open, bytes);
    munmap(closed, bytes);
  }
};

c10::Storage new_host_storage(size_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t{}, bytes, c10::GetCPUAllocator()->allocate(bytes),
                                                            c10::GetCPUAllocator(), /*resizable=*/true));
}

c10::DataPtr Charge::block(c10::Storage host, void* visible) {
  is_taken_ = true;
  void* const host_data = host.mutable_data();
  return {visible, new Block{std::move(host), device_, bytes_, host_data}, &free_block, c10::Device(kDeviceType, device_)};
}

c10::DataPtr new_protected(size_t bytes, c10::DeviceIndex device) {
  Charge charge(device, bytes);
  auto* mapping = new DoubleMapping(bytes);
  c10::DataPtr data(mapping->open, mapping, [](void* context) { delete static_cast<DoubleMapping*>(context); }, c10::kCPU);
  c10::Storage host(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t{}, bytes, std::move(data), c10::GetCPUAllocator(), true));
  return charge.block(std::move(host), mapping->closed);
}

// Takes ownership of `host`, or copies it if tensors must not point to it.
c10::DataPtr take(c10::Storage host, c10::DeviceIndex device) {
  if (C10_LIKELY(!is_protected()) || host.data() == nullptr) {
    void* const data = host.mutable_data();
    return Charge(device, data == nullptr ? 0 : host.nbytes()).block(std::move(host), data);  // all-zero tensors have a size but no memory
  }
  auto data = new_protected(host.nbytes(), device);
  std::memcpy(static_cast<Block*>(data.get_context())->host_data, host.data(), host.nbytes());
  return data;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_usable();
    const auto device = check_device(-1);
    if (is_protected()) return new_protected(bytes, device);
    Charge charge(device, bytes);
    auto host = new_host_storage(bytes);
    void* const data = host.mutable_data();
    return charge.block(std::move(host), data);
  }
  // raw_allocate is not supported, because the block of a pointer is known only from its DataPtr.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK_NOT_IMPLEMENTED(false, "fake_xpu copies tensors, not pointers"); }
  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // queued work holds references to its memory
  DeviceStats getDeviceStats(c10::DeviceIndex device) override { return memory_stats(device); }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_info(device); }
#endif

 private:
  template <class Do>
  void each_stat(c10::DeviceIndex device, Do reset) {
    auto& [mutex, stats] = ledger(check_device(device));
    std::lock_guard lock(mutex);
    for (auto* stat : byte_stats(stats)) reset(*stat);
    reset(stats.allocation[kAll]);
  }
};

Allocator& allocator() {
  static auto* const kept = new Allocator;
  return *kept;
}

// The address that kernels use for the memory that tensors see at `visible`. Null if it is not device memory.
void* open_address(const void* visible) {
  if (!is_protected()) return const_cast<void*>(visible);
  std::lock_guard lock(mappings().mutex);
  const auto* const data = static_cast<const char*>(visible);
  const auto after = mappings().by_closed.upper_bound(data);
  if (after == mappings().by_closed.begin()) return nullptr;
  const auto& [start, mapping] = *std::prev(after);
  return data < start + mapping->bytes ? static_cast<char*>(mapping->open) + (data - start) : nullptr;
}

// Replaces the memory of a device storage, and keeps the storage object.
void repoint(c10::StorageImpl& storage, c10::DataPtr data, size_t bytes) {
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

}  // namespace

c10::DeviceAllocator& device_allocator() { return allocator(); }

Block* block_of(const c10::StorageImpl& storage) noexcept {
  const auto& data = storage.data_ptr();
  return data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

c10::Storage host_storage(const c10::Storage& device_storage) {
  auto* const storage = device_storage.unsafeGetStorageImpl();
  if (const auto* block = block_of(*storage); C10_LIKELY(block != nullptr)) return block->host;
  if (storage->nbytes() == 0) {
    repoint(*storage, take(new_host_storage(0), check_device(device_storage.device().index())), 0);
    return block_of(*storage)->host;
  }
  // A bare pointer, for example from at::from_blob, whose memory has another owner.
  void* const data = open_address(storage->data());
  TORCH_CHECK(data != nullptr, "fake_xpu: a tensor points to memory that does not belong to the device");
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t{}, storage->nbytes(), c10::DataPtr(data, c10::kCPU),
                                                            nullptr, /*resizable=*/false));
}

c10::Storage adopt(c10::Storage host, c10::DeviceIndex device) {
  const size_t bytes = host.nbytes();
  return c10::Storage(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t{}, bytes, take(std::move(host), device), &allocator(), /*resizable=*/true));
}

void follow_host(const c10::Storage& device_storage) {
  auto* const storage = device_storage.unsafeGetStorageImpl();
  auto* const block = block_of(*storage);
  if (C10_LIKELY(block == nullptr || (block->host_data == block->host.data() && storage->nbytes() == block->host.nbytes()))) return;
  auto host = block->host;
  repoint(*storage, take(host, block->device), host.nbytes());
}

void resize_storage(const c10::Storage& device_storage, size_t bytes) {
  auto host = host_storage(device_storage);
  at::native::resize_bytes_cpu(host.unsafeGetStorageImpl(), bytes);
  follow_host(device_storage);
}

DeviceStats memory_stats(c10::DeviceIndex device) {
  auto& [mutex, stats] = ledger(check_device(device));
  std::lock_guard lock(mutex);
  return stats;
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  const size_t limit = memory_limit(check_device(device));
  return {limit - memory_stats(device).allocated_bytes[kAll].current, limit};
}

}  // namespace backend
