// The timer with which DistributedDataParallel measures the parts of a step. torch warns in every process about a device without a timer.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <memory>
#include <optional>

namespace backend {
namespace {

class Timer : public c10d::Timer {
 public:
  explicit Timer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    c10d::Timer::record(event);  // the time of the host, which the logger reads too
    auto& mark = marks_[static_cast<size_t>(event)];
    mark.emplace(c10::DeviceType::PrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
    mark->record(c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getStream(device_));
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto &from = marks_[static_cast<size_t>(start)], &to = marks_[static_cast<size_t>(end)];
    if (!from || !to) return std::nullopt;
    from->synchronize();
    to->synchronize();
    const double milliseconds = from->elapsedTime(*to);
    if (milliseconds < 0) return std::nullopt;  // `to` was recorded in an earlier step
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  c10::Device device_;
  std::array<std::optional<c10::Event>, 5> marks_;  // one for each value of the enum Event
};

const bool is_timer_registered = [] {
  c10d::TimerRegistry()->Register(c10::DeviceType::PrivateUse1, [](c10::Device device) { return std::make_unique<Timer>(device); });
  return true;
}();

}  // namespace
}  // namespace backend
