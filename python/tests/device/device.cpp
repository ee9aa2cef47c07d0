// An accelerator for tests of what a GPU needs: memory that the host cannot read, and streams that do things later.
//
// It is PyTorch's device type PrivateUse1. Addresses of its memory are no addresses of the process, so that whoever
// reads there ends with a fault. A stream is a thread that does what it was given, each after a moment: copies and events
// are late, and who does not wait for them finds old values. All other operations are the CPU's, between copies that wait.

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
/// How late everything is.
constexpr auto MOMENT = std::chrono::microseconds(300);
/// Added to addresses: no processor takes the sum for one.
constexpr uintptr_t AWAY = uintptr_t(1) << 60;

c10::Device device() {
  return {TYPE, 0};
}

c10::Stream stream(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device(), id);
}

void* host(const void* pointer) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(pointer) & ~AWAY);
}

// Memory.

struct Memory final : c10::Allocator {
  static void release(void* pointer) {
    std::free(host(pointer));
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* own = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    void* away = own == nullptr ? nullptr : reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(own) | AWAY);
    return {away, away, &release, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(host(to), host(from), bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory)

// Streams and events.

class Queue {
 public:
  Queue() : thread_([this] { run(); }) {
    thread_.detach(); // As long as the process.
  }

  void put(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  bool idle() {
    std::lock_guard lock(mutex_);
    return tasks_.empty();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty(); });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      lock.unlock();
      std::this_thread::sleep_for(MOMENT);
      task();
      // Its tensors may be the last of Python's, which then waits for Python's lock, whose owner may wait for this one.
      task = nullptr;
      lock.lock();
      tasks_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

std::mutex queues_mutex;
std::map<c10::StreamId, Queue*> queues;
thread_local c10::StreamId current = 0;

Queue& queue(c10::StreamId id) {
  std::lock_guard lock(queues_mutex);
  auto& found = queues[id];
  if (found == nullptr) {
    found = new Queue;
  }
  return *found;
}

/// A point in a stream.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;

  void pass() {
    std::lock_guard lock(mutex);
    passed = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return passed; });
  }
};

/// The point that was recorded last.
using Event = std::shared_ptr<Mark>;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return TYPE;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return device();
  }
  c10::Device getDevice() const override {
    return device();
  }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  c10::Stream getStream(c10::Device) const override {
    return stream(current);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return stream(0);
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return stream(next++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return getNewStream(device(), 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto before = current;
    current = next.id();
    return stream(before);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return queue(stream.id()).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    queue(stream.id()).wait();
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    std::map<c10::StreamId, Queue*> all;
    {
      std::lock_guard lock(queues_mutex);
      all = queues;
    }
    for (auto& [id, each] : all) {
      each->wait();
    }
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event;
    }
    auto mark = std::make_shared<Mark>();
    *static_cast<Event*>(*event) = mark;
    queue(stream.id()).put([mark] { mark->pass(); });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      queue(stream.id()).put([mark = *static_cast<Event*>(event)] { mark->wait(); });
    }
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) {
      return true;
    }
    auto mark = *static_cast<Event*>(event);
    std::lock_guard lock(mark->mutex);
    return mark->passed;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      (*static_cast<Event*>(event))->wait();
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  /// All memory of the host is as good.
  bool isPinnedPtr(const void*) const override {
    return true;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::DeviceType::CPU);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* own = storage.unsafeGetStorageImpl();
    auto fresh = memory.allocate(bytes);
    if (bytes != 0 && own->nbytes() != 0) {
      memory.copy_data(fresh.get(), own->data(), std::min(bytes, own->nbytes()));
    }
    own->set_data_ptr_noswap(std::move(fresh));
    own->set_nbytes(bytes);
  }
};

// Operations.

/// The same elements, as memory that the host can read.
at::Tensor readable(const at::Tensor& tensor) {
  return at::from_blob(host(tensor.data_ptr()), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.numel() == 0) {
    return to;
  }
  auto resolved = from.resolve_conj().resolve_neg();
  auto& stream = queue(current);
  // As they are now: a tensor may have got other memory before its elements are copied.
  stream.put([source = readable(resolved), target = readable(to), kept = std::pair(resolved.storage(), to.storage())] {
    // Nothing of autograd, nor of the inference mode of whoever has given this.
    at::AutoDispatchBelowADInplaceOrView below;
    target.copy_(source);
  });
  bool host_waits = from.is_cpu() || to.is_cpu();
  if (host_waits && !non_blocking) {
    stream.wait();
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Tensor empty_memory_format(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory, keys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  auto begin = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), begin);
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  return self.cpu().item();
}

at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool transposed,
    at::IntArrayRef output_padding,
    int64_t groups) {
  auto own = bias && bias->defined() ? std::optional(bias->cpu()) : std::nullopt;
  auto found = at::convolution(
      input.cpu(), weight.cpu(), own, stride, padding, dilation, transposed, output_padding, groups);
  return found.to(device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& weight,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool transposed,
    at::IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> mask) {
  auto there = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device()) : tensor; };
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      gradient.cpu(), input.cpu(), weight.cpu(), at::IntArrayRef({weight.size(0)}), stride, padding, dilation,
      transposed, output_padding, groups, mask);
  return {there(of_input), there(of_weight), there(of_bias)};
}

/// Memory is given back to the host's allocator, which does not know of streams: it is kept for good.
void record_stream(at::Tensor& self, at::Stream) {
  static std::mutex mutex;
  static std::deque<c10::Storage> kept;
  std::lock_guard lock(mutex);
  kept.push_back(self.storage());
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  queue(current).wait();
  at::native::cpu_fallback(op, stack);
}

/// A kernel that takes so long.
void hold(double seconds) {
  queue(current).put([seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
}

TORCH_LIBRARY(simulated, library) {
  library.def("hold(float seconds) -> ()", hold);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("as_strided", as_strided);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("convolution_overrideable", convolution);
  library.impl("empty.memory_format", empty_memory_format);
  library.impl("empty_strided", empty_strided);
  library.impl("record_stream", record_stream);
  library.impl("resize_", resize);
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("view.dtype", TORCH_FN(at::native::view_dtype));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
}

const bool registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

} // namespace
