/* Callers of PyTorch's allocator interface that only C++ can be: trackers, gauges, compile contexts, callbacks.
 *
 * Each function puts what it saw into words; which allocator is in place it does not know. */
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Gauge.h>
#include <torch/headeronly/version.h>

#include <mutex>
#include <sstream>
#include <stdexcept>

namespace allocators = c10::cuda::CUDACachingAllocator;
using allocators::TraceEntry;

namespace {

std::mutex mutex;
std::ostringstream heard;
bool tracks = false, hears_gauges = false;
int throws_at = -1, runs = 0;

void hear(const TraceEntry& entry) {
    std::lock_guard<std::mutex> guard(mutex);
    if (static_cast<int>(entry.action_) == throws_at) throw std::runtime_error("the tracker has had enough");
    if (!tracks) return;
    heard << static_cast<int>(entry.action_) << ' ' << int(entry.device_) << ' ' << entry.addr_ << ' ' << entry.size_
          << ' ' << (entry.stream_ != nullptr) << ' ' << entry.mempool_.first << ',' << entry.mempool_.second << ' '
          << (entry.context_ != nullptr) << ' ' << (entry.time_.approx_t_ > 0) << " [" << entry.compile_context_
          << "] [" << entry.user_metadata_ << "]\n";
}

struct Gauge final : c10::monitor::detail::GaugeBackendIf {
    explicit Gauge(std::string_view named) : name(named) {}
    void record(int64_t value) noexcept override {
        std::lock_guard<std::mutex> guard(mutex);
        if (hears_gauges) heard << name << ' ' << value << '\n';
    }
    std::string name;
};

struct Gauges final : c10::monitor::detail::GaugeBackendFactoryIf {
    std::unique_ptr<c10::monitor::detail::GaugeBackendIf> create(std::string_view name) noexcept override {
        return std::make_unique<Gauge>(name);
    }
};

struct Callback final : c10::FreeMemoryCallback {
    bool Execute() override {
        ++runs;
        return false;
    }
};

template <typename Call>
const char* text_after(Call call) {
    static thread_local std::string text;
    try {
        text = call();
    } catch (const c10::Error& error) {
        text = std::string("Error: ") + error.what_without_backtrace();
    } catch (const std::exception& error) {
        text = std::string("exception: ") + error.what();
    }
    return text.c_str();
}

}

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("counted in tests", Callback)
}

#pragma GCC visibility push(default)
extern "C" {

void listener_gauges() { c10::monitor::detail::registerGaugeBackend(std::make_unique<Gauges>()); }
void listener_track() { allocators::attachAllocatorTraceTracker(hear); }
void listener_hear(int entries, int gauges, int failing_action) {
    tracks = entries;
    hears_gauges = gauges;
    throws_at = failing_action;
}
const char* listener_heard() {
    return text_after([] {
        std::lock_guard<std::mutex> guard(mutex);
        std::string text = heard.str();
        heard.str("");
        return text;
    });
}
int listener_runs() { return runs; }
void listener_push(const char* name) {
    std::string text(name);
    allocators::pushCompileContext(text);
}
void listener_pop() { allocators::popCompileContext(); }
/* Whether this PyTorch has classes of streams; a class is given to a stream, or a part of the memory to a class. */
int listener_reserve(void* stream, const char* name, double fraction) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
    if (fraction > 0) {
        allocators::setDefaultExpandableSegmentReserveFractionForClass(name, fraction);
    } else {
        allocators::setExpandableSegmentReserveClassForStream(static_cast<cudaStream_t>(stream), name);
    }
    return 1;
#else
    return 0;
#endif
}
int listener_is_recording() { return allocators::isHistoryEnabled(); }
void listener_annotate(const char* key, const char* value) { allocators::recordAnnotation({{key, value}, {"and", "more"}}); }

const char* listener_base(void* address) {
    return text_after([&] {
        size_t size = 0;
        void* base = allocators::getBaseAllocation(address, &size);
        return std::to_string(static_cast<char*>(address) - static_cast<char*>(base)) + " of " + std::to_string(size);
    });
}
const char* listener_largest(int device, size_t guess) {
    return text_after([&] {
        allocators::cacheInfo(static_cast<c10::DeviceIndex>(device), &guess);
        return std::to_string(guess);
    });
}
const char* listener_free(void* address) {
    return text_after([&] {
        allocators::raw_delete(address);
        return std::string("freed");
    });
}
const char* listener_allocate(size_t size) {
    return text_after([&] {
        void* address = allocators::raw_alloc(size);
        allocators::raw_delete(address);
        return std::string(address != nullptr ? "some" : "none");
    });
}
const char* listener_facts() {
    return text_after([] {
        auto* allocator = allocators::get();
        std::ostringstream text;
        text << allocator->name() << ' ' << allocator->initialized() << ' ' << allocator->isEnabled() << ' '
             << allocator->getMemoryFraction(0) << ' ' << allocator->getMemoryInfo(0).second << ' '
             << (allocator->raw_deleter() != nullptr) << ' ' << allocator->getExpandableSegmentSizes(0).size();
        return text.str();
    });
}
const char* listener_snapshot(int with_traces) {
    return text_after([&] {
        const auto found = allocators::snapshot({0, 0}, with_traces);
        std::ostringstream text;
        text << found.device_traces.size() << " traces";
        for (const auto& trace : found.device_traces) text << ' ' << trace.size();
        for (const auto& segment : found.segments) {
            text << "\n" << (segment.registration_counter >= 0) << ' ' << segment.is_large << ' ' << segment.requested_size;
            for (const auto& block : segment.blocks) text << ' ' << block.gc_counter;
        }
        return text.str();
    });
}
}
