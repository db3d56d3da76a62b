#include "trainer_ring.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "clock.hpp"
#include "rollring/relay.hpp"
#include "rollring/ring.hpp"

namespace bench::scale {
namespace {

using rollring::Deadline;

// The bytes of a record beside its tokens: frame, header, directory, name. Not made smaller.
constexpr std::uint64_t overhead_bytes = 448;
constexpr std::uint64_t least_lane_bytes = 1 << 16;
constexpr std::uint64_t lanes_most = std::uint64_t{2} << 30;   // of all rings
constexpr std::uint64_t memory_most = std::uint64_t{8} << 30;  // the spills with them
constexpr std::uint64_t least_scale = 16;
constexpr std::uint64_t stand_in_mark = 0x7363616c65;  // no group's key but by a rare chance

template <class T>
T must(rollring::Result<T> result) {
    if (!result) throw std::runtime_error(result.error().to_string());
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// As RingOptions has it.
std::uint64_t spill_of(const Settings& settings) {
    if (settings.spill_bytes != 0) return settings.spill_bytes;
    return std::min(settings.machine_bytes / 4 * 3, std::uint64_t{128} << 30);
}

// The usable part of a spill: twice the longest rollout of every worker is its room.
std::uint64_t spill_used_most(const Settings& settings) {
    const std::uint64_t workers = settings.all_workers() / settings.rings;
    return std::min(spill_of(settings), workers * settings.bytes_of(settings.length_most) * 8 / 3);
}

std::uint64_t scale_of(const Settings& settings) {
    if (settings.byte_scale != 0) return settings.byte_scale;
    const std::uint64_t lanes = settings.nodes * settings.lane_bytes * settings.rings;
    const std::uint64_t all = lanes + spill_used_most(settings) * settings.rings;
    return std::max({least_scale, (lanes + lanes_most - 1) / lanes_most,
                     (all + memory_most - 1) / memory_most});
}

}  // namespace

TrainerRing::TrainerRing(const Settings& settings, std::uint32_t number, std::uint32_t batch_groups)
    : settings_(&settings),
      name_(fmt::format("scale-{}-{}", getpid(), number)),
      scale_(scale_of(settings)),
      lane_bytes_(std::max(least_lane_bytes, settings.lane_bytes / scale_)) {
    const std::uint32_t members = batch_groups * settings.group_size;
    rollring::RingOptions ring{.lanes = settings.nodes, .lane_bytes = lane_bytes_};
    ring.spill_bytes = spill_of(settings) / scale_;
    ring.journal_records = std::max(ring.journal_records, 2 * members);
    ring.group_rows = std::max({ring.group_rows, 4 * batch_groups, settings.open_groups});
    ring.requests = 0;
    places_ = settings.open_groups != 0 ? settings.open_groups : ring.group_rows - settings.nodes;
    must(rollring::create_ring(name_, ring));
    rollring::StashOptions options{.group_size = settings.group_size};
    options.deadline = std::chrono::nanoseconds(ns_of(settings.deadline_s));
    options.batch = rollring::BatchTarget::groups(batch_groups);
    options.max_open_groups = static_cast<std::uint32_t>(places_);
    options.advantages = rollring::Advantages::none;
    stash_ = must(rollring::Stash::open(name_, options));
    open_lanes();
    resident_at_first_bytes_ = resident_bytes();
}

TrainerRing::~TrainerRing() {
    batch_ = {};
    stash_.reset();
    lanes_.clear();
    static_cast<void>(rollring::remove_ring(name_, true));
}

void TrainerRing::open_lanes() {
    stand_ins_.resize(settings_->nodes);
    tokens_.assign(lane_bytes_ / sizeof(std::int32_t), 7);
    rollring::ProducerOptions options;
    options.attach_timeout = std::chrono::seconds(0);
    options.spin = std::chrono::nanoseconds(0);
    for (std::uint32_t node = 0; node < settings_->nodes; node++) {
        options.name = fmt::format("node-{}", node);
        lanes_.emplace_back(must(rollring::Producer::open(name_, options)));
    }
}

void TrainerRing::close_lane(std::uint32_t node) {
    lanes_[node]->close();
}

bool TrainerRing::ask(std::uint32_t node, std::uint32_t group) {
    rollring::Producer& lane = *lanes_[node];
    switch (lane.open_group(fmt::format("g{}", group), 0, Deadline::now())) {
        case rollring::Push::ok:
            return true;
        case rollring::Push::timed_out:
            room_was_short_ = lane.problem().find("of the room for groups") != std::string::npos;
            return false;
        default:
            throw std::runtime_error(lane.problem());
    }
}

bool TrainerRing::has_plenty(std::uint32_t node) const {
    return rollring::RelayProducer::places(*lanes_[node]) ==
           rollring::RelayProducer::Places::plenty;
}

bool TrainerRing::take_spare(std::uint32_t node) {
    const rollring::GroupKey key{stand_ins_made_, stand_in_mark};
    if (!rollring::RelayProducer::take_spare_place(*lanes_[node], key, {settings_->group_size, 0}))
        return false;
    stand_ins_made_++;
    stand_ins_[node].push_back(key);
    return true;
}

void TrainerRing::give_spare_back(std::uint32_t node) {
    static_cast<void>(lanes_[node]->cancel_group(stand_ins_[node].back()));
    stand_ins_[node].pop_back();
}

bool TrainerRing::pass_spare(std::uint32_t node, std::uint32_t rollout) {
    if (stand_ins_[node].empty()) return false;
    const auto key = rollring::GroupKey::of(fmt::format("g{}", rollout / settings_->group_size), 0);
    if (!rollring::RelayProducer::pass_place(*lanes_[node], stand_ins_[node].back(), key))
        return false;
    stand_ins_[node].pop_back();
    return true;
}

bool TrainerRing::push(std::uint32_t node, std::uint32_t rollout, std::uint64_t bytes) {
    const std::uint32_t group = rollout / settings_->group_size;
    const std::string name = fmt::format("g{}", group);
    rollring::Draft draft{std::string_view(name)};
    draft.meta.repetition_id = rollout % settings_->group_size;
    draft.meta.created_ns = rollout;
    const std::uint64_t scaled = std::max(bytes / scale_, overhead_bytes + 4) - overhead_bytes;
    draft.set(rollring::Std::token_ids,
              std::span<const std::int32_t>(tokens_).first(scaled / sizeof(std::int32_t)));
    rollring::Producer& lane = *lanes_[node];
    switch (lane.push(draft, Deadline::now())) {
        case rollring::Push::ok:
            return true;
        case rollring::Push::timed_out:
            return false;
        default:
            throw std::runtime_error(lane.problem());
    }
}

// A call that may not wait reads a part of the available records, a waiting trainer all of them.
bool TrainerRing::next() {
    std::uint64_t read = 0;
    do {
        read = account().accepted.records;
        switch (stash_->next(batch_, Deadline::now())) {
            case rollring::NextBatch::batch:
                leased_ = true;
                return true;
            case rollring::NextBatch::timed_out:
                break;
            default:
                throw std::runtime_error(stash_->problem());
        }
    } while (account().accepted.records != read);
    return false;
}

std::vector<std::uint32_t> TrainerRing::batch() const {
    std::vector<std::uint32_t> numbers;
    numbers.reserve(batch_.sequences().size());
    for (const rollring::Sequence& sequence : batch_.sequences()) {
        numbers.push_back(static_cast<std::uint32_t>(sequence.view.meta().created_ns));
    }
    return numbers;
}

void TrainerRing::ack(std::int64_t step) {
    must(batch_.ack(step));
    leased_ = false;
}

std::uint64_t TrainerRing::resident_bytes() const {
    return must(rollring::stat_ring(name_)).resident_bytes;
}

// A stash has as much of the spill as a lane when it opens.
std::uint64_t TrainerRing::reserved_bytes() const {
    const std::uint64_t now = resident_bytes();
    const std::uint64_t grown = now - std::min(now, resident_at_first_bytes_);
    return (settings_->nodes + 1) * settings_->lane_bytes + scaled_up(grown);
}

}  // namespace bench::scale
