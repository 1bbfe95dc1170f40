/* The types of the framework interface, converted to PyTorch's. */
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstring>

#include "interface.hpp"
#include "versions.hpp"

namespace allotment {
namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::CachingDeviceAllocator::AnnotationEntry;

static_assert(TraceEntry::ALLOC == 0 && TraceEntry::FREE_COMPLETED == 2 && TraceEntry::SEGMENT_UNMAP == 6 &&
              TraceEntry::SNAPSHOT == 7 && TraceEntry::OOM == 8, "actions have the numbers of the framework interface");

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

c10::CachingAllocator::Stat stat_of(const allotment_stat& stat) {
    c10::CachingAllocator::Stat out;
    out.current = stat.current;
    out.peak = stat.peak;
    out.allocated = stat.allocated;
    out.freed = stat.freed;
    return out;
}

c10::CachingAllocator::StatArray stats_of(const allotment_stat* three) {
    return {stat_of(three[0]), stat_of(three[1]), stat_of(three[2])};
}

/* Puts statistics into PyTorch's struct, by name. A name that this release's struct lacks is left out. */
class StatisticsBuilder {
 public:
    explicit StatisticsBuilder(DeviceStats& out) : out_(out) {}

    allotment_statistics_visitor visitor() { return {this, number, stat, stats, pool}; }

 private:
    template <typename Value>
    struct Field {
        const char* name;
        Value DeviceStats::*member;
    };

    template <typename Value, size_t count>
    static void put(void* self, const Field<Value> (&fields)[count], const char* name, Value value) {
        for (const auto& field : fields) {
            if (std::strcmp(field.name, name) == 0) static_cast<StatisticsBuilder*>(self)->out_.*field.member = value;
        }
    }

#define ALLOTMENT_FIELD(name) {#name, &DeviceStats::name}

    static void number(void* self, const char* name, int64_t value) {
        static constexpr Field<int64_t> fields[] = {
            ALLOTMENT_FIELD(num_alloc_retries), ALLOTMENT_FIELD(num_ooms), ALLOTMENT_FIELD(num_sync_all_streams),
            ALLOTMENT_FIELD(num_device_alloc), ALLOTMENT_FIELD(num_device_free), ALLOTMENT_FIELD(max_split_size),
#if TORCH_HAS_REJECTIONS
            ALLOTMENT_FIELD(num_oom_rejections),
#endif
        };
        put(self, fields, name, value);
    }

    static void stat(void* self, const char* name, const allotment_stat* value) {
        static constexpr Field<c10::CachingAllocator::Stat> fields[] = {
            ALLOTMENT_FIELD(oversize_allocations), ALLOTMENT_FIELD(oversize_segments)};
        put(self, fields, name, stat_of(*value));
    }

    static void stats(void* self, const char* name, const allotment_stat* three) {
        static constexpr Field<c10::CachingAllocator::StatArray> fields[] = {
            ALLOTMENT_FIELD(allocation), ALLOTMENT_FIELD(segment), ALLOTMENT_FIELD(active),
            ALLOTMENT_FIELD(inactive_split), ALLOTMENT_FIELD(allocated_bytes), ALLOTMENT_FIELD(reserved_bytes),
            ALLOTMENT_FIELD(active_bytes), ALLOTMENT_FIELD(inactive_split_bytes), ALLOTMENT_FIELD(requested_bytes)};
        put(self, fields, name, stats_of(three));
    }

#undef ALLOTMENT_FIELD

    static void pool(void* self, uint64_t first, uint64_t second, const allotment_stat* reserved) {
#if TORCH_COUNTS_POOLS
        static_cast<StatisticsBuilder*>(self)->out_.reserved_bytes_by_private_pools[MempoolId_t{first, second}] =
            stats_of(reserved);
#endif
    }

    DeviceStats& out_;
};

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
        out.registration_counter = static_cast<int32_t>(segment->number);   /* ranks register segments in this order */
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

    static void settings(void* self, const char* text) { from(self).info.config_metadata.last_allocator_settings = text; }

    allotment_snapshot_visitor visitor() { return {this, record, segment, block, annotation, pair, settings}; }
};

/* PyTorch's own settings, which are parsed from the same text as ours. */
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

}
}
