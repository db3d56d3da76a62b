// The turn of the trainer, and the invariants of its batches.

#include "world.hpp"

namespace rollring::test {

void World::open_stash() {
    auto opened = Stash::open(name_, options_);
    if (!opened) fail(opened.error().to_string());
    stash_ = std::move(*opened);
    lie();
}

void World::train() {
    if (batches_.size() > held_most_ || (!batches_.empty() && chance(0.3))) {
        end_lease(!chance(0.1));
        return;
    }
    auto batch = std::make_unique<Batch>();
    NextBatch got = stash_->next(*batch, Deadline::now());
    if (got == NextBatch::timed_out && all_sent()) got = stash_->rest(*batch);
    lie();
    for (Event event; stash_->next_event(event);) {
        say("{}: {}", name(event.kind), event.detail);
        told_ |= event.kind == Event::Kind::stalled &&
                 event.detail.find("--spill-bytes") != std::string::npos;
    }
    const std::uint64_t copied = map_->control().copied_bytes.load();
    if (copied != copied_) {
        copied_ = copied;
        move();
    }
    if (got == NextBatch::closed) fail("closed: " + stash_->problem());
    if (got != NextBatch::batch) return;
    move();
    for (std::size_t i = 0; i < batch->groups().size(); i++) check_group(*batch, i);
    counts_.batches++;
    batches_.push_back(std::move(batch));
}

void World::check_group(const Batch& batch, std::size_t index) {
    const std::uint32_t first = batch.group_offsets()[index];
    const std::uint32_t end = batch.group_offsets()[index + 1];
    const std::uint32_t number = number_of(batch, first);
    const Group& group = groups_[number];
    say("leased {}", group.name);
    if (group.over) fail(group.name + " is shipped twice");
    if (group.voided) fail(group.name + " is shipped, and was void");
    if (end - first != group.size) fail(group.name + " is not whole");
    for (std::uint32_t i = first; i < end; i++) {
        const std::uint32_t repetition = batch.repetition_ids()[i];
        if (i > first && repetition <= batch.repetition_ids()[i - 1]) {
            fail(group.name + " has a member twice");
        }
        const auto mark = static_cast<double>(number * 64 + repetition);
        if (number_of(batch, i) != number || batch.rewards()[i] != mark) {
            fail(group.name + " has a member of another");
        }
    }
}

std::uint32_t World::number_of(const Batch& batch, std::uint32_t sequence) {
    const std::string id(batch.sequences()[sequence].view.instance_id().substr(1));
    return static_cast<std::uint32_t>(std::stoul(id));
}

void World::end_lease(bool ack) {
    const std::size_t which = below(batches_.size());
    const std::unique_ptr<Batch> batch = std::move(batches_[which]);
    batches_.erase(batches_.begin() + static_cast<std::ptrdiff_t>(which));
    move();
    if (!ack) {
        say("nack");
        counts_.nacks++;
        batch->nack();
        return;
    }
    std::vector<std::uint32_t> numbers;
    numbers.reserve(batch->groups().size());
    for (std::size_t i = 0; i < batch->groups().size(); i++) {
        numbers.push_back(number_of(*batch, batch->group_offsets()[i]));
    }
    say("ack {} groups from {} on", numbers.size(), groups_[numbers.front()].name);
    const auto acked = batch->ack(++step_);
    if (!acked) fail(acked.error().to_string());
    for (const std::uint32_t number : numbers) groups_[number].over = true;
    to_do_ -= numbers.size();
    counts_.groups += numbers.size();
}

void World::restart() {
    say("the trainer starts again");
    if (chance(0.5)) batches_.clear();
    stash_.reset();
    batches_.clear();
    counts_.restarts++;
    restarted_ = true;
    open_stash();
    copied_ = map_->control().copied_bytes.load();
    move();
}

void World::check_end() {
    for (int i = 0; i < 1000; i++) {  // late records are read and dropped
        auto batch = std::make_unique<Batch>();
        clock_ns += ms;
        if (stash_->next(*batch, Deadline::now()) == NextBatch::batch) {
            fail("a batch after the last one");
        }
        if (stash_->account().held.records == 0 && i > 2) break;
    }
    const StashAccount account = stash_->account();
    if (!account.conserved()) fail("the account is not conserved");
    if (account.held.records != 0 || account.leased.records != 0) fail("something is left");
    if (account.groups_partial != 0) fail("a group was shipped partial");
    if (!restarted_) {
        std::uint64_t expected = 0;
        for (const Group& group : groups_) expected += group.voided ? 0 : group.size;
        if (account.shipped.records != expected) fail("not all members were shipped");
    }
    for (std::uint32_t lane = 0; lane < ring_.lanes; lane++) {
        const ReaderEntry& entry = map_->entry(lane);
        if (peek(entry.lost) + peek(entry.torn) + peek(entry.quarantine) != 0) {
            fail("a lane lost something");
        }
    }
    counts_.evacuated += peek(map_->control().evacuated_records);
    counts_.batches_short += stash_->copies().batches_short;
    counts_.stands[{choice_, known_}].groups += groups_.size();
}

}  // namespace rollring::test
