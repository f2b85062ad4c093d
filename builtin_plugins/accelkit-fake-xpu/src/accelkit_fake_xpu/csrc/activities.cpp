#include "activities.h"

#include <c10/util/ApproximateClock.h>

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "faults.h"

// torch 2.13 and later let a backend add its activities to those that torch.profiler (Kineto) records.
#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>) && __has_include(<IActivityProfiler.h>)
#define HAS_ACTIVITY_PROFILER
#define USE_KINETO
#define FMT_HEADER_ONLY
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#endif

namespace backend {

std::atomic<bool> is_recording_activities{false};

namespace {

struct Record {
  ActivityKind kind;
  c10::DeviceIndex device;
  c10::StreamId stream;
  const char* name;
  uint64_t caller;
  int64_t start_ns, end_ns;
};

// Never destroyed, because threads may outlive main().
struct Records {
  std::mutex mutex;
  std::vector<Record> all;
};
Records& records() {
  static auto* const kept = new Records;
  return *kept;
}

std::atomic<uint64_t> session_number{0};

// The operators that this thread is in, from the outermost to the innermost, since the recording `session` began.
struct Operators {
  uint64_t session = 0;
  std::vector<uint64_t> ids;
};
thread_local Operators operators;

}  // namespace

uint64_t recorded_operator() noexcept {
  const bool is_current = operators.session == session_number.load(std::memory_order_relaxed);
  return is_current && !operators.ids.empty() ? operators.ids.back() : 0;
}

void Activity::start(const char* name, c10::DeviceIndex device, c10::StreamId stream, uint64_t caller) {
  if (C10_LIKELY(!is_recording_activities.load(std::memory_order_relaxed))) return;
  name_ = name;
  device_ = device;
  stream_ = stream;
  caller_ = caller;
  start_ns_ = c10::getTime();
}

void Activity::record() const noexcept {
  const int64_t end_ns = c10::getTime();
  std::lock_guard lock(records().mutex);
  if (is_recording_activities) records().all.push_back({kind_, device_, stream_, name_, caller_, start_ns_, end_ns});
}

#ifdef HAS_ACTIVITY_PROFILER

namespace {

using libkineto::ActivityType;

ActivityType type_of(ActivityKind kind) { return kind == ActivityKind::kKernel ? ActivityType::CONCURRENT_KERNEL : ActivityType::GPU_MEMCPY; }

// The name of a kernel is that of its operator with a suffix ("mm_kernel" for aten::mm), because tables list both.
std::string name_of(const Record& record) {
  const std::string name(record.name);
  const auto space = name.rfind("::");
  return record.kind == ActivityKind::kCopy ? name : name.substr(space == std::string::npos ? 0 : space + 2) + "_kernel";
}

// Applies the requested fault of recordings, if any.
void spoil(std::vector<Record>& recorded) {
  if (is_recording_wrong("no_kernels")) std::erase_if(recorded, [](const Record& record) { return record.kind == ActivityKind::kKernel; });
  if (is_recording_wrong("twice")) {
    const auto once = recorded;
    recorded.insert(recorded.end(), once.begin(), once.end());
  }
  if (is_recording_wrong("caller")) {
    for (size_t i = recorded.size(); i-- > 1;) recorded[i].caller = recorded[i - 1].caller;
  }
  for (auto& record : recorded) {
    if (is_recording_wrong("microseconds")) record.end_ns = record.start_ns + (record.end_ns - record.start_ns) / 1000;
    if (is_recording_wrong("early")) record.start_ns -= 5'000'000, record.end_ns -= 5'000'000;
    if (is_recording_wrong("device")) record.device = 0;
  }
}

// One recording, from Kineto's start() to its stop().
class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    std::lock_guard lock(records().mutex);
    if (!is_recording_wrong("stale")) records().all.clear();
    ++session_number;
    is_recording_activities = true;
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    std::lock_guard lock(records().mutex);
    is_recording_activities = false;
    recorded_ = is_recording_wrong("stale") ? records().all : std::exchange(records().all, {});
    spoil(recorded_);
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, INT64_MAX);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start_ns, int64_t end_ns) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start_ns, end_ns, BACKEND_NAME);
    for (const auto& record : recorded_) {
      if ((record.start_ns < start_ns || record.end_ns > end_ns) && faults().recording.empty()) continue;
      buffer_->emplace_activity(buffer_->span, type_of(record.kind), name_of(record));
      auto& activity = *buffer_->activities.back();
      activity.startTime = record.start_ns;
      activity.endTime = record.end_ns;
      activity.device = record.device;
      activity.resource = static_cast<int32_t>(record.stream);
      activity.id = static_cast<int32_t>(record.caller);
      activity.linked = record.caller == 0 ? nullptr : linked(static_cast<int32_t>(record.caller));
      activity.log(logger);
    }
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }  // a session has several devices
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::set<std::pair<c10::DeviceIndex, c10::StreamId>> streams;
    for (const auto& record : recorded_) streams.emplace(record.device, record.stream);
    std::vector<libkineto::ResourceInfo> infos;
    for (const auto& [device, stream] : streams) infos.push_back({stream, stream, device, "stream " + std::to_string(stream)});
    return infos;
  }

  void pushCorrelationId(uint64_t id) override {
    const auto session = session_number.load(std::memory_order_relaxed);
    if (operators.session != session) operators = {session, {}};
    operators.ids.push_back(id);
  }
  void popCorrelationId() override {
    if (!operators.ids.empty()) operators.ids.pop_back();
  }

 private:
  std::vector<Record> recorded_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class ActivityProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types, const libkineto::Config&) override {
    const bool is_wanted = types.count(ActivityType::CONCURRENT_KERNEL) || types.count(ActivityType::GPU_MEMCPY);
    return is_wanted ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  std::string name_{BACKEND_NAME};
  std::set<ActivityType> types_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY};
};

REGISTER_PRIVATEUSE1_PROFILER(ActivityProfiler);

}  // namespace

#endif

}  // namespace backend
