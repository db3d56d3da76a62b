#include "explorer.hpp"

#include <algorithm>
#include <cstdlib>

namespace model {

std::uint64_t World::random() {  // splitmix64
    std::uint64_t z = (rng_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

std::uint32_t World::choose(std::uint32_t ways, Choice kind) {
    if (ways <= 1) return 0;
    if (random_) {
        // How often a draw leaves the straight way; crashes are rare, so that runs get somewhere.
        const std::uint32_t one_in = kind == Choice::schedule ? 6 : kind == Choice::stale ? 3 : 150;
        if (kind != Choice::data && random() % one_in != 0) return 0;
        if (kind == Choice::crash) return 1;
        return static_cast<std::uint32_t>(random() % ways);
    }
    if (at_ == trail_.size()) trail_.push_back({0, ways});
    return trail_[at_++].value;
}

bool World::advance() {
    while (!trail_.empty() && trail_.back().value + 1 >= trail_.back().ways) trail_.pop_back();
    if (trail_.empty()) return false;
    trail_.back().value++;
    return true;
}

std::string World::trail() const {
    std::string text;
    for (std::size_t i = 0; i < at_ && i < trail_.size(); i++) {
        if (i > 0) text += ',';
        text += std::to_string(trail_[i].value);
    }
    return text;
}

void World::enter() {
    World& self = *world;
    self.program_->run(self.current_, self.slots_[self.current_].incarnation);
    self.slots_[self.current_].state = State::done;
    self.pick_next();
}

void World::start(int index) {
    Slot& slot = slots_[index];
    (void)getcontext(&slot.context);
    slot.context.uc_stack.ss_sp = slot.stack.data();
    slot.context.uc_stack.ss_size = slot.stack.size();
    slot.context.uc_link = nullptr;
    makecontext(&slot.context, &World::enter, 0);
    slot.state = State::ready;
    slot.pending.clear();
}

void World::switch_to(int next) {
    if (next == current_) return;
    ucontext_t* from = current_ < 0 ? &main_ : &slots_[current_].context;
    current_ = next;
    swapcontext(from, &slots_[next].context);
}

void World::leave_to_main() {
    ucontext_t& from = slots_[current_].context;
    current_ = -1;
    swapcontext(&from, &main_);
}

void World::fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
    if (current_ >= 0) leave_to_main();
}

// The current thread cannot go on: any other may, at no cost.
void World::pick_next() {
    for (;;) {
        std::array<int, slots_max> ready{};
        std::uint32_t count = 0;
        for (int i = 0; i < program_->slots(); i++) {
            if (slots_[i].state == State::ready) ready[count++] = i;
        }
        if (count > 0) {
            switch_to(ready[choose(count)]);
            return;
        }
        if (!release_waiters()) {
            if (current_ >= 0) leave_to_main();
            return;
        }
    }
}

// Nobody can run. A thread that only spins may have read an old value: it looks again. A sleeper is
// helped by the 100 ms bound of its sleep only if somebody was killed; otherwise it sleeps for
// ever.
bool World::release_waiters() {
    bool waits = false;
    for (int i = 0; i < program_->slots(); i++) waits |= slots_[i].state != State::done;
    if (!waits) return false;
    if (++idle_rounds_ > 3 + bounds_.stale) {
        fail("deadlock: nobody can go on");
        return false;
    }
    for (int i = 0; i < program_->slots(); i++) {
        Slot& slot = slots_[i];
        if (slot.state == State::sleeping) {
            if (!died_) {
                fail(program_->could_go_on(i) ? "lost wake-up" : "deadlock: all asleep");
                return false;
            }
            counts_.timeouts++;
        }
        if (slot.state != State::done) slot.state = State::ready;
    }
    return true;
}

void World::access_point(bool shared) {
    if (current_ < 0) return;
    Slot& me = slots_[current_];
    if (++steps_ > bounds_.steps) fail("livelock: too many steps");
    if (crashes_left_ > 0 && program_->killable(current_) && choose(2, Choice::crash) == 1) crash();
    if (shared && preemptions_left_ > 0) {
        std::array<int, slots_max> others{};
        std::uint32_t count = 0;
        for (int i = 0; i < program_->slots(); i++) {
            if (i != current_ && slots_[i].state == State::ready) others[count++] = i;
        }
        const std::uint32_t pick = choose(count + 1, Choice::schedule);
        if (pick > 0) {
            preemptions_left_--;
            switch_to(others[pick - 1]);
        }
    }
    me.clock[static_cast<std::size_t>(current_)]++;
}

void World::stored(Undoable& store, bool release) {
    if (current_ < 0) return;
    std::vector<Undoable*>& pending = slots_[current_].pending;
    if (release) {
        pending.clear();
    } else {
        std::erase(pending, &store);
    }
    pending.push_back(&store);
}

void World::external() {
    if (current_ >= 0) slots_[current_].pending.clear();
}

void World::progress() {
    if (current_ < 0) return;
    idle_rounds_ = 0;
    nudge();
}

void World::nudge() {
    for (int i = 0; i < program_->slots(); i++) {
        if (i != current_ && slots_[i].state == State::parked) slots_[i].state = State::ready;
    }
}

// SIGKILL. All stores made so far are visible to everyone: memory is coherent. But the compiler may
// have moved a later store that is not a release in front of an earlier one, and then a prefix of
// the machine code lacks the earlier one alone: one such store may be undone.
void World::crash() {
    Slot& me = slots_[current_];
    counts_.crashes++;
    crashes_left_--;
    died_ = true;
    idle_rounds_ = 0;
    std::array<Undoable*, 8> lost{};
    std::uint32_t count = 0;
    for (std::size_t i = 0; i + 1 < me.pending.size() && count < lost.size(); i++) {
        if (me.pending[i]->can_undo()) lost[count++] = me.pending[i];
    }
    const std::uint32_t drop = choose(count + 1);
    if (drop > 0) {
        lost[drop - 1]->undo();
        counts_.dropped_stores++;
    }
    if (verbose) std::printf("  [%d] killed%s\n", current_, drop > 0 ? ", one store lost" : "");
    me.incarnation++;
    me.state = State::done;
    progress();
    // We run on the stack that start() gives to the successor. It writes only the frame that we
    // never return to, and nothing of ours is used after the switch.
    start(current_);
    std::array<int, slots_max> ready{};
    std::uint32_t ways = 0;
    for (int i = 0; i < program_->slots(); i++) {
        if (slots_[i].state == State::ready) ready[ways++] = i;
    }
    current_ = ready[choose(ways)];
    setcontext(&slots_[current_].context);
    std::abort();
}

void World::park() {
    slots_[current_].state = State::parked;
    pick_next();
}

void World::sleep_on(int location) {
    slots_[current_].state = State::sleeping;
    slots_[current_].sleeps_on = location;
    counts_.sleeps++;
    pick_next();
}

void World::wake(int location) {
    if (current_ < 0) return;
    for (int i = 0; i < program_->slots(); i++) {
        if (slots_[i].state != State::sleeping || slots_[i].sleeps_on != location) continue;
        slots_[i].state = State::ready;
        counts_.wakes++;
    }
}

void World::execute(Program& program) {
    world = this;
    program_ = &program;
    at_ = 0;
    steps_ = 0;
    current_ = -1;
    locations_ = 0;
    idle_rounds_ = 0;
    died_ = false;
    preemptions_left_ = random_ ? INT32_MAX : bounds_.preemptions;
    stale_left_ = random_ ? INT32_MAX : bounds_.stale;
    crashes_left_ = bounds_.crashes;
    for (Slot& slot : slots_) {
        slot.view = {};
        slot.clock = {};
        slot.incarnation = 0;
    }
    program.set_up();
    for (int i = 0; i < program.slots(); i++) {
        start(i);
        slots_[i].view = slots_[slots_max - 1].view;
        slots_[i].clock = slots_[slots_max - 1].clock;
    }
    pick_next();
    counts_.executions++;
    counts_.steps += steps_;
    if (!failure_.empty()) return;
    for (const Slot& slot : slots_) {
        join(slots_[slots_max - 1].view, slot.view);
        join(slots_[slots_max - 1].clock, slot.clock);
    }
    program.finish();
}

bool World::explore(Program& program) {
    trail_.clear();
    do {
        execute(program);
    } while (failure_.empty() && advance());
    return failure_.empty();
}

bool World::explore_random(Program& program, std::uint64_t seed, std::uint64_t executions) {
    random_ = true;
    for (std::uint64_t i = 0; i < executions && failure_.empty(); i++) {
        rng_ = seed + i;
        rng_ = random();  // neighbours must not look alike
        execute(program);
    }
    random_ = false;
    return failure_.empty();
}

bool World::replay(Program& program, const std::vector<std::uint32_t>& choices) {
    trail_.clear();
    for (const std::uint32_t value : choices) trail_.push_back({value, value + 1});
    execute(program);
    return failure_.empty();
}

}  // namespace model
