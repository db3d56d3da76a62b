// A trainer is killed at every store into the ring's reader pages, one after another: while it
// opens its stash, acknowledges, gives back and closes. The test takes all that its
// successor gets, and counts the records that a producer may still send.
//
//   ack           all groups of a batch are delivered again, or none of them
//   all others    unacknowledged groups are delivered again, once, and nothing else
//   max_records   the successor's records and those that the producer may add never exceed the
//                 bound, and all of the bound is free again once the successor has read all

#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "ring_map.hpp"
#include "rollring/producer.hpp"
#include "rollring/stash.hpp"
#include "support/kill_at_store.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint64_t groups = 4;
constexpr std::uint64_t leased = 2;
const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
const RingOptions small{.lanes = 3,
                        .lane_bytes = 64 << 10,
                        .journal_records = 16,
                        .spill_bytes = 0,
                        .group_rows = 16,
                        .requests = 0};
const StashOptions pairs{.group_size = 1, .batch = BatchTarget::groups(leased)};
const ProducerOptions bounded{.name = "bounded", .max_records = groups};

using Visits = std::multiset<std::uint64_t>;

Draft draft(std::uint64_t visit) {
    Draft made("prompt");
    made.meta.visit = visit;
    made.meta.group_size = 1;
    made.set(Std::token_ids, tokens);
    return made;
}

Producer opened(const std::string& ring) {
    auto made = Producer::open(ring, bounded);
    require(made.has_value(), "{}", made ? "" : made.error().to_string());
    return std::move(*made);
}

std::unique_ptr<Stash> stash_of(const std::string& ring) {
    auto made = Stash::open(ring, pairs);
    require(made.has_value(), "{}", made ? "" : made.error().to_string());
    return std::move(*made);
}

void take(const Batch& batch, Visits& visits) {
    for (const Sequence& one : batch.sequences()) visits.insert(one.view.meta().visit);
}

// All groups that a successor gets, in batches and as the rest of them; nothing is acknowledged.
Visits all_of(const std::string& ring) {
    const auto stash = stash_of(ring);
    Visits visits;
    std::vector<Batch> batches(groups);
    for (Batch& batch : batches) {
        if (stash->next(batch, Deadline::after_ms(30)) != NextBatch::batch &&
            stash->rest(batch) != NextBatch::batch) {
            break;
        }
        take(batch, visits);
    }
    return visits;
}

// Until there is no place. `from`: visits that were not sent.
std::uint64_t fill(Producer& producer, std::uint64_t from) {
    static std::uint64_t visit = groups;
    std::uint64_t sent = 0;
    while (producer.push(draft(from + visit++), Deadline::now()) == Push::ok) sent++;
    return sent;
}

void acknowledge(const std::string& ring, std::uint64_t records) {
    const auto stash = stash_of(ring);
    for (std::int64_t step = stash->last_acked_step() + 1; records != 0; step++) {
        Batch batch;
        if (stash->next(batch, Deadline::after_ms(30)) != NextBatch::batch) {
            require(stash->rest(batch) == NextBatch::batch, "{} records do not come", records);
        }
        records -= batch.sequences().size();
        require(batch.ack(step).has_value(), "ack");
    }
}

enum class Act { open, ack, nack, close };

// The trainer's steps, up to the place where it is stepped, and then.
int trainer(const std::string& ring, Act act) {
    if (act == Act::open) static_cast<void>(raise(SIGSTOP));
    const auto stash = stash_of(ring);
    if (act == Act::open) return raise(SIGSTOP);
    Batch batch;
    if (stash->next(batch, patience()) != NextBatch::batch) return 1;
    static_cast<void>(raise(SIGSTOP));
    if (act == Act::ack && !batch.ack(1)) return 1;
    if (act == Act::nack) batch.nack();
    if (act != Act::close) return raise(SIGSTOP);
    return 0;
}

void check(const ScratchRing& ring, Act act, int at) {
    const Visits got = all_of(ring.name());
    const Visits all{0, 1, 2, 3};
    const Visits rest{2, 3};
    require(got == all || (act == Act::ack && got == rest),
            "store {}: the successor gets {} of {} groups", at, got.size(), groups);
    require(all_of(ring.name()) == got, "store {}: it gets the same again", at);
    Producer next = opened(ring.name());
    // The dead one may not have counted its releases: places are missing then, and never more.
    const std::uint64_t more = fill(next, got.size());
    require(got.size() + more <= groups, "store {}: {} records are there, and {} were sent: {}", at,
            got.size(), more, groups);
    acknowledge(ring.name(), got.size() + more);
    require(fill(next, groups) == groups, "store {}: places stay lost", at);
}

bool killed_at(Act act, int at) {
    const ScratchRing ring("trainer-steps", small);
    {
        Producer producer = opened(ring.name());
        for (std::uint64_t visit = 0; visit < groups; visit++) {
            require(producer.push(draft(visit), patience()) == Push::ok, "push");
        }
    }
    const auto map = RingMap::attach(ring.name(), patience());
    require(map.has_value(), "map");
    const Geometry& geometry = map->geometry();
    const auto pages = map->segment().map(
        geometry.reader_offset(), geometry.owners_offset() - geometry.reader_offset(), false);
    require(pages.has_value(), "pages");
    const pid_t pid = start_stepped([&] { return trainer(ring.name(), act); });
    if (!kill_at_store(pid, {pages->data(), pages->bytes()}, at, [] {})) return false;
    check(ring, act, at);
    return true;
}

int run() {
    struct Case {
        const char* name;
        Act act;
        int least;  // stores
    };
    for (const Case& one : {Case{"open", Act::open, 2}, Case{"ack", Act::ack, 2},
                            Case{"nack", Act::nack, 0}, Case{"close", Act::close, 1}}) {
        int stores = 0;
        while (killed_at(one.act, stores + 1)) stores++;
        fmt::print("{}: killed at each of {} stores\n", one.name, stores);
        require(stores >= one.least, "the steps find the stores of {}", one.name);
    }
    return 0;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const Failure& failure) {
        fmt::print(stderr, "{}\n", failure.what());
        return 1;
    }
}
