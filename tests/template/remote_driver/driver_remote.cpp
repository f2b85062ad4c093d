// A driver whose devices are in another process, the server (server.cpp): it owns the memory and runs the kernels. This file is written
// against driver.h alone. The variable DEVICE_SERVER is the path of the server's Unix socket.
//
// An address of device memory is a number that no processor accepts as an address: a host that dereferences one gets a segmentation fault.
// A stream is a connection: the server runs its requests in their order, in a thread of its own. Requests that need an answer at once, such
// as for memory, use other connections.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

namespace {

// -- the protocol, which server.cpp includes too -----------------------------------------------------------------------------------------

enum Kind : uint32_t { PROPERTIES, MEMORY, HAS_KERNEL, ALLOCATE, FREE, WAIT, IS_DONE, ELAPSED, BECOME_STREAM };  // answered
enum Work : uint32_t { WRITE = 100, READ, COPY, FILL, LAUNCH, WAIT_FOR, RECORD, FORGET };                         // of streams; READ is answered

// A request or an answer, followed by `bytes` bytes. The kind of an answer is a driver_status; the bytes of an error are its text.
struct Message {
  uint32_t kind = 0, device = 0;
  uint64_t numbers[3] = {};
  uint64_t bytes = 0;
};

bool send_all(int socket, const void* data, size_t bytes) {
  for (const auto* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, bytes -= sent;
  }
  return true;
}

bool receive_all(int socket, void* data, size_t bytes) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t received = recv(socket, at, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    at += received, bytes -= received;
  }
  return true;
}

bool send_message(int socket, const Message& message, const void* data) {
  return send_all(socket, &message, sizeof(message)) && send_all(socket, data, message.bytes);
}

ucred peer_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer;
}

sockaddr_un address_of_server() {
  sockaddr_un address{AF_UNIX, {}};
  const char* const path = std::getenv("DEVICE_SERVER");
  std::strncpy(address.sun_path, path == nullptr ? "" : path, sizeof(address.sun_path) - 1);
  return address;
}

}  // namespace

#ifndef SERVER

struct driver_stream_object {
  int device, socket;
  uint64_t id, queued = 0;
  std::mutex mutex;  // of the connection, and of `queued`
};

struct driver_event_object {
  uint64_t id = 0;  // of the latest recording; 0 before the first
  driver_stream stream = nullptr;
  uint64_t place = 0;  // in the stream
};

namespace {

thread_local std::string error_text;
auto& mutex = *new std::mutex;  // nothing here is destroyed: the last tensors are freed when the process ends
auto& idle_connections = *new std::vector<int>;
auto& streams = *new std::vector<driver_stream>;
auto& known_kernels = *new std::map<std::string, bool>;
uint64_t last_event = 0;
std::atomic<pid_t> server{0};

driver_status fail(driver_status status, std::string text) {
  error_text = std::move(text);
  return status;
}

driver_status lost() {
  const std::string which = server == 0 ? "there is none at " + std::string(address_of_server().sun_path) : "process " + std::to_string(server) + " ended";
  return fail(DRIVER_DEVICE_LOST, "the device was lost, because the process that runs it does not answer: " + which);
}

int connect_to_server() {
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto address = address_of_server();
  if (connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return close(made), -1;
  server = peer_of(made).pid;
  return made;
}

// Sends a request and waits for its answer, whose bytes go to `out`.
driver_status exchange(int socket, const Message& request, const void* data, Message& answer, void* out = nullptr) {
  if (socket < 0 || !send_message(socket, request, data) || !receive_all(socket, &answer, sizeof(answer))) return lost();
  if (answer.kind == DRIVER_OK) return receive_all(socket, out, answer.bytes) ? DRIVER_OK : lost();
  std::string text(answer.bytes, 0);
  return receive_all(socket, text.data(), text.size()) ? fail(static_cast<driver_status>(answer.kind), text) : lost();
}

// The same on a connection that no other thread uses meanwhile.
driver_status ask(const Message& request, Message& answer, const void* data = nullptr) {
  int socket = -1;
  {
    std::lock_guard lock(mutex);
    if (!idle_connections.empty()) socket = idle_connections.back(), idle_connections.pop_back();
  }
  if (socket < 0) socket = connect_to_server();
  const auto status = exchange(socket, request, data, answer);
  std::lock_guard lock(mutex);
  if (socket >= 0) idle_connections.push_back(socket);
  return status;
}

driver_status ask(const Message& request) {
  Message answer;
  return ask(request, answer);
}

driver_status push(driver_stream stream, const Message& work, const void* data = nullptr) {
  std::lock_guard lock(stream->mutex);
  ++stream->queued;
  return send_message(stream->socket, work, data) ? DRIVER_OK : lost();
}

uint64_t place_in(driver_stream stream) {
  std::lock_guard lock(stream->mutex);
  return stream->queued;
}

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }

driver_status synchronize_streams(int device) {  // -1: of all devices
  std::vector<driver_stream> all;
  {
    std::lock_guard lock(mutex);
    all = streams;
  }
  for (auto* const stream : all) {
    if (device != -1 && stream->device != device) continue;
    if (const auto status = driver_stream_synchronize(stream)) return status;
  }
  return DRIVER_OK;
}

}  // namespace

const char* driver_error_text(void) { return error_text.c_str(); }

driver_status driver_device_count(int* count) {
  const int socket = connect_to_server();
  Message answer;
  const auto status = exchange(socket, {PROPERTIES}, nullptr, answer);
  if (socket >= 0) close(socket);
  *count = static_cast<int>(answer.numbers[0]);
  return status;
}

driver_status driver_initialize(void) { return ask({PROPERTIES}); }

driver_status driver_device_properties(int, driver_properties* properties) {
  Message answer;
  if (const auto status = ask({PROPERTIES}, answer)) return status;
  std::snprintf(properties->name, sizeof(properties->name), "remote " BACKEND_NAME " in process %d", static_cast<int>(answer.numbers[1]));
  properties->total_memory = answer.numbers[2];
  return DRIVER_OK;
}

driver_status driver_device_synchronize(int device) { return synchronize_streams(device); }

driver_status driver_memory_info(int device, size_t* free, size_t* total) {
  Message answer;
  const auto status = ask({MEMORY, static_cast<uint32_t>(device)}, answer);
  *free = answer.numbers[0], *total = answer.numbers[1];
  return status;
}

driver_status driver_allocate(int device, size_t bytes, void** address) {
  Message answer;
  const auto status = ask({ALLOCATE, static_cast<uint32_t>(device), {bytes}}, answer);
  *address = reinterpret_cast<void*>(answer.numbers[0]);
  return status;
}

driver_status driver_free(int, void* address) {
  const auto status = synchronize_streams(-1);
  return status ? status : ask({FREE, 0, {number(address)}});
}

driver_status driver_host_allocate(size_t bytes, void** address) {
  *address = std::aligned_alloc(64, (bytes / 64 + 1) * 64);
  return *address == nullptr ? fail(DRIVER_OUT_OF_MEMORY, "the host has no more memory") : DRIVER_OK;
}

driver_status driver_host_free(void* address) {  // copies from and to host memory have ended when their functions return
  std::free(address);
  return DRIVER_OK;
}

driver_status driver_copy_to_device(driver_stream stream, void* to, const void* from_host, size_t bytes) {
  return push(stream, {WRITE, 0, {number(to)}, bytes}, from_host);
}

driver_status driver_copy_to_host(driver_stream stream, void* to_host, const void* from, size_t bytes) {
  std::lock_guard lock(stream->mutex);
  ++stream->queued;
  Message answer;
  return exchange(stream->socket, {READ, 0, {number(from), bytes}}, nullptr, answer, to_host);
}

driver_status driver_copy_on_device(driver_stream stream, void* to, const void* from, size_t bytes) {
  return push(stream, {COPY, 0, {number(to), number(from), bytes}});
}

driver_status driver_copy_to_peer(driver_stream stream, int, void* to_on_peer, const void* from, size_t bytes) {
  return push(stream, {COPY, 0, {number(to_on_peer), number(from), bytes}});
}

driver_status driver_fill(driver_stream stream, void* to, uint8_t value, size_t bytes) {
  return push(stream, {FILL, 0, {number(to), value, bytes}});
}

driver_status driver_launch(driver_stream stream, const char* kernel, const driver_argument* arguments, int count) {
  std::unique_lock lock(mutex);
  if (known_kernels.find(kernel) == known_kernels.end()) {
    lock.unlock();
    Message answer;
    if (const auto status = ask({HAS_KERNEL, 0, {}, std::strlen(kernel)}, answer, kernel)) return status;
    lock.lock();
    known_kernels[kernel] = answer.numbers[0] != 0;
  }
  if (!known_kernels[kernel]) return fail(DRIVER_NOT_IMPLEMENTED, std::string("there is no kernel ") + kernel);
  lock.unlock();
  std::string data(reinterpret_cast<const char*>(arguments), sizeof(driver_argument) * count);
  data += kernel;
  return push(stream, {LAUNCH, 0, {static_cast<uint64_t>(count)}, data.size()}, data.data());
}

driver_status driver_stream_create(int device, driver_stream* stream) {
  auto made = std::make_unique<driver_stream_object>();
  std::lock_guard lock(mutex);
  made->device = device, made->id = streams.size(), made->socket = connect_to_server();
  Message answer;
  if (const auto status = exchange(made->socket, {BECOME_STREAM, 0, {made->id}}, nullptr, answer)) return status;
  *stream = made.release();
  streams.push_back(*stream);
  return DRIVER_OK;
}

driver_status driver_stream_synchronize(driver_stream stream) { return ask({WAIT, 0, {stream->id, place_in(stream)}}); }

driver_status driver_stream_is_done(driver_stream stream, int* is_done) {
  Message answer;
  const auto status = ask({IS_DONE, 0, {stream->id, place_in(stream)}}, answer);
  *is_done = static_cast<int>(answer.numbers[0]);
  return status;
}

driver_status driver_stream_wait_event(driver_stream stream, driver_event event) {
  return event->id == 0 ? DRIVER_OK : push(stream, {WAIT_FOR, 0, {event->stream->id, event->place}});
}

driver_status driver_event_create(int, driver_event* event) {
  *event = new driver_event_object;
  return DRIVER_OK;
}

driver_status driver_event_destroy(driver_event event) {
  const auto status = event->id == 0 ? DRIVER_OK : push(event->stream, {FORGET, 0, {event->id}});
  delete event;
  return status;
}

driver_status driver_event_record(driver_event event, driver_stream stream) {
  if (event->id != 0) push(event->stream, {FORGET, 0, {event->id}});
  {
    std::lock_guard lock(mutex);
    event->id = ++last_event;
  }
  event->stream = stream;
  const auto status = push(stream, {RECORD, 0, {event->id}});
  event->place = place_in(stream);
  return status;
}

driver_status driver_event_is_done(driver_event event, int* is_done) {
  *is_done = 1;
  if (event->id == 0) return DRIVER_OK;
  Message answer;
  const auto status = ask({IS_DONE, 0, {event->stream->id, event->place}}, answer);
  *is_done = static_cast<int>(answer.numbers[0]);
  return status;
}

driver_status driver_event_synchronize(driver_event event) {
  return event->id == 0 ? DRIVER_OK : ask({WAIT, 0, {event->stream->id, event->place}});
}

driver_status driver_event_elapsed(driver_event start, driver_event end, double* milliseconds) {
  Message answer;
  const auto status = ask({ELAPSED, 0, {start->id, end->id}}, answer);
  std::memcpy(milliseconds, &answer.numbers[0], sizeof(double));
  return status;
}

#endif
