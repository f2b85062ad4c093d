// A driver without hardware. Each device is host memory and threads: a stream is a thread that runs its work in order.
//
// Addresses of device memory lie in pages that no code can access, so a part of the backend that dereferences one ends with a segmentation
// fault, as with hardware. The contents are kept elsewhere, and only the functions below find them.
//
// ${NAME}_DEVICES sets the number of devices (2), ${NAME}_MEMORY the memory of each in bytes (4 GiB), where NAME is the device's name in
// capitals. ${NAME}_FAULT injects a fault: oom@N, the N-th allocation fails; lost@N, the device is lost at the N-th copy or kernel;
// missing@FUNCTION, the function of this file returns DRIVER_NOT_IMPLEMENTED.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "driver.h"
#include "simulated_device.h"
#include "simulated_kernels.h"
#include "simulated_stream.h"

using namespace simulated;

namespace {

thread_local std::string error_text;

driver_status fail(driver_status status, std::string text) {
  error_text = std::move(text);
  return status;
}

// The fault missing@FUNCTION: the function returns the status of a function that is not written yet.
#define MAY_BE_MISSING \
  if (missing_function() == __func__) return fail(DRIVER_NOT_IMPLEMENTED, missing_function() + " is not implemented yet in the driver of " BACKEND_NAME)

driver_status check_work() {
  if (is_due(work_left)) is_lost = true;
  return is_lost ? fail(DRIVER_DEVICE_LOST, "the device was lost, because the environment asked for this fault") : DRIVER_OK;
}

}  // namespace

struct driver_event_object {
  std::shared_ptr<Mark> mark;  // of its latest record; null before the first
};

namespace {

void synchronize_device(int device) {
  std::set<driver_stream> streams;
  {
    std::lock_guard lock(devices()[device].mutex);
    streams = devices()[device].streams;
  }
  for (auto* const stream : streams) stream->synchronize();
}

driver_status unknown(const void* address) {
  char text[100];
  std::snprintf(text, sizeof(text), "%p is not an address of the device, or the access ends beyond its block", address);
  return fail(DRIVER_INVALID_ARGUMENT, text);
}

}  // namespace

// -- the functions of driver.h ----------------------------------------------------------------------------------------------------------

const char* driver_error_text(void) { return error_text.c_str(); }

driver_status driver_device_count(int* count) {
  MAY_BE_MISSING;
  *count = count_devices();
  return DRIVER_OK;
}

driver_status driver_initialize(void) {
  MAY_BE_MISSING;
  read_faults();
  return DRIVER_OK;
}

driver_status driver_device_properties(int device, driver_properties* properties) {
  MAY_BE_MISSING;
  std::snprintf(properties->name, sizeof(properties->name), "simulated " BACKEND_NAME);
  properties->total_memory = total_memory();
  return DRIVER_OK;
}

driver_status driver_device_synchronize(int device) {
  MAY_BE_MISSING;
  synchronize_device(device);
  return is_lost ? check_work() : DRIVER_OK;
}

driver_status driver_memory_info(int device, size_t* free, size_t* total) {
  MAY_BE_MISSING;
  std::lock_guard lock(devices()[device].mutex);
  *total = total_memory();
  *free = *total - devices()[device].used;
  return DRIVER_OK;
}

driver_status driver_allocate(int device, size_t bytes, void** address) {
  MAY_BE_MISSING;
  if (is_lost) return check_work();
  auto& [mutex, blocks, used, streams] = devices()[device];
  std::lock_guard lock(mutex);
  if (is_due(allocations_left) || bytes > total_memory() - used) {
    return fail(DRIVER_OUT_OF_MEMORY, std::to_string(total_memory() - used) + " of " + std::to_string(total_memory()) + " bytes are free");
  }
  const size_t page = sysconf(_SC_PAGESIZE), mapped = (bytes / page + 1) * page;
  void* const start = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return fail(DRIVER_OUT_OF_MEMORY, "the host has no more addresses");
  std::unique_ptr<char[]> contents(new (std::nothrow) char[bytes]);
  if (contents == nullptr) {
    munmap(start, mapped);
    return fail(DRIVER_OUT_OF_MEMORY, "the host has no more memory");
  }
  blocks.emplace(static_cast<const char*>(start), Block{std::move(contents), bytes, mapped});
  used += bytes;
  *address = start;
  return DRIVER_OK;
}

driver_status driver_free(int device, void* address) {
  MAY_BE_MISSING;
  for (int index = 0; index < count_devices(); ++index) synchronize_device(index);  // another device may be copying from this memory
  auto& [mutex, blocks, used, streams] = devices()[device];
  std::lock_guard lock(mutex);
  const auto block = blocks.find(static_cast<const char*>(address));
  if (block == blocks.end()) return unknown(address);
  used -= block->second.bytes;
  munmap(address, block->second.mapped);
  blocks.erase(block);
  return DRIVER_OK;
}

driver_status driver_host_allocate(size_t bytes, void** address) {
  MAY_BE_MISSING;
  *address = std::aligned_alloc(64, (bytes / 64 + 1) * 64);
  return *address == nullptr ? fail(DRIVER_OUT_OF_MEMORY, "the host has no more memory") : DRIVER_OK;
}

driver_status driver_host_free(void* address) {
  MAY_BE_MISSING;
  for (int device = 0; device < count_devices(); ++device) synchronize_device(device);
  std::free(address);
  return DRIVER_OK;
}

driver_status driver_copy_to_device(driver_stream stream, void* to, const void* from_host, size_t bytes) {
  MAY_BE_MISSING;
  if (const auto status = check_work()) return status;
  char* const target = contents(stream->device, to, bytes);
  if (target == nullptr) return unknown(to);
  stream->push([=] { std::memcpy(target, from_host, bytes); });
  return DRIVER_OK;
}

driver_status driver_copy_to_host(driver_stream stream, void* to_host, const void* from, size_t bytes) {
  MAY_BE_MISSING;
  if (const auto status = check_work()) return status;
  const char* const source = contents(stream->device, from, bytes);
  if (source == nullptr) return unknown(from);
  stream->push([=] { std::memcpy(to_host, source, bytes); });
  return DRIVER_OK;
}

driver_status driver_copy_on_device(driver_stream stream, void* to, const void* from, size_t bytes) {
  MAY_BE_MISSING;
  return driver_copy_to_peer(stream, stream->device, to, from, bytes);
}

driver_status driver_copy_to_peer(driver_stream stream, int peer, void* to_on_peer, const void* from, size_t bytes) {
  MAY_BE_MISSING;
  if (const auto status = check_work()) return status;
  const char* const source = contents(stream->device, from, bytes);
  char* const target = contents(peer, to_on_peer, bytes);
  if (source == nullptr || target == nullptr) return unknown(source == nullptr ? from : to_on_peer);
  stream->push([=] { std::memmove(target, source, bytes); });
  return DRIVER_OK;
}

driver_status driver_fill(driver_stream stream, void* to, uint8_t value, size_t bytes) {
  MAY_BE_MISSING;
  if (const auto status = check_work()) return status;
  char* const target = contents(stream->device, to, bytes);
  if (target == nullptr) return unknown(to);
  stream->push([=] { std::memset(target, value, bytes); });
  return DRIVER_OK;
}

driver_status driver_launch(driver_stream stream, const char* kernel, const driver_argument* arguments, int count) {
  MAY_BE_MISSING;
  if (const auto status = check_work()) return status;
  std::vector<Argument> found;
  for (int i = 0; i < count; ++i) {
    Argument argument{nullptr, arguments[i].integer, arguments[i].real};
    if (arguments[i].kind == driver_argument::DRIVER_ADDRESS) {
      argument.memory = contents(stream->device, arguments[i].address, 0);
      if (argument.memory == nullptr) return unknown(arguments[i].address);
    }
    found.push_back(argument);
  }
  const auto function = find_kernel(kernel);
  if (function == nullptr) return fail(DRIVER_NOT_IMPLEMENTED, std::string("there is no kernel ") + kernel);
  stream->push([function, found = std::move(found)] { function(found.data()); });
  return DRIVER_OK;
}

driver_status driver_stream_create(int device, driver_stream* stream) {
  MAY_BE_MISSING;
  *stream = new driver_stream_object(device);
  std::lock_guard lock(devices()[device].mutex);
  devices()[device].streams.insert(*stream);
  return DRIVER_OK;
}

driver_status driver_stream_synchronize(driver_stream stream) {
  MAY_BE_MISSING;
  stream->synchronize();
  return is_lost ? check_work() : DRIVER_OK;
}

driver_status driver_stream_is_done(driver_stream stream, int* is_done) {
  MAY_BE_MISSING;
  *is_done = stream->is_done();
  return DRIVER_OK;
}

driver_status driver_stream_wait_event(driver_stream stream, driver_event event) {
  MAY_BE_MISSING;
  if (event->mark != nullptr) stream->push([mark = event->mark] { mark->wait(); });
  return DRIVER_OK;
}

driver_status driver_event_create(int, driver_event* event) {
  MAY_BE_MISSING;
  *event = new driver_event_object;
  return DRIVER_OK;
}

driver_status driver_event_destroy(driver_event event) {
  MAY_BE_MISSING;
  delete event;
  return DRIVER_OK;
}

driver_status driver_event_record(driver_event event, driver_stream stream) {
  MAY_BE_MISSING;
  event->mark = std::make_shared<Mark>();
  stream->push(nullptr, [mark = event->mark] {
    std::lock_guard lock(mark->mutex);
    mark->is_done = true;
    mark->when = std::chrono::steady_clock::now();
    mark->reached.notify_all();
  });
  return DRIVER_OK;
}

driver_status driver_event_is_done(driver_event event, int* is_done) {
  MAY_BE_MISSING;
  *is_done = 1;
  if (event->mark == nullptr) return DRIVER_OK;
  std::lock_guard lock(event->mark->mutex);
  *is_done = event->mark->is_done;
  return DRIVER_OK;
}

driver_status driver_event_synchronize(driver_event event) {
  MAY_BE_MISSING;
  if (event->mark != nullptr) event->mark->wait();
  return DRIVER_OK;
}

driver_status driver_event_elapsed(driver_event start, driver_event end, double* milliseconds) {
  MAY_BE_MISSING;
  if (start->mark == nullptr || end->mark == nullptr) return fail(DRIVER_INVALID_ARGUMENT, "an event was not recorded");
  *milliseconds = std::chrono::duration<double, std::milli>(end->mark->when - start->mark->when).count();
  return DRIVER_OK;
}
