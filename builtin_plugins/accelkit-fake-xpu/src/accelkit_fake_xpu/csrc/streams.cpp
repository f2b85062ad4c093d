#include "streams.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>

#include "device.h"

namespace backend {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPooledStreams = 32;  // the size of torch.cuda's pool for each priority

// A queue and the thread that runs its work, which is started for the first item. Never destroyed, because threads may outlive main().
class Queue {
 public:
  bool is_idle() {
    if (C10_LIKELY(pending_.load(std::memory_order_acquire) == 0)) return true;
    std::lock_guard lock(mutex_);  // so that a caller that has seen the last event also sees an idle stream
    return pending_ == 0;
  }

  // `done` runs atomically with the removal of the work from the queue.
  void push(std::function<void()> work, std::function<void()> done = nullptr) {
    std::lock_guard lock(mutex_);
    if (!is_started_) std::thread([this] { run(); }).detach();
    is_started_ = true;
    pending_.fetch_add(1, std::memory_order_relaxed);
    works_.emplace_back(std::move(work), std::move(done));
    has_work_.notify_one();
  }

  void drain() {
    if (C10_LIKELY(pending_.load(std::memory_order_acquire) == 0)) return;
    std::unique_lock lock(mutex_);
    is_empty_.wait(lock, [this] { return pending_ == 0; });
  }

 private:
  [[noreturn]] void run() {
    for (;;) {
      std::function<void()> work, done;
      {
        std::unique_lock lock(mutex_);
        has_work_.wait(lock, [this] { return !works_.empty(); });
        std::tie(work, done) = std::move(works_.front());
        works_.pop_front();
      }
      if (work) work();
      work = nullptr;  // release its memory before anyone is notified
      std::lock_guard lock(mutex_);
      if (done) done();
      if (pending_.fetch_sub(1, std::memory_order_release) == 1) is_empty_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_work_, is_empty_;
  std::deque<std::pair<std::function<void()>, std::function<void()>>> works_;
  std::atomic<int64_t> pending_{0};
  bool is_started_ = false;
};

Queue& queue(c10::DeviceIndex device, c10::StreamId stream) {
  static auto* const queues = new std::array<std::array<Queue, kPooledStreams + 1>, kMostDevices>;
  TORCH_CHECK(stream >= 0 && stream <= kPooledStreams, "fake_xpu has no stream ", stream);
  return (*queues)[check_device(device)][stream];
}

thread_local std::array<c10::StreamId, kMostDevices> current{};

// The state of a recorded event, which becomes complete when the stream reaches its position.
struct Mark {
  std::mutex mutex;
  std::condition_variable reached;
  bool is_done = false;
  Clock::time_point when;

  void set() {
    std::lock_guard lock(mutex);
    is_done = true;
    when = Clock::now();
    reached.notify_all();
  }
  bool query() {
    std::lock_guard lock(mutex);
    return is_done;
  }
  void wait() {
    std::unique_lock lock(mutex);
    reached.wait(lock, [this] { return is_done; });
  }
};

// An event's most recent recording.
struct Event {
  std::shared_ptr<Mark> mark;
};

}  // namespace

c10::StreamId current_stream(c10::DeviceIndex device) noexcept { return current[device]; }

c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId stream) noexcept { return std::exchange(current[device], stream); }

c10::StreamId next_stream(c10::DeviceIndex device) {
  static std::array<std::atomic<uint32_t>, kMostDevices> given{};
  return given[check_device(device)]++ % kPooledStreams + 1;
}

bool is_idle(c10::DeviceIndex device, c10::StreamId stream) { return queue(device, stream).is_idle(); }

void enqueue(c10::DeviceIndex device, c10::StreamId stream, std::function<void()> work) {
  ensure_usable();
  queue(device, stream).push(std::move(work));
}

void drain(c10::DeviceIndex device, c10::StreamId stream) {
  ensure_usable();
  queue(device, stream).drain();
}

void drain_device(c10::DeviceIndex device) {
  for (c10::StreamId stream = 0; stream <= kPooledStreams; ++stream) drain(device, stream);
}

void record_event(void** event, c10::DeviceIndex device, c10::StreamId stream) {
  ensure_usable();
  if (*event == nullptr) *event = new Event;
  auto mark = std::make_shared<Mark>();
  static_cast<Event*>(*event)->mark = mark;
  if (is_idle(device, stream)) {
    mark->set();
  } else {
    queue(device, stream).push(nullptr, [mark] { mark->set(); });
  }
}

void wait_event(void* event, c10::DeviceIndex device, c10::StreamId stream) {
  if (is_event_done(event)) return;
  enqueue(device, stream, [mark = static_cast<Event*>(event)->mark] { mark->wait(); });
}

bool is_event_done(void* event) {
  ensure_usable();
  return event == nullptr || static_cast<Event*>(event)->mark->query();
}

void synchronize_event(void* event) {
  ensure_usable();
  if (event != nullptr) static_cast<Event*>(event)->mark->wait();
}

double elapsed_milliseconds(void* start, void* end) {
  const auto &from = *static_cast<Event*>(start)->mark, &to = *static_cast<Event*>(end)->mark;
  return std::chrono::duration<double, std::milli>(to.when - from.when).count();
}

void destroy_event(void* event) noexcept { delete static_cast<Event*>(event); }

}  // namespace backend
