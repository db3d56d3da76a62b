#include "batch_cutter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace rollring {

// Visits the ready groups in the order in which they may ship, until `visit` returns false.
template <class Visit>
void BatchCutter::for_each_candidate(Visit visit) const {
    const StashOptions& options = from_.options;
    if (options.order == Order::freshest) {
        for (std::uint32_t index = from_.ready.last(); index != Group::none;) {
            if (!visit(index)) return;
            index = from_.ready.previous(index);
        }
        return;
    }
    const std::uint64_t window = window_groups();
    std::uint64_t seen = 0;
    for (std::uint32_t index = from_.by_age.first(); index != Group::none;
         index = from_.by_age.next(index)) {
        const Group& group = from_.groups[index];
        // Leased groups, and those that are kept past their deadline, must not block the ones
        // behind them.
        const bool waits = group.state == GroupState::open && !group.expired;
        const bool ready = group.state == GroupState::ready;
        if ((waits || ready) && ++seen > window) return;
        if (waits && options.order == Order::fifo && !partial_) return;
        if (ready && !visit(index)) return;
    }
}

std::vector<std::uint32_t> BatchCutter::choose() {
    if (!from_.shares.weighted()) {
        for_each_candidate([&](std::uint32_t index) { return take(index); });
    } else {
        for_each_candidate([&](std::uint32_t index) {
            waiting_[from_.groups[index].source_id].push_back(index);
            return true;
        });
        while (!waiting_.empty()) {
            auto source = next_source();
            if (!take(source->second.front())) break;
            source->second.pop_front();
            if (source->second.empty()) waiting_.erase(source);
        }
    }
    found_ = chosen_.size();
    if (!enough() && !partial_ && !full_) chosen_.clear();
    return std::move(chosen_);
}

std::uint64_t BatchCutter::window_groups() const {
    const StashOptions& options = from_.options;
    if (options.order != Order::windowed || partial_) {
        return std::numeric_limits<std::uint64_t>::max();
    }
    std::uint64_t batch = options.batch.amount();
    if (options.batch.unit() == BatchTarget::Unit::sequences) {
        batch = (batch + options.group_size - 1) / options.group_size;
    }
    // A target in tokens does not tell the number of groups in advance.
    if (options.batch.unit() == BatchTarget::Unit::tokens) batch = 64;
    return static_cast<std::uint64_t>(
        std::ceil(static_cast<double>(batch) / options.advanced.window_fraction));
}

bool BatchCutter::enough() const {
    const BatchTarget& target = from_.options.batch;
    switch (target.unit()) {
        case BatchTarget::Unit::groups:
            return chosen_.size() >= target.amount();
        case BatchTarget::Unit::sequences:
            return sequences_ >= target.amount();
        case BatchTarget::Unit::tokens:
            break;
    }
    return tokens_ >= target.amount();
}

// False if the batch has enough without this group, or is full.
bool BatchCutter::take(std::uint32_t index) {
    if (enough()) return false;
    const Group& group = from_.groups[index];
    records_ += group.total.records;
    full_ = !chosen_.empty() && records_ > from_.records_max;
    if (full_) return false;
    chosen_.push_back(index);
    const Amount amount = group.complete_amount();
    sequences_ += amount.records;
    tokens_ += amount.tokens;
    if (from_.shares.weighted()) {
        served_[group.source_id] +=
            static_cast<double>(amount.tokens) / from_.shares.weight(group.source_id);
    }
    return true;
}

// The source that has shipped the fewest tokens for its weight.
std::map<std::int64_t, std::deque<std::uint32_t>>::iterator BatchCutter::next_source() {
    return std::ranges::min_element(waiting_, {}, [&](const auto& source) {
        const auto now = served_.find(source.first);
        return from_.shares.served(source.first) + (now != served_.end() ? now->second : 0.0);
    });
}

}  // namespace rollring
