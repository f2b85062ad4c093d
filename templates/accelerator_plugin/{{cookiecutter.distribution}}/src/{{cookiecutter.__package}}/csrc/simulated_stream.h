// The streams of the simulated driver, each a thread with a queue, and the marks that events leave in them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

struct driver_stream_object {
  explicit driver_stream_object(int device_) : device(device_), thread([this] { run(); }) {}  // kept until the process ends
  // `then` runs at the moment at which the work counts as done, so that whoever sees its effect also sees that the stream is done.
  void push(std::function<void()> work, std::function<void()> then = nullptr) {
    std::lock_guard lock(mutex);
    queue.emplace_back(std::move(work), std::move(then));
    ++queued;
    changed.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex);
    const auto target = queued;
    changed.wait(lock, [&] { return done >= target; });
  }
  bool is_done() {
    std::lock_guard lock(mutex);
    return done == queued;
  }

  const int device;

 private:
  void run() {
    for (;;) {
      std::pair<std::function<void()>, std::function<void()>> next;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return !queue.empty(); });
        next = std::move(queue.front());
        queue.pop_front();
      }
      if (next.first) next.first();
      std::lock_guard lock(mutex);
      if (next.second) next.second();
      ++done;
      changed.notify_all();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<std::function<void()>, std::function<void()>>> queue;
  uint64_t queued = 0, done = 0;
  std::thread thread;  // last, because it uses the others
};

// A place in a stream. It is done when the stream has reached it.
struct Mark {
  std::mutex mutex;
  std::condition_variable reached;
  bool is_done = false;
  std::chrono::steady_clock::time_point when;
  void wait() {
    std::unique_lock lock(mutex);
    reached.wait(lock, [this] { return is_done; });
  }
};
