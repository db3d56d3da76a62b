// The world that a seed makes.

#include "round_up.hpp"
#include "world.hpp"

namespace rollring::test {

std::uint64_t World::between(std::uint64_t least, std::uint64_t most) {
    const double from = std::log(static_cast<double>(least));
    const double to = std::log(static_cast<double>(most) + 1);
    const double at = from + (to - from) * static_cast<double>(random_() >> 11) * 0x1p-53;
    return std::clamp(static_cast<std::uint64_t>(std::exp(at)), least, most);
}

std::uint64_t World::payload_bytes(std::uint32_t tokens) {
    static const std::vector<std::int32_t> ids(64 << 10);
    Draft draft("g0000");
    draft.set(Std::token_ids, std::span<const std::int32_t>(ids.data(), tokens));
    return Encoder(draft, Schema::standard(), Checksum::none).bytes();
}

void World::draw() {
    choice_ = chance(0.75) ? Choice::willing : one_of({Choice::sticky, Choice::ordered});
    known_ = chance(0.7) ? Known::declared : one_of({Known::learned, Known::wrong});
    ring_.lanes = 1 + static_cast<std::uint32_t>(below(8));
    ring_.lane_bytes = std::uint64_t{16384} << below(5);
    ring_.soft_bytes = one_of<std::uint64_t>({0, ring_.lane_bytes / 4, ring_.lane_bytes});
    ring_.journal_records = 1024;
    ring_.group_rows = 256;
    options_.group_size = 2 + static_cast<std::uint32_t>(below(15));
    options_.extra = static_cast<std::uint32_t>(below(2));
    const std::uint32_t batch_groups = 1 + static_cast<std::uint32_t>(below(4));
    options_.batch = BatchTarget::groups(batch_groups);
    options_.at_deadline = AtDeadline::hold;
    options_.advanced.tombstones = 4096;
    options_.on_failed = OnFailed::void_group;
    options_.order = one_of({Order::windowed, Order::fifo, Order::freshest});
    if (chance(0.2)) {
        options_.max_open_groups = batch_groups + static_cast<std::uint32_t>(between(1, 64)) - 1;
    }
    if (chance(0.1)) ring_.lanes = 1 + static_cast<std::uint32_t>(below(64));
    const std::uint64_t over_head = 64 + payload_bytes(1);
    const std::uint64_t most = (ring_.lane_bytes - over_head) / sizeof(std::int32_t);
    tokens_most_ =
        static_cast<std::uint32_t>(chance(0.3) ? most - below(most / 8) : between(1, most));
    closes_ = chance(0.5);
    kills_ = chance(0.3) ? 0.01 : 0;
    restarts_ = chance(0.2) ? 0.01 : 0;
    repeats_ = chance(0.3) ? 0.05 : 0;
    voids_ = chance(0.2) ? 0.1 : 0;
    held_most_ = below(3);
    draw_spill();
    // A producer that stays open with nothing to send could be one whose engine works.
    if (options_.max_open_groups != 0 && choice_ != Choice::willing && !closes_) promised_ = false;
}

void World::draw_spill() {
    const std::uint64_t record = 64 + payload_bytes(tokens_most_);
    const std::uint64_t claim = (options_.group_size + options_.extra) * record;
    const std::uint64_t kept = 4 * (record + 64);
    const std::uint64_t least = std::max(claim + kept, (4 * claim + 2) / 3);
    // Where claims are too low, or producers do not choose, it is promised for as much as is ever
    // sent.
    const bool chosen = choice_ == Choice::willing && known_ == Known::declared;
    promised_ = chosen || chance(0.3);
    if (chosen ? chance(0.03) : promised_) return;
    ring_.spill_bytes = round_up(least + least * below(200) / 100, 4096);
}

void World::make_groups() {
    const std::uint64_t count =
        2 + below(std::max<std::uint64_t>(3, 160 / (options_.group_size + 1)));
    std::vector<Member> all;
    for (std::uint32_t i = 0; i < count; i++) {
        Group group;
        group.name = fmt::format("g{:04}", i);
        group.size = chance(0.8) ? options_.group_size
                                 : 1 + static_cast<std::uint32_t>(below(options_.group_size));
        group.sent_all = group.size + static_cast<std::uint32_t>(below(options_.extra + 1));
        for (std::uint32_t j = 0; j < group.sent_all; j++) {
            const auto tokens =
                static_cast<std::uint32_t>(chance(0.3) ? tokens_most_ : between(1, tokens_most_));
            group.tokens_most = std::max(group.tokens_most, tokens);
            all.push_back({i, j, tokens});
        }
        plan(group);
        groups_.push_back(std::move(group));
    }
    to_do_ = groups_.size();
    deal(all);
}

void World::plan(Group& group) {
    group.plan.group_size = group.size;
    if (known_ == Known::learned) return;
    group.plan.record_bytes = payload_bytes(group.tokens_most);
    if (known_ == Known::wrong) group.plan.record_bytes /= 2 + below(20);
    if (settings_.plant == Plant::halves) group.plan.record_bytes /= 8;
}

void World::deal(std::vector<Member>& all) {
    const std::uint64_t window = choice_ == Choice::ordered ? 1 : 1 + below(all.size());
    for (std::size_t i = 0; i + 1 < all.size(); i++) {
        std::swap(all[i], all[i + below(std::min<std::uint64_t>(window, all.size() - i))]);
    }
    for (const Member& member : all) {
        rollouts_[below(rollouts_.size())].todo.push_back(member);
    }
}

}  // namespace rollring::test
