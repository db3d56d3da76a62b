// The order of turns, and whether anything has moved.

#include "world.hpp"

#include <unistd.h>

namespace rollring::test {

World::World(std::uint64_t seed, const Settings& settings, Counts& counts)
    : seed_(seed), settings_(settings), random_(seed), counts_(counts) {
    clock_ns = epoch_ns;
    draw();
    name_ = fmt::format("progress-{}", getpid());
    const auto made = create_ring(name_, ring_);
    if (!made) fail(made.error().to_string());
    auto map = RingMap::attach(name_, Deadline::now());
    if (!map) fail(map.error().to_string());
    map_.emplace(std::move(*map));
    open_stash();
    rollouts_.resize(1 + below(ring_.lanes));
    make_groups();
    for (Rollouts& one : rollouts_) open_producer(one);
}

World::~World() {
    batches_.clear();
    stash_.reset();
    rollouts_.clear();
    static_cast<void>(remove_ring(name_, true));
}

void World::run() {
    std::uint64_t idle = 0;
    // Of turns, each of some microseconds: all together less than let_go_ns.
    const std::uint64_t idle_most = std::min<std::uint64_t>(30 * (rollouts_.size() + 2), 300);
    while (!done() && !stalled_ && stop_signal == 0) {
        const std::uint64_t moves = moves_;
        idle > idle_most ? everybody() : somebody();
        idle = moves_ == moves ? idle + 1 : 0;
    }
    if (stop_signal != 0) return;
    Stands& stands = counts_.stands[{choice_, known_}];
    stands.seeds++;
    if (stalled_) {
        stands.told++;
        if (!stash_->account().conserved()) fail("the account is not conserved");
        return;
    }
    check_end();
}

void World::move() {
    const std::int64_t stood_ns = clock_ns - moved_ns_;
    Stands& stands = counts_.stands[{choice_, known_}];
    stands.longest_ns = std::max(stands.longest_ns, stood_ns);
    if (stood_ns >= patience_ns) {
        stands.patient++;
    } else if (stood_ns >= let_go_ns) {
        stands.let_go++;
    }
    if (stood_ns >= let_go_ns) {
        if (promised_ && choice_ == Choice::willing) {
            fail(fmt::format("nothing moved for {} ms: more was let in than is promised",
                             stood_ns / ms));
        }
        slow_ns = std::max(slow_ns, stood_ns);
        say("something moved after {} ms", stood_ns / ms);
    }
    moves_++;
    moved_ns_ = clock_ns;
    told_ = false;
}

void World::somebody() {
    const std::uint64_t turns = chance(0.2) ? 1 + below(20) : 1;
    const bool trains = chance(0.3);
    Rollouts& one = rollouts_[below(rollouts_.size())];
    for (std::uint64_t turn = 0; turn < turns; turn++) {
        clock_ns += static_cast<std::int64_t>(below(4)) * us;
        if (trains) {
            train();
        } else {
            produce(one);
        }
    }
    if (moved_ns_ != clock_ns) return;
    if (chance(0.02)) moved_ns_ = clock_ns += 11 * ms;
    if (chance(kills_)) kill(one);
    if (chance(restarts_)) restart();
    if (chance(repeats_)) repeat(one);
    if (chance(voids_)) void_group(one);
}

void World::everybody() {
    const std::int64_t stood_ns = clock_ns - moved_ns_;
    clock_ns += stood_ns < let_go_ns - 200 * us ? 100 * us : stood_ns < 50 * ms ? ms : 50 * ms;
    if (stood_ns > stall_ns) {
        if (promised_) fail("nothing moves, and everybody could");
        if (!told_) fail("nothing moves, and nobody is told");
        stalled_ = true;
        return;
    }
    while (!batches_.empty()) end_lease(true);
    for (Rollouts& one : rollouts_) produce(one);
    train();
}

std::uint64_t World::claimed_bytes(std::uint32_t lane) const {
    return line_bytes *
           (peek(map_->owner(lane).lines_claimed) - peek(map_->entry(lane).lines_arrived));
}

bool World::all_sent() const {
    return std::ranges::all_of(
        rollouts_, [](const Rollouts& one) { return one.todo.empty() && !one.current; });
}

void World::describe() const {
    fmt::print("{} producers, {} records known; {} lanes of {}, spill {}, {} producers\n",
               choice_names[static_cast<int>(choice_)], known_names[static_cast<int>(known_)],
               ring_.lanes, ring_.lane_bytes, ring_.spill_bytes.value_or(0), rollouts_.size());
    fmt::print("groups of {} + {}, {} at once, {} open at most, up to {} tokens\n",
               options_.group_size, options_.extra, options_.batch.amount(),
               options_.max_open_groups, tokens_most_);
    if (!map_ || !stash_) return;
    const ReaderControl& control = map_->control();
    fmt::print("owed {}, room {} of {}, spill reserved {}, longest {}, open {}\n",
               control.owed_bytes.load(), control.room_bytes.load(), control.room_most.load(),
               control.spill_reserved_bytes.load(), control.record_lines.load() * 64,
               control.open_groups.load());
    for (std::uint32_t lane = 0; lane < ring_.lanes; lane++) {
        const LaneOwner& own = map_->owner(lane);
        const ReaderEntry& entry = map_->entry(lane);
        fmt::print(
            "lane {}: state {}, head {}, read {}, tail {}, claimed {}, wants room {} "
            "place {}\n",
            lane, peek(own.state), peek(entry.head), peek(entry.delivered), peek(own.tail),
            claimed_bytes(lane), peek(own.wants_room_bytes), peek(own.wants_place_bytes));
    }
    for (const Rollouts& one : rollouts_) {
        if (one.current) {
            fmt::print("next: {} #{}, then {} more\n", groups_[one.current->group].name,
                       one.current->repetition, one.todo.size());
        } else if (!one.todo.empty()) {
            fmt::print("waits: {} #{}, then {} more{}\n", groups_[one.todo.front().group].name,
                       one.todo.front().repetition, one.todo.size() - 1,
                       one.producer ? "" : " (no lane)");
        }
    }
    for (const GroupStat& group : stash_->explain(8)) fmt::print("{}\n", group.to_string());
}

void World::fail(const std::string& what) {
    fmt::print("seed {}: violated: {}\n", seed_, what);
    describe();
    fmt::print("  replay: progress_simulation --seed {} --verbose\n", seed_);
    static_cast<void>(std::fflush(stdout));
    static_cast<void>(remove_ring(name_, true));
    std::_Exit(1);
}

}  // namespace rollring::test
