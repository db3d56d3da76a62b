#include "book.hpp"

#include <algorithm>
#include <tuple>

namespace rollring::ledger {

void Book::unload(const Kept& record) {
    const auto at = loads_.find(record.segment);
    at->second.records--;
    at->second.bytes -= record.bytes;
    if (at->second.records == 0) loads_.erase(at);
}

void Book::expect(std::uint64_t records) {
    records_.reserve(records_.size() + records);
    names_.reserve(names_.size() + records);
}

void Book::keep(std::uint64_t number, const Kept& record) {
    use(number);
    const auto [at, fresh] = records_.try_emplace(number, record);
    if (fresh) {
        names_[record.origin] = number;
    } else {
        unload(at->second);
        at->second.segment = record.segment;
        at->second.offset = record.offset;
        at->second.bytes = record.bytes;
    }
    Load& load = loads_[record.segment];
    load.records++;
    load.bytes += record.bytes;
}

void Book::give_again(std::uint64_t number, Kept& record) {
    if (!record.acked) return;
    record.acked = false;
    by_step_.erase({record.step, number});
}

void Book::ack(std::uint64_t batch, std::int64_t step, std::span<const std::uint64_t> numbers) {
    next_batch_ = std::max(next_batch_, batch + 1);
    for (std::size_t i = 0; i < numbers.size(); i++) {
        use(numbers[i]);
        const auto at = records_.find(numbers[i]);
        if (at == records_.end()) continue;
        give_again(numbers[i], at->second);
        at->second.batch = batch;
        at->second.place = static_cast<std::uint32_t>(i);
        at->second.acked = true;
        at->second.step = step;
        by_step_.emplace_hint(by_step_.end(), step, numbers[i]);  // they come in their order
    }
}

std::uint64_t Book::forget(std::span<const std::uint64_t> numbers) {
    std::uint64_t known = 0;
    for (const std::uint64_t number : numbers) {
        use(number);
        const auto at = records_.find(number);
        if (at == records_.end()) continue;
        if (at->second.acked) settle_step(at->second.step);
        give_again(number, at->second);
        names_.erase(at->second.origin);
        unload(at->second);
        records_.erase(at);
        known++;
    }
    return known;
}

void Book::give_again(std::span<const std::uint64_t> numbers) {
    for (const std::uint64_t number : numbers) {
        if (const auto at = records_.find(number); at != records_.end()) {
            give_again(number, at->second);
        }
    }
}

void Book::go_on(std::uint64_t next_number, std::uint64_t next_batch, std::int64_t settled_step) {
    next_number_ = std::max(next_number_, next_number);
    next_batch_ = std::max(next_batch_, next_batch);
    settled_step_ = settled_step;
}

void Book::enter_ring(std::uint64_t ring_id) {
    if (ring_id == ring_id_) return;
    ring_id_ = ring_id;
    for (const auto& [step, number] : by_step_) records_.at(number).acked = false;
    by_step_.clear();
}

std::optional<std::uint64_t> Book::find(const Identity& identity) const {
    const auto at = names_.find(identity);
    return at != names_.end() ? std::optional(at->second) : std::nullopt;
}

const Kept* Book::record(std::uint64_t number) const {
    const auto at = records_.find(number);
    return at != records_.end() ? &at->second : nullptr;
}

std::vector<std::uint64_t> Book::through(std::int64_t step) const {
    std::vector<std::uint64_t> found;
    for (const auto& [of, number] : by_step_) {
        if (of > step) break;
        found.push_back(number);
    }
    return found;
}

std::vector<std::uint64_t> Book::in_order() const {
    // A record's rank: its batch and place there, behind them the number.
    using Rank = std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>;
    constexpr std::uint64_t none = ~std::uint64_t{0};
    const auto rank_of = [&](std::uint64_t number, const Kept& one) {
        return Rank{one.batch == 0 ? none : one.batch, one.place, number};
    };
    struct HashKey {
        std::size_t operator()(const GroupKey& key) const { return key.low ^ key.high; }
    };
    std::unordered_map<GroupKey, Rank, HashKey> first;
    for (const auto& [number, one] : records_) {
        const Rank rank = rank_of(number, one);
        const auto [at, fresh] = first.try_emplace(one.key, rank);
        if (!fresh) at->second = std::min(at->second, rank);
    }
    std::vector<std::pair<std::pair<Rank, Rank>, std::uint64_t>> ranked;
    ranked.reserve(records_.size());
    for (const auto& [number, one] : records_) {
        ranked.push_back({{first[one.key], rank_of(number, one)}, number});
    }
    std::ranges::sort(ranked);
    std::vector<std::uint64_t> numbers;
    numbers.reserve(ranked.size());
    for (const auto& one : ranked) numbers.push_back(one.second);
    return numbers;
}

Book::Load Book::load(std::uint64_t segment) const {
    const auto at = loads_.find(segment);
    return at != loads_.end() ? at->second : Load{};
}

std::vector<std::uint64_t> Book::in_segment(std::uint64_t segment) const {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, one] : records_) {
        if (one.segment == segment) numbers.push_back(number);
    }
    std::ranges::sort(numbers);
    return numbers;
}

}  // namespace rollring::ledger
