/* What the points tell, in PyTorch's types. */
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include "points.hpp"
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

c10::CachingAllocator::StatArray stats_of(const allotment_stat (&stats)[3]) {
    return {stat_of(stats[0]), stat_of(stats[1]), stat_of(stats[2])};
}

void put_stats(DeviceStats& out, const allotment_stats& stats) {
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
        out.registration_counter = static_cast<int32_t>(segment->number);   /* ranks register them in this order */
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

}
}
