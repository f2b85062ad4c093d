// The process that runs the devices of driver_remote.cpp. It prints a line when it listens on the socket DEVICE_SERVER, and serves any number
// of host processes. What a process has allocated is freed when its last connection ends.
#define SERVER  // includes only the protocol
#include "driver_remote.cpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <new>
#include <thread>

namespace {

constexpr int kDevices = 2;
constexpr uint64_t kTotalMemory = uint64_t{4} << 30;                          // bytes of each device
constexpr uint64_t kFirstAddress = uint64_t{0x00F0} << 48, kAlignment = 256;  // no processor has such an address

std::mutex memory_mutex;
uint64_t used_memory[kDevices];

struct Block {
  std::unique_ptr<char[]> contents;
  uint64_t bytes;
  uint32_t device;
};

struct Stream {
  uint64_t done = 0;  // the number of requests that have been run
  driver_status status = DRIVER_OK;
  std::string error;  // the first one that no host has heard of
};

// What belongs to one host process.
struct Session {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Block> blocks;  // by their first address
  std::map<uint64_t, Stream> streams;
  std::map<uint64_t, std::chrono::steady_clock::time_point> recordings;
  uint64_t next_address = kFirstAddress;

  ~Session() {
    std::lock_guard lock(memory_mutex);
    for (const auto& [address, block] : blocks) used_memory[block.device] -= block.bytes;
  }
};

struct Failure {
  driver_status status;
  std::string text;
};

// Returns the contents of the memory at an address.
char* find(Session& session, uint64_t address, uint64_t bytes) {
  std::lock_guard lock(session.mutex);
  auto after = session.blocks.upper_bound(address);
  if (after != session.blocks.begin()) {
    const auto& [start, block] = *--after;
    if (address + bytes <= start + block.bytes) return block.contents.get() + (address - start);
  }
  throw Failure{DRIVER_INVALID_ARGUMENT, std::to_string(address) + " is not an address of the device, or the access ends beyond its block"};
}

uint64_t allocate(Session& session, uint32_t device, uint64_t bytes) {
  std::lock_guard lock(memory_mutex);
  const uint64_t left = kTotalMemory - used_memory[device];
  std::unique_ptr<char[]> contents(bytes <= left ? new (std::nothrow) char[bytes] : nullptr);
  if (contents == nullptr) throw Failure{DRIVER_OUT_OF_MEMORY, std::to_string(left) + " of " + std::to_string(kTotalMemory) + " bytes are free"};
  used_memory[device] += bytes;
  std::lock_guard session_lock(session.mutex);
  const uint64_t address = session.next_address;
  session.next_address += (bytes / kAlignment + 2) * kAlignment;
  session.blocks.emplace(address, Block{std::move(contents), bytes, device});
  return address;
}

void free_block(Session& session, uint64_t address) {
  find(session, address, 0);
  std::lock_guard lock(memory_mutex);
  std::lock_guard session_lock(session.mutex);
  const auto block = session.blocks.find(address);
  used_memory[block->second.device] -= block->second.bytes;
  session.blocks.erase(block);
}

void wait_for(Session& session, uint64_t stream, uint64_t place) {
  std::unique_lock lock(session.mutex);
  session.changed.wait(lock, [&] { return session.streams[stream].done >= place; });
}

// -- kernels ------------------------------------------------------------------------------------------------------------------------------

struct Argument {
  char* memory;
  int64_t integer;
  double real;
};

void add_float32(const Argument* given) {  // (out, a, b, alpha, n)
  auto* const out = reinterpret_cast<float*>(given[0].memory);
  const auto *const a = reinterpret_cast<float*>(given[1].memory), *const b = reinterpret_cast<float*>(given[2].memory);
  for (int64_t i = 0; i < given[4].integer; ++i) out[i] = a[i] + static_cast<float>(given[3].real) * b[i];
}

void matmul_float32(const Argument* given) {  // (out, a, b, m, k, n)
  auto* const out = reinterpret_cast<float*>(given[0].memory);
  const auto *const a = reinterpret_cast<float*>(given[1].memory), *const b = reinterpret_cast<float*>(given[2].memory);
  const int64_t m = given[3].integer, k = given[4].integer, n = given[5].integer;
  std::fill_n(out, m * n, 0.0F);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) out[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
}

const std::map<std::string, void (*)(const Argument*)> kKernels{{"add_float32", &add_float32}, {"matmul_float32", &matmul_float32}};

void launch(Session& session, uint64_t count, const std::vector<char>& data) {
  const auto* const arguments = reinterpret_cast<const driver_argument*>(data.data());
  std::vector<Argument> found;
  for (uint64_t i = 0; i < count; ++i) {
    const bool is_address = arguments[i].kind == driver_argument::DRIVER_ADDRESS;
    char* const memory = is_address ? find(session, reinterpret_cast<uint64_t>(arguments[i].address), 0) : nullptr;
    found.push_back({memory, arguments[i].integer, arguments[i].real});
  }
  const size_t size = count * sizeof(driver_argument);
  kKernels.at(std::string(data.data() + size, data.size() - size))(found.data());
}

// -- requests -----------------------------------------------------------------------------------------------------------------------------

// Runs a request that is answered at once.
Message answer(Session& session, const Message& request, const std::vector<char>& data) {
  const auto& n = request.numbers;
  switch (request.kind) {
    case PROPERTIES:
      return {DRIVER_OK, 0, {kDevices, static_cast<uint64_t>(getpid()), kTotalMemory}};
    case MEMORY: {
      std::lock_guard lock(memory_mutex);
      return {DRIVER_OK, 0, {kTotalMemory - used_memory[request.device], kTotalMemory}};
    }
    case HAS_KERNEL:
      return {DRIVER_OK, 0, {kKernels.count(std::string(data.data(), data.size()))}};
    case ALLOCATE:
      return {DRIVER_OK, 0, {allocate(session, request.device, n[0])}};
    case FREE:
      free_block(session, n[0]);
      return {};
    case WAIT: {
      wait_for(session, n[0], n[1]);
      std::lock_guard lock(session.mutex);
      auto& stream = session.streams[n[0]];
      const auto status = std::exchange(stream.status, DRIVER_OK);
      if (status != DRIVER_OK) throw Failure{status, stream.error};
      return {};
    }
    case IS_DONE: {
      std::lock_guard lock(session.mutex);
      return {DRIVER_OK, 0, {session.streams[n[0]].done >= n[1]}};
    }
    case ELAPSED: {
      std::lock_guard lock(session.mutex);
      const auto start = session.recordings.find(n[0]), end = session.recordings.find(n[1]);
      if (start == session.recordings.end() || end == session.recordings.end()) throw Failure{DRIVER_INVALID_ARGUMENT, "an event is not done"};
      const double milliseconds = std::chrono::duration<double, std::milli>(end->second - start->second).count();
      Message message;
      std::memcpy(&message.numbers[0], &milliseconds, sizeof(double));
      return message;
    }
  }
  throw Failure{DRIVER_INVALID_ARGUMENT, "unknown request"};
}

// Runs the work of a stream. Returns the memory that is sent to the host, which is null unless the request is READ.
const char* run(Session& session, const Message& work, const std::vector<char>& data) {
  const auto& n = work.numbers;
  switch (work.kind) {
    case WRITE:
      std::memcpy(find(session, n[0], data.size()), data.data(), data.size());
      return nullptr;
    case READ:
      return find(session, n[0], n[1]);
    case COPY:
      std::memmove(find(session, n[0], n[2]), find(session, n[1], n[2]), n[2]);
      return nullptr;
    case FILL:
      std::memset(find(session, n[0], n[2]), static_cast<int>(n[1]), n[2]);
      return nullptr;
    case LAUNCH:
      launch(session, n[0], data);
      return nullptr;
    case WAIT_FOR:
      wait_for(session, n[0], n[1]);
      return nullptr;
    case RECORD: {
      std::lock_guard lock(session.mutex);
      session.recordings[n[0]] = std::chrono::steady_clock::now();
      return nullptr;
    }
    case FORGET: {
      std::lock_guard lock(session.mutex);
      session.recordings.erase(n[0]);
      return nullptr;
    }
  }
  throw Failure{DRIVER_INVALID_ARGUMENT, "unknown work"};
}

bool receive(int socket, Message& message, std::vector<char>& data) {
  if (!receive_all(socket, &message, sizeof(message))) return false;
  data.resize(message.bytes);
  return receive_all(socket, data.data(), data.size());
}

bool send_failure(int socket, const Failure& failure) {
  return send_message(socket, {static_cast<uint32_t>(failure.status), 0, {}, failure.text.size()}, failure.text.data());
}

void serve_stream(int socket, Session& session, uint64_t id) {
  Message work;
  std::vector<char> data;
  bool is_connected = true;
  while (is_connected && receive(socket, work, data)) {
    const char* contents = nullptr;
    Failure failure{DRIVER_OK, ""};
    try {
      contents = run(session, work, data);
    } catch (const Failure& raised) {
      failure = raised;
    }
    {
      std::lock_guard lock(session.mutex);
      auto& stream = session.streams[id];
      if (work.kind != READ && stream.status == DRIVER_OK) stream.status = failure.status, stream.error = failure.text;
      ++stream.done;
      session.changed.notify_all();
    }
    if (work.kind != READ) continue;
    is_connected = failure.status ? send_failure(socket, failure) : send_message(socket, {DRIVER_OK, 0, {}, work.numbers[1]}, contents);
  }
  std::lock_guard lock(session.mutex);
  session.streams[id].done = std::numeric_limits<uint64_t>::max();  // nothing waits for a process that ended
  session.changed.notify_all();
}

void serve(int socket, const std::shared_ptr<Session>& session) {
  Message request;
  std::vector<char> data;
  bool is_connected = true;
  while (is_connected && receive(socket, request, data)) {
    if (request.kind == BECOME_STREAM) {
      {
        std::lock_guard lock(session->mutex);
        session->streams[request.numbers[0]];
      }
      if (send_message(socket, {DRIVER_OK}, nullptr)) serve_stream(socket, *session, request.numbers[0]);
      break;
    }
    try {
      is_connected = send_message(socket, answer(*session, request, data), nullptr);
    } catch (const Failure& failure) {
      is_connected = send_failure(socket, failure);
    }
  }
  close(socket);
}

}  // namespace

int main() {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto address = address_of_server();
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 || listen(listener, 64) != 0) {
    std::perror(address.sun_path);
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  std::map<pid_t, std::weak_ptr<Session>> sessions;
  for (int client = 0; (client = accept(listener, nullptr, nullptr)) >= 0;) {
    const pid_t host = peer_of(client).pid;
    auto session = sessions[host].lock();
    if (session == nullptr) sessions[host] = session = std::make_shared<Session>();
    std::thread(serve, client, session).detach();
  }
  return 1;
}
