/* Operators on memory that sleeps: they fail before they reach the device, where they would end the process's use of it.
 *
 * While something sleeps, PyTorch calls us before each operator, on every thread. If an argument's memory sleeps, reading
 * the address of that memory throws until the operator ends. So operators that need no contents still work. While
 * nothing sleeps, PyTorch does not call us. */
#pragma once

#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "versions.hpp"

namespace allotment {
namespace {

constexpr size_t EXTENTS_MOST = 64;

/* Write why the memory at an address cannot be used; return 0 if it can. */
using explain_sleep_t = int (*)(uint64_t address, char* text, size_t capacity);

struct Extent {
    std::atomic<uint64_t> begin{0}, end{0};
};

/* Where sleeping memory may be. It is replaced while threads read it: `explain_sleep` has the last word. */
Extent extents[EXTENTS_MOST];
std::atomic<size_t> extent_count{0};
std::atomic<explain_sleep_t> explain_sleep{nullptr};

bool may_sleep(uint64_t address) {
    const size_t count = extent_count.load(std::memory_order_acquire);
    for (size_t i = 0; i < count; ++i) {
        if (address - extents[i].begin.load(std::memory_order_relaxed) <
            extents[i].end.load(std::memory_order_relaxed) - extents[i].begin.load(std::memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

#if !TORCH_CLEARS_ACCESS_ERRORS
/* A private member, which only an explicit instantiation may name. */
template <bool c10::StorageImpl::*member>
struct Reach {
    friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*member; }
};
bool& throws_on_access(c10::StorageImpl& storage);
template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
#endif

/* Storages whose address cannot be read, each with the number of operators that need it to be so. */
struct Refused {
    std::mutex mutex;
    std::unordered_map<c10::StorageImpl*, size_t> operators;

    void add(c10::StorageImpl& storage, const char* why) {
        std::lock_guard<std::mutex> guard(mutex);
        if (operators[&storage]++ == 0) storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
    }

    void remove(c10::StorageImpl& storage) {
        std::lock_guard<std::mutex> guard(mutex);
        const auto found = operators.find(&storage);
        if (--found->second != 0) return;
        operators.erase(found);
#if TORCH_CLEARS_ACCESS_ERRORS
        storage.clear_data_ptr_access_error_msg_();
#else
        throws_on_access(storage) = false;
#endif
    }
};

Refused& refused() {
    static auto* all = new Refused;
    return *all;
}

/* The refused storages of one operator. */
struct Refusal : at::ObserverContext {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;

    ~Refusal() override {
        for (const auto& storage : storages) refused().remove(*storage);
    }
};

void refuse_if_asleep(const at::RecordFunction& call, const c10::IValue& argument, std::unique_ptr<Refusal>& refusal) {
    auto* tensor = argument.unsafeToTensorImpl();
    if (!tensor->is_cuda() || !tensor->has_storage()) return;
    auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
    const auto address = reinterpret_cast<uint64_t>(storage->_mutable_data_ptr_no_checks().get());
    if (C10_LIKELY(!may_sleep(address))) return;
    /* It reads the address, but nothing touches the contents. */
    if (std::string("aten::record_stream") == call.name()) return;
    char why[400];
    if (!explain_sleep.load()(address, why, sizeof(why))) return;
    if (!refusal) refusal = std::make_unique<Refusal>();
    refusal->storages.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    refused().add(*storage, why);
}

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& call) {
    std::unique_ptr<Refusal> refusal;
    for (const c10::IValue& argument : call.inputs()) {
        if (argument.isTensor()) {
            refuse_if_asleep(call, argument, refusal);
        } else if (argument.isTensorList() || argument.isOptionalTensorList()) {
            for (const c10::IValue& each : argument.toListRef()) {
                if (each.isTensor()) refuse_if_asleep(call, each, refusal);
            }
        }
    }
    return refusal;
}

/* PyTorch calls `before_operator` from now on, or no longer. */
void watch_operators(bool on) {
    static std::mutex mutex;
    static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
    std::lock_guard<std::mutex> guard(mutex);
    if (on && handle == at::INVALID_CALLBACK_HANDLE) {
        handle = at::addGlobalCallback(
            at::RecordFunctionCallback(before_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    } else if (!on && handle != at::INVALID_CALLBACK_HANDLE) {
        at::removeCallback(handle);
        handle = at::INVALID_CALLBACK_HANDLE;
    }
}

}
}
