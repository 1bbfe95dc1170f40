/* Names for the differences between the PyTorch releases that our libraries can be compiled against. */
#pragma once

#include <torch/headeronly/version.h>

#define ALLOTMENT_TORCH(major, minor) \
    (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !ALLOTMENT_TORCH(2, 11)
#error "PyTorch 2.11 or newer is needed"
#endif

/* 2.12: requests that settings reject have observers and a counter */
#define TORCH_HAS_REJECTIONS ALLOTMENT_TORCH(2, 12)
/* 2.12: a block's context can be asked for */
#define TORCH_HAS_CONTEXT_FOR_POINTER ALLOTMENT_TORCH(2, 12)
/* 2.13: what private pools reserve is counted by pool */
#define TORCH_COUNTS_POOLS ALLOTMENT_TORCH(2, 13)
/* 2.13: the begin and the end of captures are reported */
#define TORCH_MARKS_CAPTURES ALLOTMENT_TORCH(2, 13)
/* 2.13: memory at an address of the caller's choice */
#define TORCH_HAS_EXACT_ADDRESSES ALLOTMENT_TORCH(2, 13)
/* 2.13: names of actions to omit from a history are checked */
#define TORCH_CHECKS_ACTIONS ALLOTMENT_TORCH(2, 13)
/* 2.13: two settings of pinned memory are part of a snapshot */
#define TORCH_SHOWS_PINNED_SETTINGS ALLOTMENT_TORCH(2, 13)
/* 2.14: notes on live blocks; whether user metadata exist can be queried */
#define TORCH_ANNOTATES_BLOCKS ALLOTMENT_TORCH(2, 14)
/* 2.15: the allocator's own notes have a separate field */
#define TORCH_HAS_INTERNAL_METADATA ALLOTMENT_TORCH(2, 15)
/* 2.15: streams have classes, which say how much address space an expandable segment reserves */
#define TORCH_HAS_RESERVE_CLASSES ALLOTMENT_TORCH(2, 15)
/* 2.14: pinned memory has a history, and is part of snapshots */
#define TORCH_RECORDS_PINNED_MEMORY ALLOTMENT_TORCH(2, 14)
/* 2.12: reading the address of a storage can be allowed again */
#define TORCH_CLEARS_ACCESS_ERRORS ALLOTMENT_TORCH(2, 12)
/* 2.12: whether a refused free counts as done can be set */
#define TORCH_CATCHES_PINNED_FREES ALLOTMENT_TORCH(2, 12)
/* 2.13: sizes above which pinned memory is not rounded, or not cached */
#define TORCH_BOUNDS_PINNED_MEMORY ALLOTMENT_TORCH(2, 13)
