// The turn of a producer.

#include "world.hpp"

namespace rollring::test {

bool World::open_producer(Rollouts& one) {
    auto opened = Producer::open(name_, {.name = "sim", .attach_timeout = {}, .spin = {}});
    if (!opened) {
        if (opened.error().code != Errc::no_free_lane) fail(opened.error().to_string());
        return false;
    }
    one.producer.emplace(std::move(*opened));
    // A producer whose claim does not stand pauses for a time by its pid: here no other moves
    // meanwhile.
    poke(owner(one.producer->lane()).pid, 7U);
    move();
    return true;
}

void World::produce(Rollouts& one) {
    if (one.todo.empty() && !one.current) {
        if (closes_) one.producer.reset();
        return;
    }
    if (!one.producer && !open_producer(one)) return;
    if (!one.current) choose(one);
    if (one.current) {
        send(one, *one.current);
        return;
    }
    // Nothing may be sent: the oldest is asked for, and the wish stands.
    const Member oldest = one.todo.front();
    one.todo.pop_front();
    if (choice_ == Choice::willing && !waits_for_place(one, oldest)) {
        one.todo.push_front(oldest);
        return;
    }
    one.current = oldest;
    send(one, oldest);
}

bool World::waits_for_place(Rollouts& one, const Member& member) {
    const Group& group = groups_[member.group];
    const Push got = one.producer->open_group(group.name, 0, Deadline::now(), group.plan);
    one.waits = got == Push::timed_out;
    if (got != Push::ok && got != Push::timed_out) fail(one.producer->problem());
    if (one.waits) counts_.refused++;
    lie();
    return got == Push::ok;
}

void World::choose(Rollouts& one) {
    if (choice_ == Choice::ordered) {
        take(one, 0);
        return;
    }
    for (std::size_t i = 0; i < one.todo.size(); i++) {
        const Group& group = groups_[one.todo[i].group];
        if (one.producer->may_send(group.name, 0, group.plan)) {
            take(one, i);
            return;
        }
    }
}

void World::take(Rollouts& one, std::size_t index) {
    one.current = one.todo[index];
    one.todo.erase(one.todo.begin() + static_cast<std::ptrdiff_t>(index));
}

void World::send(Rollouts& one, const Member& member) {
    static const std::vector<std::int32_t> zeros(64 << 10);
    const Group& group = groups_[member.group];
    const std::array<std::int32_t, 1> mark{
        static_cast<std::int32_t>(member.group * 64 + member.repetition)};
    Draft draft(group.name);
    draft.meta.repetition_id = member.repetition;
    draft.meta.group_size = group.size;
    draft.meta.attempt = member.attempt;
    draft.meta.reward = mark[0];
    draft.meta.created_ns = 0;
    if (member.fails) draft.meta.status = Status::failed;
    draft.set(Std::token_ids, std::span<const std::int32_t>(zeros.data(), member.tokens));
    const Push pushed = one.producer->push(draft, Deadline::now());
    one.waits = pushed == Push::timed_out;
    lie();
    if (one.waits) {
        counts_.refused++;
        return;
    }
    if (pushed != Push::ok) {
        fail(fmt::format("push: {}: {}", name(pushed), one.producer->problem()));
    }
    const std::uint32_t lane = one.producer->lane();
    say("lane {} sent {} #{} ({} tokens{}); claims {}, all are owed {} of {}", lane, group.name,
        member.repetition, member.tokens, member.fails ? ", failed" : "", claimed_bytes(lane),
        map_->control().owed_bytes.load(), map_->control().room_bytes.load());
    if (!member.again) sent_.push_back(member);
    if (member.fails) {
        groups_[member.group].voided = true;
        counts_.voided++;
        to_do_--;
    }
    counts_.records++;
    one.current.reset();
    move();
}

void World::kill(Rollouts& one) {
    if (!one.producer) return;
    const std::uint32_t lane = one.producer->lane();
    one.producer.reset();
    if (chance(0.7)) {
        store_release(owner(lane).state, static_cast<std::uint32_t>(OwnerState::active));
    }
    say("lane {} died", lane);
    counts_.deaths++;
    if (one.current) one.todo.push_front(*one.current);
    one.current.reset();
    Rollouts& heir = rollouts_[below(rollouts_.size())];
    for (Member& member : one.todo) member.attempt++;
    if (&heir != &one && chance(0.7)) {
        for (const Member& member : one.todo) {
            heir.todo.insert(
                heir.todo.begin() + static_cast<std::ptrdiff_t>(below(heir.todo.size() + 1)),
                member);
        }
        one.todo.clear();
    }
    move();
}

void World::repeat(Rollouts& one) {
    if (sent_.empty()) return;
    Member member = sent_[below(sent_.size())];
    if (member.fails) return;
    member.again = true;
    if (chance(0.5)) member.attempt++;
    one.todo.push_front(member);
    counts_.duplicates++;
}

void World::void_group(Rollouts& one) {
    if (one.todo.empty()) return;
    Member& member = one.todo.front();
    const Group& group = groups_[member.group];
    if (member.again || group.voided || group.sent_all != group.size) return;
    if (std::ranges::any_of(rollouts_, [&](const Rollouts& other) {
            return std::ranges::any_of(
                       other.todo,
                       [&](const Member& m) { return m.group == member.group && m.fails; }) ||
                   (other.current && other.current->group == member.group && other.current->fails);
        })) {
        return;
    }
    member.fails = true;
    member.tokens = 1;
}

void World::lie() {
    if (settings_.plant == Plant::deaf) {
        for (std::uint32_t lane = 0; lane < ring_.lanes; lane++) {
            poke(owner(lane).wants_room_bytes, std::uint64_t{0});
        }
    }
    if (settings_.plant == Plant::owed) {
        const Geometry& geometry = map_->geometry();
        if (!control_) {
            auto page = map_->segment().map(geometry.reader_offset(), page_bytes, true);
            if (!page) fail(page.error().to_string());
            control_.emplace(std::move(*page));
        }
        control_->at<ReaderControl>(0).owed_bytes.store(0);
    }
}

LaneOwner& World::owner(std::uint32_t lane) {
    owners_.resize(ring_.lanes);
    if (!owners_[lane]) {
        auto page = map_->segment().map(map_->geometry().owner_offset(lane), page_bytes, true);
        if (!page) fail(page.error().to_string());
        owners_[lane].emplace(std::move(*page));
    }
    return owners_[lane]->at<LaneOwner>(0);
}

}  // namespace rollring::test
