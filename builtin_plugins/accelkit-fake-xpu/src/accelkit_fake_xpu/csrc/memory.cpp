#include "memory.h"

#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <torch/version.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "device.h"
#include "faults.h"
#include "memory_history.h"
#include "statistics.h"

namespace backend {
namespace {

void charge(c10::DeviceIndex device, size_t bytes) {
  const bool is_to_fail = is_this_allocation_to_fail();
  const auto limit = memory_limit(device);
  int64_t free_bytes = 0;
  auto& statistics = statistics_of(device);
  {
    std::lock_guard lock(statistics.mutex);
    free_bytes = limit - statistics.allocated_bytes();
    if (C10_LIKELY(!is_to_fail && static_cast<int64_t>(bytes) <= free_bytes)) return statistics.add_block(bytes);
    ++statistics.stats.num_ooms;
  }
  record_oom(device, bytes, free_bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "fake_xpu out of memory. Tried to allocate ", spell_bytes(bytes), ". fake_xpu:", static_cast<int>(device),
                   " has a total capacity of ", spell_bytes(limit), " of which ", spell_bytes(free_bytes), " is free; ", spell_bytes(limit - free_bytes),
                   " is allocated by PyTorch.", is_to_fail ? " This allocation fails because FAKE_XPU_FAULT requests it." : "");
}

void discharge(c10::DeviceIndex device, size_t bytes) {
  if (is_in_bad_fork()) return;  // the lock may have been held when the process was forked
  auto& statistics = statistics_of(device);
  std::lock_guard lock(statistics.mutex);
  statistics.remove_block(bytes);
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

void report(const Block& block, int64_t bytes) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled()) || is_in_bad_fork()) return;
  if (bytes < 0 && is_recording_wrong("no_frees")) return;
  auto& statistics = statistics_of(block.device);
  std::lock_guard lock(statistics.mutex);
  statistics.report(block.host_data, bytes, block.device);
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  record_free(block);
  discharge(block->device, block->bytes);
  report(*block, -static_cast<int64_t>(block->bytes));
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
    TORCH_CHECK(open != MAP_FAILED && closed != MAP_FAILED, "fake_xpu: the system could not allocate protected memory of ", spell_bytes(bytes));
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
  auto* const block = new Block{std::move(host), device_, bytes_, host_data, visible};
  record_alloc(block);
  report(*block, static_cast<int64_t>(bytes_));
  return {visible, block, &free_block, c10::Device(kDeviceType, device_)};
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
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override { return memory_stats(device); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { reset_accumulated_stats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak_stats(device); }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_info(device); }
#endif
};

Allocator& allocator() {
  static auto* const kept = new Allocator;
  return *kept;
}

// Returns the address at which kernels access the memory that tensors see at `visible`. Null if that is not device memory.
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

void register_allocators() {
  c10::SetAllocator(kDeviceType, &device_allocator());
  at::setHostAllocator(kDeviceType, &pinned_allocator());
}

void* allocate_pinned(size_t bytes) { return c10::alloc_cpu(bytes); }
void free_pinned(void* data) noexcept { c10::free_cpu(data); }

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  const size_t limit = memory_limit(check_device(device));
  auto& statistics = statistics_of(device);
  std::lock_guard lock(statistics.mutex);
  return {limit - statistics.allocated_bytes(), limit};
}

}  // namespace backend
