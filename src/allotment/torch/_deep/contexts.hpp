/* The contexts that PyTorch gathers, as numbers that blocks and records of the engine carry.
 *
 * A number is used again once no block and no record has it. That is found out by looking at all of them, each time
 * when there are twice as many contexts as were left the last time: so a context costs the same however long the
 * history is. What a thread has gathered and not handed to the engine yet is not seen there; so the last few of each
 * thread stay (calls nest when a callback allocates, or a collection frees). */
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "allotment_points.h"

namespace allotment {

using Context = std::shared_ptr<c10::GatheredContext>;

class Contexts {
 public:
    void serve(const allotment_points* points) { points_ = points; }

    uint32_t keep(Context context) {
        if (context == nullptr) return 0;
        if (is_crowded()) make_room();
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

    /* While one lives no number is used again: for who reads numbers now and asks about them later. */
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
    static constexpr size_t first_look = 1 << 16;

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

    bool is_crowded() const {
        std::lock_guard<std::mutex> guard(mutex_);
        return spare_.empty() && kept_.size() >= next_look_ && readers_ == 0 && !is_looking_;
    }

    /* Not under the mutex while the engine is asked: who is inside of it may ask for a context. */
    void make_room() {
        std::vector<bool> used;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            if (is_looking_ || !spare_.empty()) return;
            is_looking_ = true;
            used.resize(kept_.size());
            for (const Recent* thread : threads_) {
                for (uint32_t index : thread->last) {
                    if (index < used.size()) used[index] = true;
                }
            }
        }
        const bool known = points_->contexts_in_use(
            [](void* self, uint32_t number) {
                auto& marks = *static_cast<std::vector<bool>*>(self);
                if (number - ALLOTMENT_FOREIGN_CONTEXT < marks.size()) marks[number - ALLOTMENT_FOREIGN_CONTEXT] = true;
            },
            &used);
        std::vector<Context> unneeded;      /* go when the mutex is given back */
        std::lock_guard<std::mutex> guard(mutex_);
        is_looking_ = false;
        if (known && readers_ == 0) {
            for (size_t index = 0; index < used.size(); ++index) {
                if (!used[index]) {
                    unneeded.push_back(std::move(kept_[index]));
                    spare_.push_back(static_cast<uint32_t>(index));
                }
            }
        }
        next_look_ = std::max(first_look, 2 * (kept_.size() - spare_.size()));
    }

    mutable std::mutex mutex_;
    const allotment_points* points_ = nullptr;
    std::deque<Context> kept_;
    std::deque<uint32_t> spare_;        /* the one that was freed first is used first */
    std::unordered_set<Recent*> threads_;
    size_t next_look_ = first_look;
    int readers_ = 0;
    bool is_looking_ = false;
};

}
