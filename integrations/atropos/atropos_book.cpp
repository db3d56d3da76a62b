#include "integrations/atropos/atropos_book.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace rollring::cli {
namespace {

constexpr double min_env_weight = 0.01;   // theirs: no environment starves completely
constexpr std::size_t looked_at = 16384;  // groups; with batch_max a bound on the work
constexpr std::int64_t batch_max = 1 << 20;

// Subset sum, as in textbooks: ascending indices of the earliest sizes that add up to `target`;
// empty if there are none. `from[s]` is the index that first made s possible, so each sum leads
// back through lower indices only.
std::vector<std::size_t> sum_to(std::span<const std::uint32_t> sizes, std::int64_t target) {
    if (target <= 0 || target > batch_max) return {};
    const auto end = static_cast<std::size_t>(target);
    constexpr std::uint32_t none = ~std::uint32_t{0};
    std::vector<std::uint32_t> from(end + 1, none);
    std::size_t reached = 0;
    for (std::size_t i = 0; i < sizes.size() && from[end] == none; i++) {
        const std::size_t size = sizes[i];
        if (size == 0 || size > end) continue;
        for (std::size_t sum = std::min(end, reached + size); sum >= size; sum--) {
            const bool possible = sum == size || from[sum - size] != none;
            if (possible && from[sum] == none) from[sum] = static_cast<std::uint32_t>(i);
        }
        reached = std::min(end, reached + size);
    }
    std::vector<std::size_t> places;
    if (from[end] == none) return places;
    for (std::size_t sum = end; sum != 0; sum -= sizes[places.back()]) places.push_back(from[sum]);
    std::ranges::reverse(places);
    return places;
}

// Likewise, including the oldest size if possible.
std::vector<std::size_t> sum_with_oldest(std::span<const std::uint32_t> sizes,
                                         std::int64_t target) {
    if (sizes.empty()) return {};
    if (sizes.front() == target) return {0};
    auto places = sum_to(sizes.subspan(1), target - sizes.front());
    if (places.empty()) return sum_to(sizes, target);
    for (std::size_t& place : places) place++;
    places.insert(places.begin(), 0);
    return places;
}

}  // namespace

void AtroposBook::enter_trainer(const AtroposTrainer& trainer) {
    if (trainer_) return;
    trainer_ = trainer;
    step_ = trainer.starting_step;
}

std::int64_t AtroposBook::enter_env(AtroposEnv env) {
    const auto same = std::ranges::count(envs_, env.desired_name, &AtroposEnv::desired_name);
    env.real_name = fmt::format("{}_{}", env.desired_name, same);
    envs_.push_back(std::move(env));
    return static_cast<std::int64_t>(envs_.size()) - 1;
}

bool AtroposBook::disconnect(std::int64_t env_id) {
    if (!known(env_id)) return false;
    envs_[static_cast<std::size_t>(env_id)].connected = false;
    return true;
}

std::optional<std::uint64_t> AtroposBook::enter(const AtroposEntry& entry) {
    const std::int64_t announced = known(entry.env_id)
                                       ? envs_[static_cast<std::size_t>(*entry.env_id)].group_size
                                       : std::int64_t{entry.size};
    if (announced == std::int64_t{entry.size}) {
        queue(entry);
        return std::nullopt;
    }
    std::deque<AtroposEntry>& buffer = buffers_[*entry.env_id];
    buffer.push_back(entry);
    std::vector<std::uint32_t> sizes;
    sizes.reserve(buffer.size());
    for (const AtroposEntry& one : buffer) sizes.push_back(one.size);
    const auto places = sum_to(sizes, announced);
    for (const std::size_t place : places) queue(buffer[place]);
    for (auto at = places.rbegin(); at != places.rend(); ++at) {
        buffer.erase(buffer.begin() + static_cast<std::ptrdiff_t>(*at));
    }
    std::uint64_t kept = 0;
    for (const AtroposEntry& one : buffer) kept += one.size;
    return kept;
}

// Takes the minimum share of each connected environment that asks for one. False: one of them has
// not sent enough yet.
bool AtroposBook::choose_minimums(Choice& chosen, std::int64_t& left) const {
    struct Wanted {
        std::int64_t env_id;
        double sequences;
    };
    std::vector<Wanted> wanted;
    double all = 0;
    const auto batch = static_cast<double>(trainer_->batch_size);
    for (std::size_t i = 0; i < envs_.size(); i++) {
        const double share = envs_[i].min_batch_allocation.value_or(0);
        if (!envs_[i].connected || !(share > 0)) continue;
        wanted.push_back({static_cast<std::int64_t>(i), std::floor(batch * std::min(share, 1.0))});
        all += wanted.back().sequences;
    }
    for (const Wanted& one : wanted) {
        double missing = all > batch ? std::max(1.0, one.sequences * batch / all) : one.sequences;
        for (std::size_t i = 0; i < queue_.size() && missing >= 1; i++) {
            if (queue_[i].env_id != one.env_id || std::int64_t{queue_[i].size} > left) continue;
            chosen.push_back(i);
            left -= queue_[i].size;
            missing -= queue_[i].size;
        }
        if (missing >= 1) return false;
    }
    return true;
}

AtroposBook::Choice AtroposBook::choose() const {
    Choice chosen;
    std::int64_t left = trainer_->batch_size;
    if (!choose_minimums(chosen, left)) return {};
    if (left == 0) return chosen;
    Choice others;
    std::vector<std::uint32_t> sizes;
    for (std::size_t i = 0; i < std::min(queue_.size(), looked_at); i++) {
        if (std::ranges::find(chosen, i) != chosen.end()) continue;
        others.push_back(i);
        sizes.push_back(queue_[i].size);
    }
    const auto places = sum_with_oldest(sizes, left);
    if (places.empty()) return {};
    for (const std::size_t place : places) chosen.push_back(others[place]);
    return chosen;
}

bool AtroposBook::has_batch() const {
    return trainer_ && trainer_->batch_size > 0 && !choose().empty();
}

std::vector<AtroposEntry> AtroposBook::take_batch() {
    std::vector<AtroposEntry> batch;
    if (!trainer_ || trainer_->batch_size <= 0) return batch;
    Choice chosen = choose();
    std::ranges::sort(chosen);
    batch.reserve(chosen.size());
    for (const std::size_t place : chosen) batch.push_back(queue_[place]);
    for (auto at = chosen.rbegin(); at != chosen.rend(); ++at) {
        queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(*at));
    }
    return batch;
}

void AtroposBook::put_back(std::span<const AtroposEntry> batch) {
    for (const AtroposEntry& entry : batch) queue(entry);
}

void AtroposBook::queue(const AtroposEntry& entry) {
    queue_.insert(std::ranges::upper_bound(queue_, entry.id, {}, &AtroposEntry::id), entry);
}

std::uint64_t AtroposBook::waiting_sequences() const {
    std::uint64_t sequences = 0;
    for (const AtroposEntry& entry : queue_) sequences += entry.size;
    for (const auto& [env_id, buffer] : buffers_) {
        for (const AtroposEntry& entry : buffer) sequences += entry.size;
    }
    return sequences;
}

// The formulas of Atropos' /status-env.
AtroposEnvStatus AtroposBook::status_of(std::int64_t env_id) {
    if (!known(env_id)) throw std::out_of_range("unknown environment");
    AtroposEnv& self = envs_[static_cast<std::size_t>(env_id)];
    double all_weights = 0;
    double allocated = 0;
    for (const AtroposEnv& env : envs_) {
        if (!env.connected) continue;
        all_weights += static_cast<double>(env.max_token_length) * std::max(0.0, env.weight);
        allocated += env.min_batch_allocation.value_or(0);
    }
    const double own = static_cast<double>(self.max_token_length) * self.weight;
    std::int64_t largest = 1;
    std::int64_t own_sequences = 0;
    std::map<std::optional<std::int64_t>, std::int64_t> others;
    for (const AtroposEntry& entry : queue_) {
        largest = std::max<std::int64_t>(largest, entry.size);
        if (entry.env_id == env_id) {
            own_sequences += entry.size;
            self.group_size = std::max<std::int64_t>(self.group_size, entry.size);
        } else {
            others[entry.env_id] += entry.size;
        }
    }
    std::int64_t from_others = 0;
    for (const auto& [other, sequences] : others) {
        if (largest <= 1) break;
        const std::int64_t packed = (sequences + largest - 1) / largest * largest;
        std::int64_t minimum = 0;
        if (known(other)) {
            const AtroposEnv& env = envs_[static_cast<std::size_t>(*other)];
            if (env.connected && trainer_) {
                minimum = static_cast<std::int64_t>(static_cast<double>(trainer_->batch_size) *
                                                    env.min_batch_allocation.value_or(0));
            }
        }
        from_others += std::max<std::int64_t>(0, packed - minimum);
    }
    const std::int64_t size = std::max<std::int64_t>(1, self.group_size);
    return {.queue_size = (own_sequences + from_others) / size,
            .self_queue_size = own_sequences / size,
            .unallocated_fraction = 1.0 - std::min(allocated, 1.0),
            .max_group_size = largest,
            .env_weight = std::max(min_env_weight, all_weights > 0 ? own / all_weights : 0.0)};
}

}  // namespace rollring::cli
