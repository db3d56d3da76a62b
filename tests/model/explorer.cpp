#include "explorer.hpp"

#include <algorithm>
#include <cstdlib>

#include "../support/splitmix64.hpp"

namespace model {

std::uint64_t World::random() {
    const std::uint64_t drawn = rollring::test::mix(rng_);
    rng_ += rollring::test::splitmix64_step;
    return drawn;
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
    self.program_->run(self.current_, self.threads_[self.current_].incarnation);
    self.threads_[self.current_].state = State::done;
    self.pick_next();
}

void World::start(int index) {
    Thread& thread = threads_[index];
    (void)getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, &World::enter, 0);
    thread.state = State::ready;
    thread.pending.clear();
}

void World::switch_to(int next) {
    if (next == current_) return;
    ucontext_t* from = current_ < 0 ? &main_ : &threads_[current_].context;
    current_ = next;
    swapcontext(from, &threads_[next].context);
}

void World::leave_to_main() {
    ucontext_t& from = threads_[current_].context;
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
        std::array<int, threads_max> ready{};
        std::uint32_t count = 0;
        for (int i = 0; i < program_->threads(); i++) {
            if (threads_[i].state == State::ready) ready[count++] = i;
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

// No thread can run. A thread that only spins may have read an old value: it looks again. A sleeper
// is helped by the 100 ms bound of its sleep only if a thread was killed; otherwise it sleeps for
// ever.
bool World::release_waiters() {
    bool waits = false;
    for (int i = 0; i < program_->threads(); i++) waits |= threads_[i].state != State::done;
    if (!waits) return false;
    if (++idle_rounds_ > 3 + bounds_.stale) {
        fail("deadlock: nobody can go on");
        return false;
    }
    for (int i = 0; i < program_->threads(); i++) {
        Thread& thread = threads_[i];
        if (thread.state == State::sleeping) {
            if (!died_) {
                fail(program_->could_go_on(i) ? "lost wake-up" : "deadlock: all asleep");
                return false;
            }
            counts_.timeouts++;
        }
        if (thread.state != State::done) thread.state = State::ready;
    }
    return true;
}

void World::access_point(bool shared) {
    if (current_ < 0) return;
    Thread& me = threads_[current_];
    if (++steps_ > bounds_.steps) fail("livelock: too many steps");
    if (crashes_left_ > 0 && program_->killable(current_) && choose(2, Choice::crash) == 1) crash();
    if (shared && preemptions_left_ > 0) {
        std::array<int, threads_max> others{};
        std::uint32_t count = 0;
        for (int i = 0; i < program_->threads(); i++) {
            if (i != current_ && threads_[i].state == State::ready) others[count++] = i;
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
    std::vector<Undoable*>& pending = threads_[current_].pending;
    if (release) {
        pending.clear();
    } else {
        std::erase(pending, &store);
    }
    pending.push_back(&store);
}

void World::external() {
    if (current_ >= 0) threads_[current_].pending.clear();
}

void World::progress() {
    if (current_ < 0) return;
    idle_rounds_ = 0;
    nudge();
}

void World::nudge() {
    for (int i = 0; i < program_->threads(); i++) {
        if (i != current_ && threads_[i].state == State::parked) threads_[i].state = State::ready;
    }
}

// SIGKILL. All stores made so far are visible to everyone: memory is coherent. But the compiler may
// have moved a later store that is not a release in front of an earlier one, and then a prefix of
// the machine code lacks the earlier one alone: one such store may be undone.
void World::crash() {
    Thread& me = threads_[current_];
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
    std::array<int, threads_max> ready{};
    std::uint32_t ways = 0;
    for (int i = 0; i < program_->threads(); i++) {
        if (threads_[i].state == State::ready) ready[ways++] = i;
    }
    current_ = ready[choose(ways)];
    setcontext(&threads_[current_].context);
    std::abort();
}

void World::park() {
    threads_[current_].state = State::parked;
    pick_next();
}

void World::sleep_on(int location) {
    threads_[current_].state = State::sleeping;
    threads_[current_].sleeps_on = location;
    counts_.sleeps++;
    pick_next();
}

void World::wake(int location) {
    if (current_ < 0) return;
    for (int i = 0; i < program_->threads(); i++) {
        if (threads_[i].state != State::sleeping || threads_[i].sleeps_on != location) continue;
        threads_[i].state = State::ready;
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
    for (Thread& thread : threads_) {
        thread.view = {};
        thread.clock = {};
        thread.incarnation = 0;
    }
    program.set_up();
    for (int i = 0; i < program.threads(); i++) {
        start(i);
        threads_[i].view = threads_[threads_max - 1].view;
        threads_[i].clock = threads_[threads_max - 1].clock;
    }
    pick_next();
    counts_.executions++;
    counts_.steps += steps_;
    if (!failure_.empty()) return;
    for (const Thread& thread : threads_) {
        join(threads_[threads_max - 1].view, thread.view);
        join(threads_[threads_max - 1].clock, thread.clock);
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
