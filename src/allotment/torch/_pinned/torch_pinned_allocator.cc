/* PyTorch's interface of pinned memory over a PinnedAllocator: compiled against the PyTorch found on the machine.
 *
 * It decides nothing. Requests go to the table of pinned_points.h; this file converts types, errors and figures. What
 * the table leaves to a framework is here: the history with PyTorch's contexts, and streams of other devices.
 *
 * A block's context (of its DataPtr) is its address. Memory that PyTorch's own allocator pinned before stays with it:
 * it has another deleter, and what is recorded for it is passed on. */

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pinned_points.h"
#include "versions.hpp"

namespace allotment {
namespace {

using c10::DeviceIndex;
using c10::MempoolId_t;
using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
using CudaConfig = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

/* Makes the allocator of a device, at the first request; NULL, with the reason as text. Takes the interpreter lock. */
using Make = const allotment_pinned_points* (*)(int device, char* text, size_t capacity);

Make make = nullptr;
std::atomic<const allotment_pinned_points*> made{nullptr};
at::HostAllocator* before = nullptr;

/* Ends with a 0 that is not counted. */
struct Text {
    char words[512] = {};
    std::string said() const { return words; }
};

std::string last_error(const allotment_pinned_points* table, int* failure) {
    Text text;
    table->last_error(table->context, text.words, sizeof(text.words) - 1, failure);
    return text.said();
}

/* An exception of PyTorch's code that the table called. It must not pass through the table, so it is kept until the
 * call has returned, and thrown again then. */
thread_local std::exception_ptr pending_exception;

[[noreturn]] void fail(const allotment_pinned_points* table) {
    if (pending_exception) std::rethrow_exception(std::exchange(pending_exception, nullptr));
    int failure = 0;
    const std::string words = last_error(table, &failure);
    C10_THROW_ERROR(Error, failure == ALLOTMENT_PINNED_OUT_OF_MEMORY ? "CUDA error: out of memory (" + words + ")" : words);
}

void expect(const allotment_pinned_points* table, int ok) {
    if (C10_UNLIKELY(!ok)) fail(table);
}

uint64_t number_of(const void* address) { return reinterpret_cast<uint64_t>(address); }

/* The stream that shows whether the calling thread is in a capture: the current one of the current device. */
uint64_t current_stream(int) {
    try {
        return number_of(c10::cuda::getCurrentCUDAStream().stream());
    } catch (...) {
        return 0;       /* the default stream, which is never captured */
    }
}

bool is_capturing(c10::cuda::CUDAStream stream) {
    auto status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream.stream(), &status) != cudaSuccess) (void)cudaGetLastError();
    return status != cudaStreamCaptureStatusNone;
}

/* --- settings --- */

allotment_pinned_settings settings_now() {
    allotment_pinned_settings found{};
    found.use_background_threads = Config::pinned_use_background_threads();
    found.use_host_register = CudaConfig::pinned_use_cuda_host_register();
    found.register_threads = CudaConfig::pinned_num_register_threads();
#if TORCH_CATCHES_PINNED_FREES
    found.catch_all = CudaConfig::pinned_free_catch_all();
#endif
#if TORCH_BOUNDS_PINNED_MEMORY
    found.max_round_threshold = Config::pinned_max_round_threshold();
    found.max_cached_size = Config::pinned_max_cached_size();
#else
    found.max_round_threshold = found.max_cached_size = ~uint64_t{0};
#endif
    return found;
}

/* PyTorch's own parser first: what it refuses does not reach us. Until the first request nothing is to be changed: an
 * allocator is made with the settings of that moment. */
std::atomic<bool> settings_changed{false};

void follow_settings() {
    auto& hook = Config::getConfigParserHook();
    hook = [parse = hook](const std::string& text) {
        if (parse) parse(text);
        settings_changed = true;
        const auto* table = made.load();
        const auto settings = settings_now();
        if (table != nullptr) expect(table, table->configure(table->context, &settings));
    };
}

/* --- streams of other devices --- */

/* A table knows the streams of one device. A block that another device's stream uses is freed by two steps: an event
 * on each such stream, and the free once all of them are done. */
class Elsewhere {
  public:
    void add(void* address, c10::cuda::CUDAStream stream) {
        std::lock_guard<std::mutex> guard(mutex);
        auto& streams = used[address];
        for (const auto& known : streams) {
            if (known == stream) return;
        }
        streams.push_back(stream);
        any = true;
    }

    /* Whether the free of this block has to wait; then a later `poll` does it. A capture has no events. */
    bool takes(void* address) {
        if (C10_LIKELY(!any.load(std::memory_order_relaxed))) return false;
        std::vector<c10::cuda::CUDAStream> streams;
        {
            std::lock_guard<std::mutex> guard(mutex);
            auto found = used.find(address);
            if (found == used.end()) return false;
            streams = std::move(found->second);
            used.erase(found);
        }
        Waiting waiting{address, {}};
        for (const auto& stream : streams) {
            const c10::cuda::CUDAGuard device(stream.device_index());
            if (is_capturing(stream)) continue;
            cudaEvent_t event = nullptr;
            if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess ||
                cudaEventRecord(event, stream.stream()) != cudaSuccess) {
                (void)cudaGetLastError();
                (void)cudaDeviceSynchronize();
                if (event != nullptr) (void)cudaEventDestroy(event);
                continue;
            }
            waiting.events.push_back(event);
        }
        if (waiting.events.empty()) return false;
        std::lock_guard<std::mutex> guard(mutex);
        queue.push_back(std::move(waiting));
        return true;
    }

    /* Free what is done, oldest first. */
    template <typename Free>
    void poll(const Free& release) {
        if (C10_LIKELY(!any.load(std::memory_order_relaxed))) return;
        std::vector<void*> done;
        {
            std::lock_guard<std::mutex> guard(mutex);
            while (!queue.empty() && is_done(queue.front())) {
                done.push_back(queue.front().address);
                queue.pop_front();
            }
            if (queue.empty() && used.empty()) any = false;
        }
        for (void* address : done) release(address);
    }

  private:
    struct Waiting {
        void* address;
        std::vector<cudaEvent_t> events;
    };

    static bool is_done(Waiting& waiting) {
        while (!waiting.events.empty()) {
            if (cudaEventQuery(waiting.events.back()) == cudaErrorNotReady) {
                (void)cudaGetLastError();
                return false;
            }
            (void)cudaEventDestroy(waiting.events.back());
            waiting.events.pop_back();
        }
        return true;
    }

    std::atomic<bool> any{false};
    std::mutex mutex;
    std::unordered_map<void*, std::vector<c10::cuda::CUDAStream>> used;
    std::deque<Waiting> queue;
};

/* --- the history --- */

#if TORCH_RECORDS_PINNED_MEMORY
using c10::CachingDeviceAllocator::CreateContextFn;
using c10::CachingDeviceAllocator::HostSegmentInfo;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;
using Context = std::shared_ptr<c10::GatheredContext>;

static_assert(TraceEntry::ALLOC == 0 && TraceEntry::FREE_REQUESTED == 1 && TraceEntry::FREE_COMPLETED == 2 &&
              TraceEntry::SEGMENT_ALLOC == 3 && TraceEntry::SEGMENT_FREE == 4, "actions are in the order of the table");

class History {
  public:
    /* A context of the calling thread for the actions of one call. Gathered before the allocator's lock is taken: it
     * may need the interpreter. */
    class Call {
      public:
        Call(const History& history, RecordContext level) : outer(std::exchange(here(), nullptr)) {
            if (C10_UNLIKELY(history.level.load(std::memory_order_acquire) >= level)) {
                here() = history.recorder.load(std::memory_order_relaxed)();
            }
        }
        ~Call() { here() = std::move(outer); }
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;

      private:
        Context outer;
    };

    void record(bool enabled, CreateContextFn with, size_t most, RecordContext when, bool clear) {
        std::lock_guard<std::mutex> guard(mutex);
        if (enabled) {
            recorder = with;
            level.store(when, std::memory_order_release);
            entries.setMaxEntries(most);
        } else {
            level.store(RecordContext::NEVER, std::memory_order_release);
            contexts.clear();
            external.clear();
        }
        on = enabled;
        if (clear) entries.clear();
    }

    bool is_on() const { return on; }

    /* The table's listener. */
    static void note(void* self, int action, uint64_t address, uint64_t size, uint64_t first, uint64_t second) {
        try {
            static_cast<History*>(self)->add(static_cast<TraceEntry::Action>(action), address, size, {first, second});
        } catch (...) {
            /* losing an entry is better than failing the request */
        }
    }

    void add(TraceEntry::Action action, uint64_t address, uint64_t size, MempoolId_t pool) {
        std::lock_guard<std::mutex> guard(mutex);
        Context context = action == TraceEntry::SEGMENT_FREE ? nullptr : here();
        auto known = contexts.find(address);
        if (action == TraceEntry::ALLOC) {
            if (context != nullptr) contexts[address] = context;
        } else if (action != TraceEntry::SEGMENT_ALLOC && context == nullptr && known != contexts.end()) {
            context = known->second;
        }
        if (action == TraceEntry::FREE_COMPLETED && known != contexts.end()) contexts.erase(known);
        if (level.load(std::memory_order_relaxed) < RecordContext::ALLOC) context = nullptr;
        TraceEntry entry(action, -1, address, size, nullptr, pool, c10::getApproximateTime(), std::move(context));
        entries.insertEntries(entry);
    }

    /* Memory that was pinned without the allocator. */
    void add_external(void* address, size_t size) {
        if (!on) return;
        const Call call(*this, RecordContext::STATE);
        {
            std::lock_guard<std::mutex> guard(mutex);
            external[number_of(address)] = {size, here()};
        }
        add(TraceEntry::SEGMENT_ALLOC, number_of(address), size, {0, 0});
        add(TraceEntry::ALLOC, number_of(address), size, {0, 0});
    }

    void drop_external(void* address) {
        size_t size = 0;
        {
            std::lock_guard<std::mutex> guard(mutex);
            auto found = external.find(number_of(address));
            if (found == external.end()) return;
            size = found->second.first;
            external.erase(found);
        }
        const Call call(*this, RecordContext::ALL);
        add(TraceEntry::FREE_REQUESTED, number_of(address), size, {0, 0});
        add(TraceEntry::FREE_COMPLETED, number_of(address), size, {0, 0});
        add(TraceEntry::SEGMENT_FREE, number_of(address), size, {0, 0});
    }

    /* Add contexts to the blocks of the allocator, and the memory that was pinned without it. */
    void complete(std::vector<HostSegmentInfo>& segments) {
        std::lock_guard<std::mutex> guard(mutex);
        for (auto& segment : segments) {
            auto found = contexts.find(segment.address);
            if (found != contexts.end()) segment.context_when_allocated = found->second;
        }
        for (const auto& [address, found] : external) {
            HostSegmentInfo segment;
            segment.address = address;
            segment.size = found.first;
            segment.allocated = segment.active = true;
            segment.context_when_allocated = found.second;
            segments.push_back(std::move(segment));
        }
    }

    std::vector<TraceEntry> read() {
        const auto nanoseconds = clock.makeConverter();
        std::vector<TraceEntry> found;
        entries.getEntries(found);
        for (auto& entry : found) entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
        return found;
    }

  private:
    static Context& here() {
        thread_local Context context;
        return context;
    }

    std::atomic<bool> on{false};
    std::atomic<CreateContextFn> recorder{nullptr};
    std::atomic<RecordContext> level{RecordContext::NEVER};
    std::mutex mutex;
    c10::RingBuffer<TraceEntry> entries;
    std::unordered_map<uint64_t, Context> contexts;
    std::unordered_map<uint64_t, std::pair<size_t, Context>> external;
    c10::ApproximateClockToUnixTimeConverter clock;
};
#endif

/* --- figures --- */

c10::CachingAllocator::Stat stat_of(const allotment_pinned_count& count) {
    c10::CachingAllocator::Stat out;
    out.current = count.current;
    out.peak = count.peak;
    out.allocated = count.allocated;
    out.freed = count.freed;
    return out;
}

c10::CachingAllocator::DurationStat duration_of(const allotment_pinned_time& time) {
    c10::CachingAllocator::DurationStat out;
    out.total = time.total;
    out.max = time.longest;
    out.min = time.shortest;
    out.count = time.count;
    return out;
}

/* --- the interface --- */

using Filter = std::function<bool(c10::Stream)>;

int filter_accepts(void* self, uint64_t) {
    try {
        return (*static_cast<Filter*>(self))(c10::cuda::getCurrentCUDAStream());
    } catch (...) {
        if (!pending_exception) pending_exception = std::current_exception();
        return 0;
    }
}

void filter_drop(void* self) { delete static_cast<Filter*>(self); }

void delete_block(void* address);

struct PinnedMemory final : at::HostAllocator {
    at::DataPtr allocate(size_t size) override {
        void* address = nullptr;
        if (size != 0) {
            const auto* table = table_made();
#if TORCH_RECORDS_PINNED_MEMORY
            const History::Call call(history, RecordContext::STATE);
#endif
            poll(table);
            address = reinterpret_cast<void*>(table->allocate(table->context, size));
            if (C10_UNLIKELY(address == nullptr)) fail(table);
            if (C10_UNLIKELY(pending_exception != nullptr)) {
                table->free(table->context, number_of(address));
                fail(table);
            }
        }
        return {address, address, &delete_block, at::Device(at::DeviceType::CPU)};
    }

    /* Called by destructors, which must not throw. */
    void release(void* address) noexcept {
        if (address == nullptr) return;
        const auto* table = made.load(std::memory_order_acquire);
        try {
#if TORCH_RECORDS_PINNED_MEMORY
            const History::Call call(history, RecordContext::ALL);
#endif
            if (elsewhere.takes(address)) return;
            if (C10_UNLIKELY(!table->free(table->context, number_of(address)))) warn(table);
        } catch (...) {
            warn(table);
        }
    }

    static void warn(const allotment_pinned_points* table) noexcept {
        try {
            TORCH_WARN_ONCE("a block of pinned memory cannot be freed: ", last_error(table, nullptr));
        } catch (...) {     /* warnings are errors here */
        }
    }

    void poll(const allotment_pinned_points* table) {
        elsewhere.poll([table](void* address) {
            if (!table->free(table->context, number_of(address))) warn(table);
        });
    }

    bool record_event(void* address, void* context, c10::Stream stream) override {
        const auto* table = made.load(std::memory_order_acquire);
        if (C10_LIKELY(table != nullptr)) {
            for (void* block : {context, address}) {
                if (block == nullptr || !table->is_lent(table->context, number_of(block))) continue;
                const c10::cuda::CUDAStream used(stream);
                const bool is_elsewhere = used.device_index() != table->device;
                if (C10_UNLIKELY(is_elsewhere)) elsewhere.add(block, used);
                /* A capture is the same for streams of every device: the table asks whether the stream is in one. */
                if (C10_LIKELY(!is_elsewhere) || is_capturing(used)) {
                    expect(table, table->record_stream(table->context, number_of(block), number_of(used.stream())));
                }
                return true;
            }
        }
        return before->record_event(address, context, stream);
    }

    void empty_cache() override {
        before->empty_cache();
        const auto* table = made.load(std::memory_order_acquire);
        if (table == nullptr) return;
        poll(table);
        expect(table, table->empty_cache(table->context));
    }

    void copy_data(void* destination, const void* source, std::size_t count) const override {
        std::memcpy(destination, source, count);
    }

    at::HostStats get_stats() override {
        at::HostStats out;
        const auto* table = made.load(std::memory_order_acquire);
        if (table == nullptr) return out;
        allotment_pinned_stats stats{};
        expect(table, table->stats(table->context, &stats));
        out.allocations = stat_of(stats.allocations);
        out.allocated_bytes = stat_of(stats.allocated_bytes);
        out.active_requests = stat_of(stats.active_requests);
        out.active_bytes = stat_of(stats.active_bytes);
        out.host_alloc_time = duration_of(stats.obtaining);
        out.host_free_time = duration_of(stats.returning);
        out.num_host_alloc = stats.allocations.allocated;
        out.num_host_free = stats.allocations.freed;
        for (size_t index = 0; index < out.bucket_allocation.size() && index < ALLOTMENT_PINNED_CLASSES; ++index) {
            out.bucket_allocation[index] = stats.classes[index];
        }
        return out;
    }

    void reset_accumulated_stats() override { reset(false); }
    void reset_peak_stats() override { reset(true); }

    static void reset(bool only_peaks) {
        const auto* table = made.load(std::memory_order_acquire);
        if (table != nullptr) expect(table, table->reset(table->context, only_peaks));
    }

    void begin_allocate_to_pool(MempoolId_t pool, Filter filter) override {
        const auto* table = table_made();
        auto kept = std::make_unique<Filter>(std::move(filter));
        expect(table, table->begin_allocate_to_pool(
            table->context, pool.first, pool.second, filter_accepts, filter_drop, kept.get()));
        kept.release();
    }

    /* Captures that began before this allocator was in place have their pool in PyTorch's own. */
    void end_allocate_to_pool(MempoolId_t pool) override {
        const auto* table = made.load(std::memory_order_acquire);
        if (table != nullptr && table->end_allocate_to_pool(table->context, pool.first, pool.second)) return;
        before->end_allocate_to_pool(pool);
    }

    void release_pool(MempoolId_t pool) override {
        const auto* table = made.load(std::memory_order_acquire);
        if (table != nullptr && table->release_pool(table->context, pool.first, pool.second)) return;
        before->release_pool(pool);
    }

#if TORCH_RECORDS_PINNED_MEMORY
    void record_history(
        bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear) override {
        history.record(enabled, recorder, most, when, clear);
        listen(made.load(std::memory_order_acquire));
    }

    bool is_history_enabled() const override { return history.is_on(); }

    std::vector<HostSegmentInfo> get_segments() override {
        std::vector<HostSegmentInfo> found;
        const auto* table = made.load(std::memory_order_acquire);
        if (table != nullptr) {
            expect(table, table->visit(
                table->context,
                [](void* self, uint64_t address, uint64_t size, int allocated, int active, uint64_t first,
                   uint64_t second) {
                    HostSegmentInfo segment;
                    segment.address = address;
                    segment.size = size;
                    segment.allocated = allocated;
                    segment.active = active;
                    segment.owner_private_pool_id = {first, second};
                    try {
                        static_cast<std::vector<HostSegmentInfo>*>(self)->push_back(std::move(segment));
                    } catch (...) {
                        if (!pending_exception) pending_exception = std::current_exception();
                    }
                },
                &found));
            if (pending_exception) fail(table);
        }
        history.complete(found);
        return found;
    }

    std::vector<TraceEntry> get_traces() override { return history.read(); }
    void record_external_register(void* address, size_t size) override { history.add_external(address, size); }
    void record_external_unregister(void* address) override { history.drop_external(address); }

    void listen(const allotment_pinned_points* table) {
        if (table != nullptr) table->listen(table->context, history.is_on() ? &History::note : nullptr, &history);
    }

    History history;
#endif

    const allotment_pinned_points* table_made() {
        const auto* table = made.load(std::memory_order_acquire);
        if (C10_LIKELY(table != nullptr)) return table;
        const auto device = c10::cuda::getDeviceIndexWithPrimaryContext();
        Text text;
        /* Without a lock of our own: threads that come at the same time get the same table. */
        table = make(device.has_value() ? *device : c10::cuda::current_device(), text.words, sizeof(text.words) - 1);
        if (table == nullptr) C10_THROW_ERROR(Error, text.said());
        table->follow_current_stream(table->context, current_stream);
        if (settings_changed) {
            const auto settings = settings_now();
            expect(table, table->configure(table->context, &settings));
        }
#if TORCH_RECORDS_PINNED_MEMORY
        listen(table);
#endif
        made.store(table, std::memory_order_release);
        return table;
    }

    Elsewhere elsewhere;
};

/* Never destroyed: tensors may be freed until the process ends. */
PinnedMemory& pinned_memory() {
    static auto* one = new PinnedMemory;
    return *one;
}

void delete_block(void* address) { pinned_memory().release(address); }

char reason[512];

}
}

extern "C" {

/* Whether the tables that it will get have the form that this was compiled for. */
__attribute__((visibility("default"))) int allotment_torch_pinned_fits(uint32_t version, size_t size) {
    return version == ALLOTMENT_PINNED_VERSION && size == sizeof(allotment_pinned_points);
}

/* Replace PyTorch's own allocator; returns NULL, or the reason why that is impossible. */
__attribute__((visibility("default"))) const char* allotment_torch_pinned_install(allotment::Make given) {
    using namespace allotment;
    try {
        make = given;
        auto* present = at::getHostAllocator(at::kCUDA);
        if (present == &pinned_memory()) return nullptr;
        before = present;
        at::setHostAllocator(at::kCUDA, &pinned_memory(), 10);
        if (at::getHostAllocator(at::kCUDA) == &pinned_memory()) {
            follow_settings();
            return nullptr;
        }
        std::strncpy(reason, "another allocator of pinned memory is installed", sizeof(reason) - 1);
    } catch (const c10::Error& error) {
        std::strncpy(reason, error.what_without_backtrace(), sizeof(reason) - 1);
    } catch (const std::exception& error) {
        std::strncpy(reason, error.what(), sizeof(reason) - 1);
    }
    return reason;
}
}
