/* The torch allocator: PyTorch's allocator interface on Allotment's allocators. It is compiled on the user's machine
 * against the installed PyTorch, or comes with the package for some releases.
 *
 * It makes no decisions. Requests go to a device's entry points (allotment.h), everything else to the framework
 * interface (framework_interface.h). This file converts PyTorch's types to C and failures to PyTorch's exceptions, and
 * informs those whom PyTorch's own allocator informs (observers.hpp).
 *
 * PyTorch recognises its own allocator by its name, "native", by the deleter that all blocks share, and by being
 * initialized when PyTorch has passed it the number of devices. All three are the same here. */

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "conversions.hpp"
#include "interface.hpp"
#include "observers.hpp"
#include "sleep_guard.hpp"
#include "upcalls.hpp"
#include "versions.hpp"

namespace allotment {
namespace {

/* --- a pool's state ------------------------------------------------------------------------------------------- */

struct PoolState : AllocatorState {
    explicit PoolState(void* held) : state(held) {}
    ~PoolState() override { interface->drop_state(state); }
    void* state;
};

/* --- the interface -------------------------------------------------------------------------------------------- */

void delete_block(void* address);

struct TorchAllocator final : CUDAAllocator {
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
        check_initialized(device);
        const auto* table = entry_points_of(device);
#if TORCH_HAS_RESERVE_CLASSES
        current_request = {device, stream};
#endif
        void* address = table->allocate(table->context, size, device, stream);
        if (C10_UNLIKELY(address == nullptr)) out_of_memory(device, size);
        if (C10_UNLIKELY(pending_exception)) {      /* a tracker threw; the native allocator passes that on too */
            table->free(table->context, address, size, device, stream);
            throw_failure();
        }
        report_allocation(device, address);
        return address;
    }

    /* The first device for which `is_owner(device, table)`, starting with the thread's current one; -1: none. */
    template <typename IsOwner>
    int find_device(const IsOwner& is_owner) const {
        const int count = device_count.load(std::memory_order_relaxed);
        DeviceIndex first = 0;
        if (count > 1 && (c10::cuda::GetDevice(&first) != cudaSuccess || first >= count)) first = 0;
        for (int step = 0; step < count; ++step) {
            const int device = step == 0 ? first : step <= first ? step - 1 : step;
            const auto* table = entry_points_if_bound(device);
            if (table != nullptr && is_owner(device, table)) return device;
        }
        return -1;
    }

    /* The device of a block in use; -1: the address does not begin a block of ours. */
    int device_of(const void* address) const {
        return find_device([address](int device, const allotment_entry_points*) {
            return interface->block_size(device, const_cast<void*>(address)) != 0;
        });
    }

    int check_block(const void* address) const {
        const int device = device_of(address);
        TORCH_CHECK(device >= 0, "invalid device pointer: " + address_text(address));
        return device;
    }

    void release(void* address) {
        if (address == nullptr) return;
        const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
        if (C10_UNLIKELY(interpreter != nullptr)) {
            check_block(address);
            (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
        }
        const bool profiled = c10::memoryProfilingEnabled();
        size_t size = 0;
        const int owner = find_device([&](int device, const allotment_entry_points* table) {
            if (C10_UNLIKELY(profiled)) size = interface->block_size(device, address);
            if (C10_LIKELY(table->free(table->context, address, 0, device, nullptr))) return true;
            if (C10_UNLIKELY(!interface->was_unknown_address())) throw_failure_of(device);
            return false;
        });
        TORCH_CHECK(owner >= 0, "invalid device pointer: " + address_text(address));
        report_block(static_cast<DeviceIndex>(owner), address, -static_cast<int64_t>(size), profiled);
        if (C10_UNLIKELY(pending_exception)) throw_failure();
    }

    void recordStream(const DataPtr& block, c10::cuda::CUDAStream stream) override {
        if (block.get() == nullptr || block.get_deleter() != &delete_block) return;     /* for example of another process */
        const int device = device_count.load(std::memory_order_relaxed) == 1 ? 0 : check_block(block.get());
        const auto* table = entry_points_of(device);
        if (!table->record_stream(table->context, block.get(), stream.stream())) throw_failure_of(device);
    }

    void* getBaseAllocation(void* address, size_t* size) override {
        const int device = check_block(address);
        const auto* table = entry_points_of(device);
        void* base = table->base_allocation(table->context, address, size);
        if (base == nullptr) throw_failure_of(device);
        return base;
    }

#if TORCH_HAS_EXACT_ADDRESSES
    DataPtr allocateWithAddress(size_t size, void* address) override {
        const DeviceIndex device = current_device();
        check_initialized(device);
        void* block = nullptr;
        if (size != 0) {
            entry_points_of(device);
            block = interface->allocate_at(
                device, size, address,
                reinterpret_cast<uint64_t>(c10::cuda::getCurrentCUDAStream(device).stream()));
            check(block != nullptr);
            report_allocation(device, block);
        }
        return {block, block, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
    }
#endif

    /* Devices. */

    void init(int count) override {
        if (count > device_count) device_count = std::min(count, ALLOTMENT_DEVICES_MOST);
    }

    bool initialized() override { return device_count > 0; }

    std::string name() override { return "native"; }

    void check_initialized(int device) const {
        TORCH_INTERNAL_ASSERT(
            0 <= device && device < device_count.load(std::memory_order_relaxed),
            format("Allocator not initialized for device %d: did you call init?", device));
    }

    void check_device(int device) const {
        TORCH_CHECK(
            0 <= device && device < device_count.load(std::memory_order_relaxed),
            format("Invalid device argument %d: did you call init?", device));
    }

    double getMemoryFraction(DeviceIndex device) override {
        check_initialized(device);
        return interface->memory_fraction(device);
    }

    void setMemoryFraction(double fraction, DeviceIndex device) override {
        check_initialized(device);
        TORCH_CHECK(
            0 <= fraction && fraction <= 1,
            format("invalid fraction:%g. Please set within [0, 1].", fraction));
        check(interface->set_memory_fraction(device, fraction));
    }

    void enable(bool value) override { check(interface->enable(value)); }

    bool isEnabled() const override { return interface->is_enabled(); }

    void cacheInfo(DeviceIndex device, size_t* largest) override {
        check_device(device);
        entry_points_of(device);
        check(interface->largest_block(device, largest));
    }

    std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
        check_device(device);
        std::vector<StreamSegmentSize> sizes;
        if (entry_points_if_bound(device) == nullptr) return sizes;
        check(interface->expandable_sizes(
            device,
            [](void* self, uint64_t stream, int is_small, uint64_t mapped) {
                static_cast<std::vector<StreamSegmentSize>*>(self)->emplace_back(
                    reinterpret_cast<cudaStream_t>(stream), is_small, mapped);
            },
            &sizes));
        return sizes;
    }

    void emptyCache(MempoolId_t pool) override {
        for (int device = 0; device < device_count; ++device) {
            if (entry_points_if_bound(device) == nullptr) {
                if (pool == MempoolId_t{0, 0}) ++emptied_before_use[device];
                continue;
            }
            check(interface->empty_cache(device, pool.first, pool.second));
            report_reserved(static_cast<DeviceIndex>(device));
        }
    }

    /* How often the cache of an unused device was emptied; the statistics count that too. */
    std::atomic<int64_t> emptied_before_use[ALLOTMENT_DEVICES_MOST]{};

    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
        c10::cuda::CUDAGuard guard(device);
        const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
        } else {
            C10_CUDA_CHECK(error);
        }
        check(interface->enable_peer(peer, device));
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
        check_device(device);
        DeviceStats out;
        StatisticsBuilder builder(out);
        const auto visitor = builder.visitor();
        check(interface->statistics(device, &visitor));
        out.num_sync_all_streams += emptied_before_use[device];
        return out;
    }

    void resetAccumulatedStats(DeviceIndex device) override {
        check_device(device);
        emptied_before_use[device] = 0;
        if (entry_points_if_bound(device) != nullptr) check(interface->reset_statistics(device, 0));
    }

    void resetPeakStats(DeviceIndex device) override {
        check_device(device);
        if (entry_points_if_bound(device) != nullptr) check(interface->reset_statistics(device, 1));
    }

    SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override {
        SnapshotInfo info;
        info.config_metadata = settings_now();
        const Contexts::Reading reading(contexts());
        std::vector<TraceEntry> unwanted;
        for (int device = 0; device < device_count; ++device) {
            auto& records = include_traces ? info.device_traces.emplace_back() : unwanted;
            if (entry_points_if_bound(device) == nullptr) continue;
            SnapshotBuilder builder{info, records, static_cast<DeviceIndex>(device)};
            const auto visitor = builder.visitor();
            check(interface->snapshot(device, pool.first, pool.second, include_traces, &visitor));
        }
        std::stable_sort(
            info.external_annotations.begin(), info.external_annotations.end(),
            [](const AnnotationEntry& a, const AnnotationEntry& b) { return a.time_.t_ < b.time_.t_; });
        return info;
    }

    /* History. */

    bool isHistoryEnabled() override { return interface->is_recording(current_device()); }

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
        check(interface->record_history(
            enabled, static_cast<int>(when), most, clear, skip.data(), skip.size(), context_recorder != nullptr));
        if (!enabled) recorder = nullptr;
    }

    void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override {
        if (device_count == 0) return;
        const DeviceIndex device = current_device();
        if (!interface->is_recording(device)) return;
        std::vector<const char*> keys, values;
        for (const auto& [key, value] : pairs) {
            keys.push_back(key.c_str());
            values.push_back(value.c_str());
        }
        check(interface->annotate(device, keys.data(), values.data(), keys.size()));
    }

    void pushCompileContext(std::string& name) override {
        if (device_count > 0 && interface->is_recording(current_device())) interface->push_compile_context(name.c_str());
    }

    void popCompileContext() override {
        if (device_count > 0 && interface->is_recording(current_device())) interface->pop_compile_context();
    }

    void setUserMetadata(const std::string& text) override { interface->set_user_metadata(text.c_str()); }

    std::string getUserMetadata() override { return interface->user_metadata(); }

#if TORCH_ANNOTATES_BLOCKS
    bool supportsUserMetadata() override { return true; }

    void annotateMemory(const void* address, const std::string& text) override {
        const int device = device_of(address);
        TORCH_CHECK(device >= 0, "annotateMemory: no live allocation found at pointer " + address_text(address));
        check(interface->annotate_block(device, address, text.c_str()));
    }
#endif

#if TORCH_HAS_CONTEXT_FOR_POINTER
    Context getContextForPointer(const void* address) override {
        const int device = device_of(address);
        if (device < 0) return nullptr;
        const Contexts::Reading reading(contexts());
        return contexts().at(interface->block_context(device, address));
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
        check(interface->relay_records(1));
    }

    /* Pools. */

    void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, StreamFilter filter) override {
        check_device(device);
        const auto* table = entry_points_of(device);
        auto kept = std::make_unique<StreamFilter>(std::move(filter));
        if (!table->begin_allocate_to_pool(
                table->context, pool.first, pool.second, filter_accepts, filter_drop, kept.get())) {
            throw_failure_of(device);
        }
        kept.release();
    }

    void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
        check_device(device);
        const auto* table = entry_points_of(device);
        if (!table->end_allocate_to_pool(table->context, pool.first, pool.second)) throw_failure_of(device);
    }

    void releasePool(DeviceIndex device, MempoolId_t pool) override {
        check_device(device);
        const auto* table = entry_points_of(device);
        if (!table->release_pool(table->context, pool.first, pool.second)) throw_failure_of(device);
    }

    int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
        check_device(device);
        entry_points_of(device);
        const int count = interface->pool_use_count(device, pool.first, pool.second);
        check(count >= 0);
        return count;
    }

    void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, SegmentSource source) override {
        check_device(device);
        entry_points_of(device);
        if (source == nullptr) {
            check(interface->create_or_incref_pool(device, pool.first, pool.second, nullptr));
            return;
        }
        auto kept = std::make_unique<SegmentSource>(std::move(source));
        const allotment_raw_allocator raw{kept.get(), source_allocate, source_free, source_drop};
        check(interface->create_or_incref_pool(device, pool.first, pool.second, &raw));
        kept.release();
    }

    void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
        check_device(device);
        entry_points_of(device);
        check(interface->set_use_on_oom(device, pool.first, pool.second, use_on_oom));
    }

    void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
        check_device(device);
        entry_points_of(device);
        check(interface->set_no_split(device, pool.first, pool.second));
    }

    bool checkPoolLiveAllocations(
        DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& expected) override {
        check_device(device);
        entry_points_of(device);
        std::unordered_set<void*> live;
        check(interface->live_addresses(
            device, pool.first, pool.second,
            [](void* self, uint64_t address) {
                static_cast<std::unordered_set<void*>*>(self)->insert(reinterpret_cast<void*>(address));
            },
            &live));
        return live == expected;
    }

    std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
        check_device(device);
        entry_points_of(device);
        void* state = interface->checkpoint(device, pool.first, pool.second);
        check(state != nullptr);
        return std::make_shared<PoolState>(state);
    }

    CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
        check_device(device);
        auto* ours = dynamic_cast<PoolState*>(state.get());
        TORCH_CHECK(ours != nullptr, "this state of a pool was not taken by the allocator in use");
        std::vector<void*> freed, created;
        std::pair<std::vector<void*>*, std::vector<void*>*> both{&freed, &created};
        check(interface->restore(
            device, ours->state,
            [](void* self, uint64_t address) {
                static_cast<decltype(both)*>(self)->first->push_back(reinterpret_cast<void*>(address));
            },
            [](void* self, uint64_t address) {
                static_cast<decltype(both)*>(self)->second->push_back(reinterpret_cast<void*>(address));
            },
            &both));
        report_reserved(device);
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
        check(interface->share(
            check_block(address), address, &offset,
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
        auto known = opened.find(handle);
        if (known != opened.end()) {
            if (auto memory = known->second.lock()) return memory;
        }
        entry_points_of(device);
        uint64_t address = 0;
        void* held = interface->open_shared(device, handle.data(), handle.size(), &address);
        check(held != nullptr);
        std::shared_ptr<void> memory(reinterpret_cast<void*>(address), [this, held, handle](void*) {
            std::lock_guard<std::mutex> removal(opened_mutex);
            interface->close_shared(held);
            auto known = opened.find(handle);
            if (known != opened.end() && known->second.expired()) opened.erase(known);
        });
        opened[handle] = memory;
        return memory;
    }

    std::mutex opened_mutex;
    std::unordered_map<std::string, std::weak_ptr<void>> opened;

#if TORCH_MARKS_CAPTURES
    /* Nothing to do: the engine asks the driver for captures when they matter. */
    void markCaptureBegin(DeviceIndex) override {}
    void markCaptureEnd(DeviceIndex) override {}
#endif
};

TorchAllocator& torch_allocator() {
    static auto* one = new TorchAllocator;
    return *one;
}

void delete_block(void* address) { torch_allocator().release(address); }

/* Pass on new settings after PyTorch's own parser, so that those it refuses do not arrive. */
void follow_settings() {
    auto& hook = c10::CachingAllocator::AcceleratorAllocatorConfig::getConfigParserHook();
    hook = [before = hook](const std::string& text) {
        if (before) before(text);
        check(interface->configure(text.c_str()));
    };
}

/* The reason why the present allocator can no longer be replaced; empty if it can. */
std::string too_late(CUDAAllocator* present, uint64_t pools_made) {
    if (!present->initialized()) return "";
    if (present->name() != "native") return "PyTorch uses the allocator " + present->name();
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
            return "a MemPool of PyTorch's own allocator exists";
        }
    }
    if (count > 0 && present->isHistoryEnabled()) return "PyTorch's own allocator is recording its history";
    return "";
}

char refusal[512];

}
}

extern "C" {

/* Whether this library was compiled for a framework interface of this form. */
__attribute__((visibility("default"))) int allotment_torch_allocator_fits(const allotment_interface* table) {
    return table->version == ALLOTMENT_INTERFACE_VERSION && table->size == sizeof(allotment_interface);
}

/* Replace PyTorch's own allocator. Returns NULL, or the reason why that is not possible. */
__attribute__((visibility("default"))) const char* allotment_torch_allocator_install(
    const allotment_interface* table, uint64_t pools_made) {
    using namespace allotment;
    std::string reason;
    try {
        auto* present = c10::cuda::CUDACachingAllocator::allocator.load();
        if (present == &torch_allocator()) return nullptr;
        reason = too_late(present, pools_made);
        if (reason.empty()) {
            use_interface(table);
            contexts().use(table);
            table->set_upcalls(&upcalls);
            if (present->initialized()) {
                torch_allocator().init(c10::cuda::device_count());
                for (int device = 0; device < torch_allocator().device_count; ++device) {
                    const double fraction = present->getMemoryFraction(static_cast<DeviceIndex>(device));
                    if (fraction < 1.0) interface->set_memory_fraction(device, fraction);
                }
            }
            follow_settings();
            c10::SetAllocator(c10::DeviceType::CUDA, &torch_allocator(), 10);
            c10::cuda::CUDACachingAllocator::allocator.store(&torch_allocator());
            return nullptr;
        }
    } catch (const c10::Error& error) {
        reason = error.what_without_backtrace();
    } catch (const std::exception& error) {
        reason = error.what();
    }
    std::strncpy(refusal, reason.c_str(), sizeof(refusal) - 1);
    return refusal;
}

/* Refuse operators on memory that sleeps: where it may be, and what knows it exactly. Also without `install`. */
__attribute__((visibility("default"))) void allotment_torch_refuse_asleep(
    const uint64_t* begins, const uint64_t* ends, size_t count, allotment::explain_sleep_t explain) {
    using namespace allotment;
    count = std::min(count, EXTENTS_MOST);
    explain_sleep = explain;
    extent_count = 0;
    for (size_t i = 0; i < count; ++i) {
        extents[i].begin = begins[i];
        extents[i].end = ends[i];
    }
    extent_count = count;
    watch_operators(count > 0);
}

/* The number of contexts that are kept, for tests. */
__attribute__((visibility("default"))) size_t allotment_torch_allocator_contexts() { return allotment::contexts().count(); }
}
