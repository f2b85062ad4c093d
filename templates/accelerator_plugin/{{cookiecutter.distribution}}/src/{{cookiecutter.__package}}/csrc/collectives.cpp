// A c10d backend for device tensors. It copies them to the host and lets gloo communicate, which works with any driver. If the
// driver has collectives of its own, call them here instead of gloo, on the current stream.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include "copies.h"
#include "device.h"

namespace backend {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A collective: gloo's work on host tensors, and what remains to be done with their values afterwards.
class HostWork final : public c10d::Work {
 public:
  HostWork(int rank, c10d::OpType type, WorkPtr inner, Tensors outputs, std::function<void()> finish)
      : c10d::Work(rank, type), inner_(std::move(inner)), outputs_(std::move(outputs)), finish_(std::move(finish)) {
    std::vector<c10::Device> devices;
    for (const auto& output : outputs_) {
      if (output.is_privateuseone() && std::find(devices.begin(), devices.end(), output.device()) == devices.end()) devices.push_back(output.device());
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
  }
  bool isCompleted() override { return future_->completed() || (inner_->isCompleted() && complete()); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override { return future_->hasError() ? future_->exception_ptr() : nullptr; }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return outputs_; }
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { inner_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (!future_->completed()) {
      try {
        inner_->wait(timeout);
      } catch (...) {
        if (!future_->completed()) future_->setError(std::current_exception());
      }
      complete();
    }
    future_->waitAndThrow();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    complete_in_background();
    return future_;
  }

 private:
  // Runs in the thread that waits first; other threads wait until that thread has finished.
  bool complete() {
    std::lock_guard lock(mutex_);
    if (future_->completed()) return true;
    try {
      if (auto error = inner_->exception()) std::rethrow_exception(error);
      c10::InferenceMode guard;  // tensors created in inference mode can be written only in this mode; other tensors can be written in any mode
      finish_();
      future_->markCompleted(c10::IValue(outputs_));
    } catch (...) {
      future_->setError(std::current_exception());
    }
    return true;
  }
  void complete_in_background();

  WorkPtr inner_;
  Tensors outputs_;
  std::function<void()> finish_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

void HostWork::complete_in_background() {
  if (future_->completed()) return;
  auto self = c10::intrusive_ptr<HostWork>::unsafe_reclaim_from_nonowning(this);
  std::thread([self = std::move(self)] {
    try {
      self->wait(kNoTimeout);
    } catch (...) {  // the future holds the exception
    }
  }).detach();
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.is_privateuseone() ? copy_to_host(tensor).contiguous() : tensor.contiguous(); }
Tensors on_host(const Tensors& tensors) {
  Tensors hosts;
  for (const auto& tensor : tensors) hosts.push_back(on_host(tensor));
  return hosts;
}
std::vector<Tensors> on_host(const std::vector<Tensors>& lists) {
  std::vector<Tensors> hosts;
  for (const auto& list : lists) hosts.push_back(on_host(list));
  return hosts;
}
Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}
void check_contiguous(const Tensors& tensors) {
  for (const auto& tensor : tensors) TORCH_CHECK(tensor.is_contiguous(), "Tensors must be contiguous");
}

class HostCollectives final : public c10d::Backend {
 public:
  explicit HostCollectives(c10::intrusive_ptr<c10d::Backend> gloo) : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return BACKEND_NAME "_ccl"; }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return gloo_->barrier(options); }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override { gloo_->monitoredBarrier(options, wait_all); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto hosts = on_host(tensors);
    return work(c10d::OpType::BROADCAST, gloo_->broadcast(hosts, options), tensors, hosts);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto hosts = on_host(tensors);
    return work(c10d::OpType::ALLREDUCE, gloo_->allreduce(hosts, summing(options)), tensors, hosts, is_average(options));
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    auto hosts = on_host(tensors);
    return work(c10d::OpType::ALLREDUCE_COALESCED, gloo_->allreduce_coalesced(hosts, summing(options)), tensors, hosts, is_average(options));
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto hosts = on_host(tensors);
    const auto inner = gloo_->reduce(hosts, summing(options));
    if (options.rootRank != getRank()) return work(c10d::OpType::REDUCE, inner, {}, hosts);
    return work(c10d::OpType::REDUCE, inner, tensors, hosts, is_average(options));
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = on_host(outputs);
    auto from = on_host(inputs);
    return work(c10d::OpType::ALLGATHER, gloo_->allgather(to, from, options), flat(outputs), flat(to));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    check_contiguous({output, input});
    auto to = on_host(output).view(-1), from = on_host(input).view(-1);
    return work(c10d::OpType::_ALLGATHER_BASE, gloo_->_allgather_base(to, from, options), {output}, {to});
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = on_host(outputs);
    auto from = on_host(inputs);
    return work(c10d::OpType::ALLGATHER_COALESCED, gloo_->allgather_coalesced(to, from, options), flat(outputs), flat(to));
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = rows(outputs), from = rows(inputs);
    return work(c10d::OpType::_ALLGATHER_BASE, gloo_->allgather_into_tensor_coalesced(to, from, options), outputs, to);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto to = on_host(outputs);
    auto from = on_host(inputs);
    return work(c10d::OpType::GATHER, gloo_->gather(to, from, options), flat(outputs), flat(to));
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    auto to = on_host(outputs);
    auto from = on_host(inputs);
    return work(c10d::OpType::SCATTER, gloo_->scatter(to, from, options), outputs, to);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override {
    auto to = on_host(outputs);
    auto from = on_host(inputs);
    return work(c10d::OpType::REDUCE_SCATTER, gloo_->reduce_scatter(to, from, summing(options)), outputs, to, is_average(options));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    check_contiguous({output, input});
    auto to = on_host(output).view(-1), from = on_host(input).view(-1);
    return work(c10d::OpType::_REDUCE_SCATTER_BASE, gloo_->_reduce_scatter_base(to, from, summing(options)), {output}, {to}, is_average(options));
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    auto to = rows(outputs), from = rows(inputs);
    const auto inner = gloo_->reduce_scatter_tensor_coalesced(to, from, summing(options));
    return work(c10d::OpType::_REDUCE_SCATTER_BASE, inner, outputs, to, is_average(options));
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override {
    auto to = on_host(output), from = on_host(input);
    return work(c10d::OpType::ALLTOALL_BASE, gloo_->alltoall_base(to, from, output_sizes, input_sizes, options), {output}, {to});
  }
  // gloo supports this only for a single tensor, so the lists are concatenated, and split again afterwards.
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    Tensors flat_inputs, parts;
    std::vector<int64_t> output_sizes, input_sizes;
    for (const auto& tensor : on_host(inputs)) {
      flat_inputs.push_back(tensor.view(-1));
      input_sizes.push_back(tensor.numel());
    }
    int64_t total = 0;
    for (const auto& tensor : outputs) total += output_sizes.emplace_back(tensor.numel());
    auto joined = at::cat(flat_inputs), received = at::empty({total}, joined.options());
    const auto split = received.split_with_sizes(output_sizes);
    return work(c10d::OpType::ALLTOALL, gloo_->alltoall_base(received, joined, output_sizes, input_sizes, options), outputs, split);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    auto hosts = on_host(tensors);
    return work(c10d::OpType::SEND, gloo_->send(hosts, to, tag), {}, hosts);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    auto hosts = on_host(tensors);
    return work(c10d::OpType::RECV, gloo_->recv(hosts, from, tag), tensors, hosts);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    auto hosts = on_host(tensors);
    return work(c10d::OpType::RECVANYSOURCE, gloo_->recvAnysource(hosts, tag), tensors, hosts);
  }

 private:
  static Tensors rows(const Tensors& tensors) {
    check_contiguous(tensors);
    Tensors found;
    for (const auto& tensor : tensors) found.push_back(on_host(tensor).view(-1));
    return found;
  }

  // gloo does not support averages, so sum and then divide.
  template <class Options>
  static bool is_average(const Options& options) { return options.reduceOp == c10d::ReduceOp::AVG; }
  template <class Options>
  static Options summing(Options options) {
    if (is_average(options)) options.reduceOp = c10d::ReduceOp::SUM;
    return options;
  }

  // Keeps `hosts` until gloo has finished, and then copies their values to `outputs`.
  WorkPtr work(c10d::OpType type, const WorkPtr& inner, const Tensors& outputs, const Tensors& hosts, bool is_averaged = false) {
    auto finish = [outputs, hosts, is_averaged, size = getSize()] {
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (is_averaged) hosts[i].is_floating_point() || hosts[i].is_complex() ? hosts[i].div_(size) : hosts[i].div_(size, "trunc");
        outputs[i].detach().copy_(hosts[i].view(outputs[i].sizes()));
      }
    };
    return c10::make_intrusive<HostWork>(getRank(), type, inner, outputs, finish);
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
};

// Python creates gloo and adds it to a group; this function replaces it.
void wrap_gloo(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  group->setBackend(kDeviceType, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<HostCollectives>(group->getBackend(kDeviceType)));
}

const bool is_wrap_gloo_defined = [] {
  static torch::Library library(torch::Library::FRAGMENT, BACKEND_NAME, std::nullopt, __FILE__, __LINE__);
  library.def("wrap_gloo(__torch__.torch.classes.c10d.ProcessGroup group) -> ()", &wrap_gloo);
  return true;
}();

}  // namespace
}  // namespace backend
