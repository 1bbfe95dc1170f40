/* PyTorch's allocator interface over our allocators: compiled on the user's machine against the PyTorch found there.
 *
 * It decides nothing. Requests go to the entry points of a device (allotment.h), everything else to the points
 * (allotment_points.h); here they are only put into PyTorch's types, words and exceptions, and PyTorch is told what
 * its own allocator tells it: the profiler, the GPU trace, observers and trackers.
 *
 * What PyTorch looks at to know its own allocator is as there: the name is "native", one function deletes all blocks
 * (`raw_deleter`), and it is initialized when PyTorch has said how many devices there are. */

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "allotment.h"
#include "allotment_points.h"
#include "contexts.hpp"
#include "versions.hpp"

namespace allotment {
namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::CachingDeviceAllocator::AnnotationEntry;

static_assert(TraceEntry::ALLOC == 0 && TraceEntry::FREE_COMPLETED == 2 && TraceEntry::SEGMENT_UNMAP == 6 &&
              TraceEntry::SNAPSHOT == 7 && TraceEntry::OOM == 8, "actions are in the order of the points");

const allotment_points* points = nullptr;

/* Never destroyed: threads may allocate and free until the process ends. */
Contexts& contexts() {
    static auto* all = new Contexts;
    return *all;
}

/* --- failing --------------------------------------------------------------------------------------------------- */

/* What a function of others threw inside of the engine, which lets nothing through; thrown again when it is left. */
thread_local std::exception_ptr thrown_inside;

[[noreturn]] void fail() {
    if (thrown_inside) std::rethrow_exception(std::exchange(thrown_inside, nullptr));
    const allotment_failure* failure = points->failure();
    const std::string text = failure->text == nullptr ? "allotment failed without a word" : failure->text;
    if (failure->kind == ALLOTMENT_OUT_OF_MEMORY || failure->kind == ALLOTMENT_REJECTED) {
        C10_THROW_ERROR(OutOfMemoryError, text);
    }
    C10_THROW_ERROR(Error, text);
}

void expect(bool ok) {
    if (C10_UNLIKELY(!ok)) fail();
}

const allotment_entry_points* table_if_any(int device) {
    return static_cast<const allotment_entry_points*>(points->tables[device]);
}

const allotment_entry_points* table_of(int device) {
    auto* table = table_if_any(device);
    if (C10_LIKELY(table != nullptr)) return table;
    table = static_cast<const allotment_entry_points*>(points->table_of(device));
    expect(table != nullptr);
    return table;
}

[[noreturn]] void fail_of(int device) {
    points->take_failure(device);
    fail();
}

/* --- what the engine asks ------------------------------------------------------------------------------------- */

std::atomic<CreateContextFn> recorder{nullptr};

uint32_t gather() {
    auto record = recorder.load();
    if (record == nullptr) return 0;
    try {
        return contexts().keep(record());
    } catch (...) {
        return 0;       /* a history without this context is better than a request without memory */
    }
}

void show_frames(
    uint32_t number, void (*visit)(void* self, const char* name, const char* file, int64_t line), void* self) {
    Context context = contexts().at(number);
    auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get());
    if (traceback == nullptr) return;
    try {
        auto found = torch::symbolize({traceback});
        for (auto index : found.tracebacks.at(0)) {
            const auto& frame = found.all_frames.at(index);
            visit(self, frame.funcname.c_str(), frame.filename.c_str(), static_cast<int64_t>(frame.lineno));
        }
    } catch (...) {
    }
}

struct Listeners {
    std::shared_mutex mutex;
    std::vector<AllocatorTraceTracker> trackers;
    std::vector<OutOfMemoryObserver> observers;
#if TORCH_HAS_REJECTIONS
    std::vector<OomRejectionObserver> rejection_observers;
#endif
};

Listeners& listeners() {
    static auto* all = new Listeners;
    return *all;
}

TraceEntry entry_of(const allotment_record* record) {
    TraceEntry entry(
        static_cast<TraceEntry::Action>(record->action), static_cast<DeviceIndex>(record->device), record->address,
        record->size, reinterpret_cast<void*>(record->stream), MempoolId_t{record->pool_first, record->pool_second}, 0,
        contexts().at(record->context), record->compile_context, record->user_metadata);
#if TORCH_HAS_INTERNAL_METADATA
    entry.internal_metadata_ = record->internal_metadata;
#endif
    return entry;
}

void hear(const allotment_record* record) {
    try {
        TraceEntry entry = entry_of(record);
        entry.time_.approx_t_ = c10::getApproximateTime();
        std::shared_lock<std::shared_mutex> guard(listeners().mutex);
        for (const auto& tracker : listeners().trackers) tracker(entry);
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
    }
}

int free_memory() {
    bool freed = false;
    try {
        for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
            freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        }
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
    }
    return freed;
}

uint64_t current_stream(int device) {
    try {
        return reinterpret_cast<uint64_t>(c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(device)).stream());
    } catch (...) {
        return 0;       /* a stream that no graph is captured on */
    }
}

const allotment_framework framework{
    sizeof(allotment_framework), gather, show_frames, hear, free_memory, current_stream};

/* --- a pool's own allocator ----------------------------------------------------------------------------------- */

using SegmentSource = std::shared_ptr<CUDAAllocator>;

uint64_t source_allocate(void* self, size_t size, uint64_t) {
    try {
        return reinterpret_cast<uint64_t>((*static_cast<SegmentSource*>(self))->raw_alloc(size));
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
        return 0;
    }
}

void source_free(void* self, uint64_t address, size_t, uint64_t) {
    try {
        (*static_cast<SegmentSource*>(self))->raw_delete(reinterpret_cast<void*>(address));
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
    }
}

void source_drop(void* self) { delete static_cast<SegmentSource*>(self); }

/* --- a route's filter ----------------------------------------------------------------------------------------- */

using StreamFilter = std::function<bool(cudaStream_t)>;

int filter_accepts(void* self, uint64_t stream) {
    try {
        return (*static_cast<StreamFilter*>(self))(reinterpret_cast<cudaStream_t>(stream));
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
        return 0;
    }
}

void filter_drop(void* self) { delete static_cast<StreamFilter*>(self); }

/* --- a pool's state ------------------------------------------------------------------------------------------- */

struct PoolState : AllocatorState {
    explicit PoolState(void* held) : state(held) {}
    ~PoolState() override { points->drop_state(state); }
    void* state;
};

/* --- facts in PyTorch's types --------------------------------------------------------------------------------- */

c10::CachingAllocator::Stat stat_of(const allotment_stat& stat) {
    c10::CachingAllocator::Stat out;
    out.current = stat.current;
    out.peak = stat.peak;
    out.allocated = stat.allocated;
    out.freed = stat.freed;
    return out;
}

c10::CachingAllocator::StatArray stats_of(const allotment_stat (&stats)[3]) {
    return {stat_of(stats[0]), stat_of(stats[1]), stat_of(stats[2])};
}

struct SnapshotBuilder {
    SnapshotInfo& info;
    std::vector<TraceEntry>& records;
    DeviceIndex device;

    static SnapshotBuilder& from(void* self) { return *static_cast<SnapshotBuilder*>(self); }

    static void record(void* self, const allotment_record* record) {
        from(self).records.push_back(entry_of(record));
        from(self).records.back().time_.t_ = record->time_us;
    }
    static void segment(void* self, const allotment_segment* segment) {
        auto& out = from(self).info.segments.emplace_back();
        out.device = from(self).device;
        out.address = segment->address;
        out.total_size = segment->total;
        out.requested_size = segment->requested;
        out.allocated_size = segment->allocated;
        out.active_size = segment->active;
        out.stream = reinterpret_cast<void*>(segment->stream);
        out.is_large = !segment->is_small;
        out.is_expandable = segment->is_expandable;
        out.owner_private_pool_id = {segment->pool_first, segment->pool_second};
        out.context_when_allocated = contexts().at(segment->context);
    }
    static void block(void* self, const allotment_block* block) {
        auto& out = from(self).info.segments.back().blocks.emplace_back();
        out.size = block->size;
        out.requested_size = block->requested;
        out.allocated = block->allocated;
        out.active = block->active;
        out.context_when_allocated = contexts().at(block->context);
    }
    static void annotation(void* self, int device, int64_t time_us) {
        auto& out = from(self).info.external_annotations.emplace_back(static_cast<DeviceIndex>(device), 0);
        out.time_.t_ = time_us;
    }
    static void pair(void* self, const char* key, const char* value) {
        from(self).info.external_annotations.back().recordUserMetadata(key, value);
    }

    allotment_snapshot_visitor visitor() { return {this, record, segment, block, annotation, pair}; }
};

/* The settings that PyTorch reads for its own allocator and for pinned memory; ours come from the same text. */
AllocatorConfigInfo settings_now() {
    using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
    using Cuda = CUDAAllocatorConfig;
    AllocatorConfigInfo out{};
    out.garbage_collection_threshold = Common::garbage_collection_threshold();
    out.max_split_size = Common::max_split_size();
    out.pinned_num_register_threads = Cuda::pinned_num_register_threads();
    out.expandable_segments = Common::use_expandable_segments();
    out.release_lock_on_malloc = Cuda::release_lock_on_cudamalloc();
    out.pinned_use_host_register = Cuda::pinned_use_cuda_host_register();
    out.graph_capture_record_stream_reuse = Cuda::graph_capture_record_stream_reuse();
    out.last_allocator_settings = c10::CachingAllocator::getAllocatorSettings();
    out.roundup_power2_divisions = Common::roundup_power2_divisions();
#if TORCH_SHOWS_PINNED_SETTINGS
    out.max_round_threshold = Common::pinned_max_round_threshold();
    out.max_cached_size = Common::pinned_max_cached_size();
#endif
    return out;
}

/* --- the interface -------------------------------------------------------------------------------------------- */

void delete_block(void* address);

struct StandIn final : CUDAAllocator {
    std::atomic<int> device_count{0};

    /* Memory. */

    DataPtr allocate(size_t size) override {
        const DeviceIndex device = current_device();
        void* address = size == 0 ? nullptr : request(device, size, c10::cuda::getCurrentCUDAStream(device).stream());
        return {address, address, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
    }

    void* raw_alloc(size_t size) override {
        if (size == 0) return nullptr;
        const DeviceIndex device = current_device();
        return request(device, size, c10::cuda::getCurrentCUDAStream(device).stream());
    }

    void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
        return size == 0 ? nullptr : request(current_device(), size, stream);
    }

    void raw_delete(void* address) override { release(address); }

    c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }

    void copy_data(void* destination, const void* source, std::size_t count) const override {
        C10_CUDA_CHECK(cudaMemcpy(destination, source, count, cudaMemcpyKind::cudaMemcpyDeviceToDevice));
    }

    static DeviceIndex current_device() {
        DeviceIndex device = 0;
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
        return device;
    }

    void* request(DeviceIndex device, size_t size, cudaStream_t stream) {
        expect_device(device);
        const auto* table = table_of(device);
        void* address = table->allocate(table->context, size, device, stream);
        if (C10_UNLIKELY(address == nullptr)) out_of_memory(device, size);
        if (C10_UNLIKELY(thrown_inside)) {      /* a tracker's, which the native allocator lets through too */
            table->free(table->context, address, size, device, stream);
            fail();
        }
        told_of_request(device, address);
        return address;
    }

    static void told_of_request(DeviceIndex device, void* address) {
        if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
            report(device, address, static_cast<int64_t>(points->block_size(device, address)));
        }
        const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
        if (C10_UNLIKELY(interpreter != nullptr)) {
            (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
        }
    }

    static void report(DeviceIndex device, void* address, int64_t size) {
        int64_t allocated = 0, reserved = 0;
        points->gauges(device, &allocated, &reserved);
        c10::reportMemoryUsageToProfiler(
            address, size, static_cast<size_t>(allocated), static_cast<size_t>(reserved),
            c10::Device(c10::DeviceType::CUDA, device));
    }

    [[noreturn]] static void out_of_memory(DeviceIndex device, size_t size) {
        points->take_failure(device);
        if (thrown_inside) fail();
        const allotment_failure failure = *points->failure();
        const std::string text = failure.text == nullptr ? "" : failure.text;
        if (failure.kind == ALLOTMENT_OUT_OF_MEMORY && (size >> 60) == 0) {
            c10::reportOutOfMemoryToProfiler(
                static_cast<int64_t>(size), failure.allocated, failure.reserved,
                c10::Device(c10::DeviceType::CUDA, device));
            std::vector<OutOfMemoryObserver> observers;
            {
                std::shared_lock<std::shared_mutex> guard(listeners().mutex);
                observers = listeners().observers;
            }
            for (const auto& observer : observers) {
                observer(device, failure.segment, failure.most, failure.device_free);
            }
            C10_THROW_ERROR(OutOfMemoryError, text);
        }
#if TORCH_HAS_REJECTIONS
        if (failure.kind == ALLOTMENT_REJECTED) {
            std::vector<OomRejectionObserver> observers;
            {
                std::shared_lock<std::shared_mutex> guard(listeners().mutex);
                observers = listeners().rejection_observers;
            }
            for (const auto& observer : observers) observer(device, size, failure.allocated, failure.most);
        }
#endif
        if (failure.kind == ALLOTMENT_OUT_OF_MEMORY || failure.kind == ALLOTMENT_REJECTED) {
            C10_THROW_ERROR(OutOfMemoryError, text);
        }
        C10_THROW_ERROR(Error, text);
    }

    /* The device that a block in use is of; -1: it is not ours. The current one is asked first. */
    int device_of(const void* address, size_t* size = nullptr) const {
        size_t found = 0;
        const int count = device_count.load(std::memory_order_relaxed);
        for (int device = 0; device < count && found == 0; ++device) {
            if (table_if_any(device) == nullptr) continue;
            found = points->block_size(device, const_cast<void*>(address));
            if (found != 0) {
                if (size != nullptr) *size = found;
                return device;
            }
        }
        return -1;
    }

    int expect_block(const void* address) const {
        const int device = device_of(address);
        TORCH_CHECK(device >= 0, "invalid device pointer: ", address);
        return device;
    }

    void release(void* address) {
        if (address == nullptr) return;
        const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
        if (C10_UNLIKELY(interpreter != nullptr)) {
            (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
        }
        const bool profiled = c10::memoryProfilingEnabled();
        const int count = device_count.load(std::memory_order_relaxed);
        int last = -1;
        for (int device = 0; device < count; ++device) {
            const auto* table = table_if_any(device);
            if (table == nullptr) continue;
            last = device;
            const size_t size = C10_UNLIKELY(profiled) ? points->block_size(device, address) : 0;
            if (C10_LIKELY(table->free(table->context, address, 0, device, nullptr))) {
                if (C10_UNLIKELY(profiled)) report(static_cast<DeviceIndex>(device), address, -static_cast<int64_t>(size));
                if (C10_UNLIKELY(thrown_inside)) fail();
                return;
            }
            if (count > 1) points->take_failure(device);
            if (count > 1 && points->failure()->kind != ALLOTMENT_NOT_OURS) fail();
        }
        TORCH_CHECK(last >= 0, "invalid device pointer: ", address);
        fail_of(last);
    }

    void recordStream(const DataPtr& block, c10::cuda::CUDAStream stream) override {
        if (block.get() == nullptr || block.get_deleter() != &delete_block) return;     /* of another process, say */
        const int device = device_count.load(std::memory_order_relaxed) == 1 ? 0 : expect_block(block.get());
        const auto* table = table_of(device);
        if (!table->record_stream(table->context, block.get(), stream.stream())) fail_of(device);
    }

    void* getBaseAllocation(void* address, size_t* size) override {
        const int device = expect_block(address);
        const auto* table = table_of(device);
        void* base = table->base_allocation(table->context, address, size);
        if (base == nullptr) fail_of(device);
        return base;
    }

#if TORCH_HAS_EXACT_ADDRESSES
    DataPtr allocateWithAddress(size_t size, void* address) override {
        const DeviceIndex device = current_device();
        expect_device(device);
        void* got = nullptr;
        if (size != 0) {
            table_of(device);
            got = points->allocate_at(
                device, size, address,
                reinterpret_cast<uint64_t>(c10::cuda::getCurrentCUDAStream(device).stream()));
            expect(got != nullptr);
            told_of_request(device, got);
        }
        return {got, got, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
    }
#endif

    /* Devices. */

    void init(int count) override {
        if (count > device_count) device_count = std::min(count, ALLOTMENT_DEVICES_MOST);
    }

    bool initialized() override { return device_count > 0; }

    std::string name() override { return "native"; }

    void expect_device(int device) const {
        TORCH_INTERNAL_ASSERT(
            0 <= device && device < device_count.load(std::memory_order_relaxed),
            "Allocator not initialized for device ", device, ": did you call init?");
    }

    void expect_valid(int device) const {
        TORCH_CHECK(
            0 <= device && device < device_count.load(std::memory_order_relaxed), "Invalid device argument ", device,
            ": did you call init?");
    }

    double getMemoryFraction(DeviceIndex device) override {
        expect_device(device);
        if (table_if_any(device) == nullptr) return points->memory_fraction(device);
        C10_CUDA_CHECK(c10::cuda::SetDevice(device));
        return points->memory_fraction(device);
    }

    void setMemoryFraction(double fraction, DeviceIndex device) override {
        expect_device(device);
        TORCH_CHECK(
            0 <= fraction && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
        C10_CUDA_CHECK(c10::cuda::SetDevice(device));
        expect(points->set_memory_fraction(device, fraction));
    }

    void enable(bool value) override { expect(points->enable(value)); }

    bool isEnabled() const override { return points->is_enabled(); }

    void cacheInfo(DeviceIndex device, size_t* largest) override {
        expect_valid(device);
        table_of(device);
        expect(points->largest_block(device, largest));
    }

    std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
        expect_valid(device);
        std::vector<StreamSegmentSize> sizes;
        if (table_if_any(device) == nullptr) return sizes;
        expect(points->expandable_sizes(
            device,
            [](void* self, uint64_t stream, int is_small, uint64_t mapped) {
                static_cast<std::vector<StreamSegmentSize>*>(self)->emplace_back(
                    reinterpret_cast<cudaStream_t>(stream), is_small, mapped);
            },
            &sizes));
        return sizes;
    }

    void emptyCache(MempoolId_t pool) override {
        if (device_count > 0) table_of(current_device());   /* that it was emptied is counted, also if it has nothing */
        for (int device = 0; device < device_count; ++device) {
            if (table_if_any(device) != nullptr) expect(points->empty_cache(device, pool.first, pool.second));
        }
    }

    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
        c10::cuda::CUDAGuard guard(device);
        const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
        } else {
            C10_CUDA_CHECK(error);
        }
        expect(points->enable_peer(peer, device));
    }

    cudaError_t memcpyAsync(
        void* destination, int destination_device, const void* source, int source_device, size_t count,
        cudaStream_t stream, bool p2p_enabled) override {
        if (p2p_enabled || destination_device == source_device) {
            return cudaMemcpyAsync(destination, source, count, cudaMemcpyDeviceToDevice, stream);
        }
        return cudaMemcpyPeerAsync(destination, destination_device, source, source_device, count, stream);
    }

    /* Figures. */

    DeviceStats getDeviceStats(DeviceIndex device) override {
        expect_valid(device);
        DeviceStats out;
        allotment_stats stats{};
        expect(points->stats(
            device, &stats,
            [](void* self, uint64_t first, uint64_t second, const allotment_stat* reserved) {
#if TORCH_COUNTS_POOLS
                static_cast<DeviceStats*>(self)->reserved_bytes_by_private_pools[MempoolId_t{first, second}] = {
                    stat_of(reserved[0]), stat_of(reserved[1]), stat_of(reserved[2])};
#endif
            },
            &out));
        out.allocation = stats_of(stats.allocation);
        out.segment = stats_of(stats.segment);
        out.active = stats_of(stats.active);
        out.inactive_split = stats_of(stats.inactive_split);
        out.allocated_bytes = stats_of(stats.allocated_bytes);
        out.reserved_bytes = stats_of(stats.reserved_bytes);
        out.active_bytes = stats_of(stats.active_bytes);
        out.inactive_split_bytes = stats_of(stats.inactive_split_bytes);
        out.requested_bytes = stats_of(stats.requested_bytes);
        out.num_alloc_retries = stats.num_alloc_retries;
        out.num_ooms = stats.num_ooms;
        out.oversize_allocations = stat_of(stats.oversize_allocations);
        out.oversize_segments = stat_of(stats.oversize_segments);
        out.num_sync_all_streams = stats.num_sync_all_streams;
        out.num_device_alloc = stats.num_device_alloc;
        out.num_device_free = stats.num_device_free;
        out.max_split_size = stats.max_split_size;
#if TORCH_HAS_REJECTIONS
        out.num_oom_rejections = stats.num_oom_rejections;
#endif
        return out;
    }

    void resetAccumulatedStats(DeviceIndex device) override {
        expect_valid(device);
        if (table_if_any(device) != nullptr) expect(points->reset_stats(device, 0));
    }

    void resetPeakStats(DeviceIndex device) override {
        expect_valid(device);
        if (table_if_any(device) != nullptr) expect(points->reset_stats(device, 1));
    }

    SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override {
        SnapshotInfo info;
        const Contexts::Reading reading(contexts());
        for (int device = 0; device < device_count; ++device) {
            auto& records = info.device_traces.emplace_back();
            if (table_if_any(device) == nullptr) continue;
            SnapshotBuilder builder{info, records, static_cast<DeviceIndex>(device)};
            const auto visitor = builder.visitor();
            expect(points->snapshot(device, pool.first, pool.second, include_traces, &visitor));
        }
        std::stable_sort(
            info.external_annotations.begin(), info.external_annotations.end(),
            [](const AnnotationEntry& a, const AnnotationEntry& b) { return a.time_.t_ < b.time_.t_; });
        info.config_metadata = settings_now();
        return info;
    }

    /* History. */

    bool isHistoryEnabled() override { return points->is_recording(current_device()); }

    void recordHistory(
        bool enabled, CreateContextFn context_recorder, size_t most, RecordContext when, bool clear,
        const std::vector<std::string>& skip_actions) override {
        TORCH_CHECK(when == RecordContext::NEVER || context_recorder);
#if TORCH_CHECKS_ACTIONS
        for (const auto& action : skip_actions) c10::CachingDeviceAllocator::parseTraceEntryAction(action);
#endif
        std::vector<const char*> skip;
        for (const auto& action : skip_actions) skip.push_back(action.c_str());
        if (context_recorder != nullptr) recorder = context_recorder;
        expect(points->record_history(
            enabled, static_cast<int>(when), most, clear, skip.data(), skip.size(), context_recorder != nullptr));
        if (!enabled) recorder = nullptr;
    }

    void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override {
        if (device_count == 0) return;
        const DeviceIndex device = current_device();
        if (!points->is_recording(device)) return;
        std::vector<const char*> keys, values;
        for (const auto& [key, value] : pairs) {
            keys.push_back(key.c_str());
            values.push_back(value.c_str());
        }
        expect(points->annotate(device, keys.data(), values.data(), keys.size()));
    }

    void pushCompileContext(std::string& name) override {
        if (device_count > 0 && points->is_recording(current_device())) points->push_compile_context(name.c_str());
    }

    void popCompileContext() override { points->pop_compile_context(); }

    void setUserMetadata(const std::string& text) override { points->set_user_metadata(text.c_str()); }

    std::string getUserMetadata() override { return points->user_metadata(); }

#if TORCH_ANNOTATES_BLOCKS
    bool supportsUserMetadata() override { return true; }

    void annotateMemory(const void* address, const std::string& text) override {
        expect(points->annotate_block(expect_block(address), address, text.c_str()));
    }
#endif

#if TORCH_HAS_CONTEXT_FOR_POINTER
    Context getContextForPointer(const void* address) override {
        const int device = device_of(address);
        if (device < 0) return nullptr;
        const Contexts::Reading reading(contexts());
        return contexts().at(points->block_context(device, address));
    }
#endif

    void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
        std::lock_guard<std::shared_mutex> guard(listeners().mutex);
        listeners().observers.push_back(std::move(observer));
    }

#if TORCH_HAS_REJECTIONS
    void attachOomRejectionObserver(OomRejectionObserver observer) override {
        std::lock_guard<std::shared_mutex> guard(listeners().mutex);
        listeners().rejection_observers.push_back(std::move(observer));
    }
#endif

    void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
        {
            std::lock_guard<std::shared_mutex> guard(listeners().mutex);
            listeners().trackers.push_back(std::move(tracker));
        }
        expect(points->track(1));
    }

    /* Pools. */

    void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, StreamFilter filter) override {
        expect_valid(device);
        const auto* table = table_of(device);
        auto kept = std::make_unique<StreamFilter>(std::move(filter));
        if (!table->begin_allocate_to_pool(
                table->context, pool.first, pool.second, filter_accepts, filter_drop, kept.get())) {
            fail_of(device);
        }
        kept.release();
    }

    void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
        expect_valid(device);
        const auto* table = table_of(device);
        if (!table->end_allocate_to_pool(table->context, pool.first, pool.second)) fail_of(device);
    }

    void releasePool(DeviceIndex device, MempoolId_t pool) override {
        expect_valid(device);
        const auto* table = table_of(device);
        if (!table->release_pool(table->context, pool.first, pool.second)) fail_of(device);
    }

    int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
        expect_valid(device);
        table_of(device);
        const int count = points->pool_use_count(device, pool.first, pool.second);
        expect(count >= 0);
        return count;
    }

    void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, SegmentSource source) override {
        expect_valid(device);
        table_of(device);
        if (source == nullptr) {
            expect(points->create_or_incref_pool(device, pool.first, pool.second, nullptr));
            return;
        }
        auto kept = std::make_unique<SegmentSource>(std::move(source));
        const allotment_raw_allocator raw{kept.get(), source_allocate, source_free, source_drop};
        expect(points->create_or_incref_pool(device, pool.first, pool.second, &raw));
        kept.release();
    }

    void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
        expect_valid(device);
        table_of(device);
        expect(points->set_use_on_oom(device, pool.first, pool.second, use_on_oom));
    }

    void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
        expect_valid(device);
        table_of(device);
        expect(points->set_no_split(device, pool.first, pool.second));
    }

    bool checkPoolLiveAllocations(
        DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& expected) override {
        expect_valid(device);
        table_of(device);
        std::unordered_set<void*> live;
        expect(points->live_addresses(
            device, pool.first, pool.second,
            [](void* self, uint64_t address) {
                static_cast<std::unordered_set<void*>*>(self)->insert(reinterpret_cast<void*>(address));
            },
            &live));
        return live == expected;
    }

    std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
        expect_valid(device);
        table_of(device);
        void* state = points->checkpoint(device, pool.first, pool.second);
        expect(state != nullptr);
        return std::make_shared<PoolState>(state);
    }

    CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
        expect_valid(device);
        auto* ours = dynamic_cast<PoolState*>(state.get());
        TORCH_CHECK(ours != nullptr, "this state of a pool was not taken by the allocator in use");
        std::vector<void*> freed, created;
        std::pair<std::vector<void*>*, std::vector<void*>*> both{&freed, &created};
        expect(points->restore(
            device, ours->state,
            [](void* self, uint64_t address) {
                static_cast<decltype(both)*>(self)->first->push_back(reinterpret_cast<void*>(address));
            },
            [](void* self, uint64_t address) {
                static_cast<decltype(both)*>(self)->second->push_back(reinterpret_cast<void*>(address));
            },
            &both));
        CheckpointDelta delta;
        delta.ptrs_freed = std::move(freed);
        for (void* address : created) {
            delta.dataptrs_allocd.emplace_back(
                address, address, &delete_block, c10::Device(c10::DeviceType::CUDA, device));
        }
        return delta;
    }

    /* Other processes. */

    ShareableHandle shareIpcHandle(void* address) override {
        ShareableHandle out{};
        uint64_t offset = 0;
        expect(points->share(
            expect_block(address), address, &offset,
            [](void* self, const char* bytes, size_t length) {
                static_cast<std::string*>(self)->assign(bytes, length);
            },
            &out.handle));
        out.offset = static_cast<ptrdiff_t>(offset);
        return out;
    }

    std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
        const DeviceIndex device = current_device();
        std::lock_guard<std::mutex> guard(opened_mutex);
        auto found = opened.find(handle);
        if (found != opened.end()) {
            if (auto still = found->second.lock()) return still;
        }
        table_of(device);
        uint64_t address = 0;
        void* held = points->open_shared(device, handle.data(), handle.size(), &address);
        expect(held != nullptr);
        std::shared_ptr<void> memory(reinterpret_cast<void*>(address), [this, held, handle](void*) {
            std::lock_guard<std::mutex> forgetting(opened_mutex);
            points->close_shared(held);
            auto known = opened.find(handle);
            if (known != opened.end() && known->second.expired()) opened.erase(known);
        });
        opened[handle] = memory;
        return memory;
    }

    std::mutex opened_mutex;
    std::unordered_map<std::string, std::weak_ptr<void>> opened;

#if TORCH_MARKS_CAPTURES
    /* Whether a capture is under way the engine finds out itself, when it matters. */
    void markCaptureBegin(DeviceIndex) override {}
    void markCaptureEnd(DeviceIndex) override {}
#endif
};

StandIn& stand_in() {
    static auto* one = new StandIn;
    return *one;
}

void delete_block(void* address) { stand_in().release(address); }

/* PyTorch's own parser first: what it refuses does not reach us. */
void follow_settings() {
    auto& hook = c10::CachingAllocator::AcceleratorAllocatorConfig::getConfigParserHook();
    hook = [before = hook](const std::string& text) {
        if (before) before(text);
        expect(points->configure(text.c_str()));
    };
}

/* Why the allocator in place cannot be replaced any more; empty: it can be. */
std::string too_late(CUDAAllocator* present, uint64_t pools_made) {
    if (!present->initialized()) return "";
    if (present->name() != "native") return "another allocator, " + present->name() + ", is in place";
    const int count = c10::cuda::device_count();
    for (int device = 0; device < count; ++device) {
        const auto stats = present->getDeviceStats(static_cast<DeviceIndex>(device));
        if (stats.reserved_bytes[0].current != 0) {
            return std::to_string(stats.reserved_bytes[0].current) + " bytes of device " + std::to_string(device) +
                   " are reserved by PyTorch's own allocator";
        }
        for (uint64_t number = 1; number < pools_made; ++number) {
            try {
                present->getPoolUseCount(static_cast<DeviceIndex>(device), MempoolId_t{0, number});
            } catch (const c10::Error&) {
                continue;
            }
            return "a MemPool of PyTorch's own allocator is there";
        }
    }
    if (count > 0 && present->isHistoryEnabled()) return "PyTorch's own allocator is recording its history";
    return "";
}

char told[512];

}
}

extern "C" {

/* PyTorch's version and ours that this was compiled for, and whether a table of points is of the same form. */
__attribute__((visibility("default"))) int allotment_stand_in_fits(const allotment_points* given) {
    return given->version == ALLOTMENT_POINTS_VERSION && given->size == sizeof(allotment_points);
}

/* Put the stand-in in the place of PyTorch's own allocator; NULL, or why that is not possible. */
__attribute__((visibility("default"))) const char* allotment_stand_in_install(
    const allotment_points* given, uint64_t pools_made) {
    using namespace allotment;
    std::string reason;
    try {
        auto* present = c10::cuda::CUDACachingAllocator::allocator.load();
        if (present == &stand_in()) return nullptr;
        reason = too_late(present, pools_made);
        if (reason.empty()) {
            points = given;
            contexts().serve(given);
            given->serve(&framework);
            if (present->initialized()) {
                stand_in().init(c10::cuda::device_count());
                for (int device = 0; device < stand_in().device_count; ++device) {
                    const double fraction = present->getMemoryFraction(static_cast<DeviceIndex>(device));
                    if (fraction < 1.0) points->set_memory_fraction(device, fraction);
                }
            }
            follow_settings();
            c10::SetAllocator(c10::DeviceType::CUDA, &stand_in(), 10);
            c10::cuda::CUDACachingAllocator::allocator.store(&stand_in());
            return nullptr;
        }
    } catch (const c10::Error& error) {
        reason = error.what_without_backtrace();
    } catch (const std::exception& error) {
        reason = error.what();
    }
    std::strncpy(told, reason.c_str(), sizeof(told) - 1);
    return told;
}

/* How many contexts are kept, for tests. */
__attribute__((visibility("default"))) size_t allotment_stand_in_contexts() { return allotment::contexts().count(); }
}
