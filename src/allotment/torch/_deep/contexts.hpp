/* Numbers for the contexts that PyTorch gathers. Blocks and records of the engine carry the numbers.
 *
 * A number can be reused when no block and no record has it any more. A sweep over all of them finds such numbers; it
 * runs whenever there are twice as many contexts as the last sweep left. The cost per context is therefore constant,
 * however long the history is. A sweep does not see contexts that a thread has gathered but not yet passed to the
 * engine, so the last few contexts of each thread are kept (calls nest if a callback allocates or the garbage
 * collector frees). */
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "framework_interface.h"

namespace allotment {

using Context = std::shared_ptr<c10::GatheredContext>;

class Contexts {
 public:
    void use(const allotment_interface* table) { interface_ = table; }

    uint32_t keep(Context context) {
        if (context == nullptr) return 0;
        if (needs_sweep()) sweep();
        std::lock_guard<std::mutex> guard(mutex_);
        uint32_t index;
        if (!spare_.empty()) {
            index = spare_.front();
            spare_.pop_front();
            kept_[index] = std::move(context);
        } else if (kept_.size() < ALLOTMENT_CONTEXTS_MOST) {
            index = static_cast<uint32_t>(kept_.size());
            kept_.push_back(std::move(context));
        } else {
            return 0;
        }
        recent().note(index);
        return ALLOTMENT_FOREIGN_CONTEXT + index;
    }

    Context at(uint32_t number) const {
        if (number < ALLOTMENT_FOREIGN_CONTEXT) return nullptr;
        std::lock_guard<std::mutex> guard(mutex_);
        const uint32_t index = number - ALLOTMENT_FOREIGN_CONTEXT;
        return index < kept_.size() ? kept_[index] : nullptr;
    }

    size_t count() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return kept_.size() - spare_.size();
    }

    /* While an instance exists, no number is reused: for code that reads numbers first and looks them up later. */
    class Reading {
     public:
        explicit Reading(Contexts& contexts) : contexts_(contexts) { change(1); }
        ~Reading() { change(-1); }

     private:
        void change(int by) {
            std::lock_guard<std::mutex> guard(contexts_.mutex_);
            contexts_.readers_ += by;
        }
        Contexts& contexts_;
    };

 private:
    static constexpr size_t first_sweep = 1 << 16;

    /* The last contexts of one thread. */
    struct Recent {
        explicit Recent(Contexts& owner) : owner_(owner) { owner_.threads_.insert(this); }
        ~Recent() {
            std::lock_guard<std::mutex> guard(owner_.mutex_);
            owner_.threads_.erase(this);
        }
        void note(uint32_t index) {
            last[at] = index;
            at = (at + 1) % last.size();
        }
        Contexts& owner_;
        std::array<uint32_t, 16> last{};
        size_t at = 0;
    };

    Recent& recent() {      /* pre: the mutex is held */
        thread_local Recent mine(*this);
        return mine;
    }

    bool needs_sweep() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return spare_.empty() && kept_.size() >= next_sweep_ && readers_ == 0 && !is_sweeping_;
    }

    /* The mutex is not held during the sweep, because code inside the engine may look up a context. */
    void sweep() {
        std::vector<bool> used;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            if (is_sweeping_ || !spare_.empty()) return;
            is_sweeping_ = true;
            used.resize(kept_.size());
            for (const Recent* thread : threads_) {
                for (uint32_t index : thread->last) {
                    if (index < used.size()) used[index] = true;
                }
            }
        }
        const bool known = interface_->contexts_in_use(
            [](void* self, uint32_t number) {
                auto& marks = *static_cast<std::vector<bool>*>(self);
                if (number - ALLOTMENT_FOREIGN_CONTEXT < marks.size()) marks[number - ALLOTMENT_FOREIGN_CONTEXT] = true;
            },
            &used);
        std::vector<Context> unneeded;      /* destroyed after the mutex is released */
        std::lock_guard<std::mutex> guard(mutex_);
        is_sweeping_ = false;
        if (known && readers_ == 0) {
            for (size_t index = 0; index < used.size(); ++index) {
                if (!used[index]) {
                    unneeded.push_back(std::move(kept_[index]));
                    spare_.push_back(static_cast<uint32_t>(index));
                }
            }
        }
        next_sweep_ = std::max(first_sweep, 2 * (kept_.size() - spare_.size()));
    }

    mutable std::mutex mutex_;
    const allotment_interface* interface_ = nullptr;
    std::deque<Context> kept_;
    std::deque<uint32_t> spare_;        /* oldest first */
    std::unordered_set<Recent*> threads_;
    size_t next_sweep_ = first_sweep;
    int readers_ = 0;
    bool is_sweeping_ = false;
};

}
