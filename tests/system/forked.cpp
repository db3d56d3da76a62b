// Every public method of every class, called in a forked child of the process that made the object:
// it is refused, or has no effect. The list of exported symbols is held against the table, so that
// a new method cannot be left out.
//
//   forked EXPORTS     tests/install/exports.txt
//
// The store comes first, in a process that has taken no lock yet: the generation must count forks
// that happen before the first lock.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "forked.hpp"
#include "rollring/batch.hpp"
#include "rollring/consumer.hpp"
#include "rollring/extras/ledger.hpp"
#include "rollring/extras/parked.hpp"
#include "rollring/extras/recording.hpp"
#include "rollring/extras/requests.hpp"
#include "rollring/extras/server_seat.hpp"
#include "rollring/extras/store.hpp"
#include "rollring/gather.hpp"
#include "rollring/producer.hpp"
#include "rollring/relay.hpp"
#include "rollring/stash.hpp"
#include "rollring/tap.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

const std::vector<std::int32_t> tokens{1, 2, 3};

Draft draft(std::uint32_t repetition = 0) {
    Draft made("prompt");
    made.meta.repetition_id = repetition;
    made.meta.group_size = 2;
    made.set(Std::token_ids, tokens);
    return made;
}

void try_store(const std::string& name) {
    auto store = opened(Store::open(name, {.make = false}), "open the store");
    const Location any{1};
    Location at;
    StoredValue found;
    std::array<std::byte, 12> bytes{};
    std::byte* const to = bytes.data();
    const std::string_view key = "k";
    const StoreValue value{.key = "k",
                           .column = "c",
                           .form = {.dtype = dtype_i32, .dims = 1, .shape = {3}},
                           .data = tokens.data()};
    const auto now = Deadline::now();
    try_in_child({
        {"Store::put", [&] { return refused_as_forked(store.put({&value, 1}, {&at, 1}, now)); }},
        {"Store::find", [&] { return refused_as_forked(store.find({&any, 1}, {&found, 1})); }},
        {"Store::read", [&] { return refused_as_forked(store.read({&found, 1}, {&to, 1})); }},
        {"Store::read", [&] { return refused_as_forked(store.read(any, bytes)); }},
        {"Store::clear", [&] { return refused_as_forked(store.clear({&any, 1}, now)); }},
        {"Store::clear_keys", [&] { return refused_as_forked(store.clear_keys({&key, 1}, now)); }},
        {"Store::stat", tells([&] { return store.stat(); })},
    });
    require(store.put({&value, 1}, {&at, 1}, patience()).has_value(), "its parent's goes on");
    require(store.read(at, bytes).has_value(), "and what was put is there");
}

void store_before_any_lock() {
    const std::string name = fmt::format("forked-store-{}", getpid());
    int ready[2];
    require(pipe(ready) == 0, "pipe");
    const pid_t keeper = start_child([&] {
        auto made = Store::open(name, {.capacity_bytes = 2U << 20, .lanes = 4});
        if (!made || write(ready[1], "x", 1) != 1) return 1;
        for (;;) pause();
    });
    char byte = 0;
    require(read(ready[0], &byte, 1) == 1, "the store is there");
    // Nothing of rollring was used in this process before.
    const int status = in_child([&] {
        try_store(name);
        return 0;
    });
    kill(keeper, SIGKILL);
    waitpid(keeper, nullptr, 0);
    static_cast<void>(Store::remove(name, true));
    require(status == 0, "a store that has taken no lock is inert in a forked child");
    for (const char* method : {"put", "find", "read", "clear", "clear_keys", "stat"}) {
        called.insert(std::string("rollring::Store::") + method);
    }
}

void try_producer() {
    const ScratchRing ring("forked", {.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = opened(Producer::open(ring.name(), {.name = "p"}), "producer");
    Reservation reservation;
    require(producer.reserve(draft(), patience(), reservation) == Push::ok, "reserve");
    Reservation other;
    const auto now = Deadline::now();
    const auto closed = [](Push push) { return push == Push::closed; };
    try_in_child({
        {"Reservation::bytes", [&] { return reservation.bytes(0, dtype_i32).empty(); }},
        {"Reservation::set", [&] { return !reservation.set({}); }},
        {"Reservation::shrink", inert([&] { reservation.shrink(1); })},
        {"Reservation::view", tells([&] { return reservation.view(); })},
        {"Reservation::commit_later", [&] { return closed(reservation.commit_later()); }},
        {"Reservation::commit", [&] { return reservation.commit() != Push::ok; }},
        {"Producer::push", [&] { return closed(producer.push(draft(), now)); }},
        {"Producer::push_later", [&] { return closed(producer.push_later(draft(), now)); }},
        {"Producer::reserve", [&] { return closed(producer.reserve(draft(), now, other)); }},
        {"Producer::open_group", [&] { return closed(producer.open_group("q", 0, now)); }},
        {"Producer::may_send", [&] { return !producer.may_send("q", 0); }},
        {"Producer::cancel_group", [&] { return !producer.cancel_group("prompt", 0); }},
        {"Producer::flush", inert([&] { producer.flush(); })},
        {"Producer::lane", tells([&] { return producer.lane(); })},
        {"Producer::last", tells([&] { return producer.last(); })},
        {"Producer::problem", [&] { return !producer.problem().empty(); }},
        {"Producer::schema", tells([&] { return producer.schema().columns().size(); })},
        {"Producer::stats", tells([&] { return producer.stats(); })},
        {"Producer::durable_records", tells([&] { return producer.durable_records(); })},
        {"Producer::consumer_alive", tells([&] { return producer.consumer_alive(); })},
        {"Producer::close", inert([&] { producer.close(); })},
    });
    require(reservation.commit() == Push::ok, "the parent's reservation");
    auto consumer = opened(Consumer::open(ring.name()), "consumer");
    Record record;
    require(consumer.wait(record, patience()) == Poll::record, "its record");
}

void try_relays() {
    const ScratchRing ring("forked", {.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = opened(Producer::open(ring.name(), {.name = "p"}), "producer");
    auto consumer = opened(Consumer::open(ring.name()), "consumer");
    const GroupKey key = GroupKey::of("prompt", 0);
    try_in_child({
        {"RelayProducer::inherit_place",
         inert([&] { RelayProducer::inherit_place(producer, key, {}); })},
        {"RelayProducer::holds_place",
         tells([&] { return RelayProducer::holds_place(producer, key); })},
        {"RelayProducer::ring_id", tells([&] { return RelayProducer::ring_id(producer) != 0; })},
        {"RelayProducer::lose_record", inert([&] { RelayProducer::lose_record(producer); })},
        {"RelayProducer::pass_place",
         [&] { return !RelayProducer::pass_place(producer, key, key); }},
        {"RelayProducer::take_spare_place",
         [&] { return !RelayProducer::take_spare_place(producer, key, {}); }},
        {"RelayProducer::places",
         [&] { return RelayProducer::places(producer) == RelayProducer::Places::not_asked_for; }},
        {"RelayConsumer::bound_groups", inert([&] { RelayConsumer::bound_groups(consumer, 1); })},
        {"RelayConsumer::announced_groups",
         tells([&] { return RelayConsumer::announced_groups(consumer); })},
    });
}

void try_readers() {
    const ScratchRing ring("forked", {.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = opened(Producer::open(ring.name(), {.name = "p"}), "producer");
    auto consumer = opened(Consumer::open(ring.name()), "consumer");
    auto tap = opened(Tap::attach(ring.name()), "tap");
    TapRecord tapped;
    require(producer.push(draft(), patience()) == Push::ok, "push");
    Record record;
    require(consumer.wait(record, patience()) == Poll::record, "wait");
    TrajectoryView view;
    Event event;
    try_in_child({
        {"Tap::poll", tells([&] { return tap.poll(tapped); })},
        {"Tap::schema", tells([&] { return tap.schema().columns().size(); })},
        {"Tap::ring_id", tells([&] { return tap.ring_id(); })},
        {"Tap::stats", tells([&] { return tap.stats(); })},
        {"Consumer::poll", [&] { return consumer.poll(record) == Poll::closed; }},
        {"Consumer::wait", [&] { return consumer.wait(record, patience()) == Poll::closed; }},
        {"Consumer::interrupt", inert([&] { consumer.interrupt(); })},
        {"Consumer::view", [&] { return !consumer.view(record.ref, view); }},
        {"Consumer::release", [&] { return !consumer.release(record.ref); }},
        {"Consumer::release_all",
         [&] { return refused_as_forked(consumer.release_all({&record.ref, 1}, 0)); }},
        {"Consumer::journal_records", tells([&] { return consumer.journal_records(); })},
        {"Consumer::last_acked_step", tells([&] { return consumer.last_acked_step(); })},
        {"Consumer::policy_version", tells([&] { return consumer.policy_version(); })},
        {"Consumer::next_event", [&] { return !consumer.next_event(event); }},
        {"Consumer::problem", [&] { return !consumer.problem().empty(); }},
        {"Consumer::producers_active", tells([&] { return consumer.producers_active(); })},
        {"Consumer::schema", tells([&] { return consumer.schema().columns().size(); })},
        {"Consumer::stats", tells([&] { return consumer.stats(); })},
    });
    require(consumer.release(record.ref), "the parent's record");
    require(producer.push(draft(), patience()) == Push::ok, "another push");
    require(consumer.wait(record, patience()) == Poll::record, "and the next one");
}

void try_owned_ring() {
    const std::string name = fmt::format("forked-owned-{}", getpid());
    const RingOptions small{.lanes = 1, .lane_bytes = 64 << 10};
    auto owned = opened(OwnedRing::create(name, small), "own a ring");
    auto seat = opened(ServerSeat::take(name), "its server's seat");
    try_in_child({
        {"OwnedRing::name", tells([&] { return owned.name(); })},
        {"OwnedRing::~OwnedRing", inert([&] { const OwnedRing gone = std::move(owned); })},
        {"ServerSeat::~ServerSeat", inert([&] { const ServerSeat gone = std::move(seat); })},
    });
    require(stat_ring(name).has_value(), "the parent's ring is there");
    const auto second = ServerSeat::take(name);
    require(!second && second.error().code == Errc::busy, "the parent's seat is taken");
}

void try_stash_and_shares() {
    const ScratchRing ring("forked", {.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = opened(Producer::open(ring.name()), "producer");
    for (std::uint32_t i = 0; i < 2; i++) {
        require(producer.push(draft(i), patience()) == Push::ok, "push");
    }
    auto stash =
        opened(Stash::open(ring.name(), {.batch = BatchTarget::groups(1)}), "open the stash");
    auto reader = opened(Reader::attach(ring.name()), "reader");
    auto gatherer = opened(Gatherer::open(Device::host()), "gatherer");
    Batch batch;
    require(stash->next(batch, patience()) == NextBatch::batch, "a batch");
    const std::string ticket = opened(batch.ticket({.rank = 0, .world = 1}), "ticket");
    const std::string receipt = batch.receipt();
    auto share = opened(reader.open(ticket), "share");
    ReadBatches reading;
    Batch other;
    Event event;
    const Schema& schema = stash->schema();
    std::vector<std::int32_t> memory(6);
    const GatherColumn ids{.to = std::as_writable_bytes(std::span(memory))};
    const auto closed = [](NextBatch got) { return got == NextBatch::closed; };
    try_in_child({
        {"Gatherer::gather",
         [&] { return refused_as_forked(gatherer.gather(batch, schema, {&ids, 1}, {})); }},
        {"Gatherer::prepare", [&] { return refused_as_forked(gatherer.prepare(batch)); }},
        {"Gatherer::mark", [&] { return refused_as_forked(gatherer.mark()); }},
        {"Gatherer::reached", [&] { return refused_as_forked(gatherer.reached(0)); }},
        {"Gatherer::wait", [&] { return refused_as_forked(gatherer.wait(0, Deadline::now())); }},
        {"Gatherer::stat", tells([&] { return gatherer.stat(); })},
        {"Share::check", [&] { return refused_as_forked(share.check()); }},
        {"Share::close", [&] { return refused_as_forked(share.close()); }},
        {"Reader::open", [&] { return refused_as_forked(reader.open(ticket)); }},
        {"Reader::open", [&] { return refused_as_forked(reader.open("no ticket")); }},
        {"Reader::schema", tells([&] { return reader.schema().columns().size(); })},
        {"Batch::ticket", [&] { return refused_as_forked(batch.ticket()); }},
        {"Batch::receipt", [&] { return batch.receipt().empty(); }},
        {"Batch::ack", [&] { return refused_as_forked(batch.ack(0)); }},
        {"Batch::discard", [&] { return refused_as_forked(batch.discard(DropReason::stale)); }},
        {"ReadBatches::ack_after",
         [&] { return refused_as_forked(reading.ack_after(Batch(), 0, gatherer)); }},
        {"ReadBatches::advance", tells([&] { return reading.advance(); })},
        {"ReadBatches::finish", tells([&] { return reading.finish(Deadline::now()); })},
        {"Stash::next", [&] { return closed(stash->next(other, patience())); }},
        {"Stash::rest", [&] { return closed(stash->rest(other)); }},
        {"Stash::settle", [&] { return refused_as_forked(stash->settle(receipt, 0)); }},
        {"Stash::checkpointed", [&] { return refused_as_forked(stash->checkpointed(0)); }},
        {"Stash::sync_ledger", [&] { return refused_as_forked(stash->sync_ledger(patience())); }},
        {"Stash::interrupt", inert([&] { stash->interrupt(); })},
        {"Stash::next_event", [&] { return !stash->next_event(event); }},
        {"Stash::waits_for", tells([&] { return stash->waits_for(); })},
        {"Stash::dropped_since_batch", tells([&] { return stash->dropped_since_batch(); })},
        {"Stash::tell_all", inert([&] { stash->tell_all(); })},
        {"Stash::problem", [&] { return !stash->problem().empty(); }},
        {"Stash::account", tells([&] { return stash->account(); })},
        {"Stash::copies", tells([&] { return stash->copies(); })},
        {"Stash::open_groups", tells([&] { return stash->open_groups(); })},
        {"Stash::no_progress", tells([&] { return stash->no_progress(); })},
        {"Stash::explain", tells([&] { return stash->explain(3); })},
        {"Stash::repeated_keys", tells([&] { return stash->repeated_keys(); })},
        {"Stash::schema", tells([&] { return stash->schema().columns().size(); })},
        {"Stash::last_acked_step", tells([&] { return stash->last_acked_step(); })},
        {"Stash::policy_version", tells([&] { return stash->policy_version(); })},
        {"Stash::producers_active", tells([&] { return stash->producers_active(); })},
        {"Stash::journal_records", tells([&] { return stash->journal_records(); })},
        {"Stash::stats", tells([&] { return stash->stats(); })},
        {"Batch::nack", inert([&] { batch.nack(); })},
    });
    require(share.close().has_value(), "the parent's share");
    require(batch.ack(0).has_value(), "the parent's batch");
}

void try_requests() {
    const ScratchRing ring("forked", {.lanes = 2, .lane_bytes = 64 << 10});
    auto board = opened(RequestBoard::open(ring.name()), "board");
    auto worker = opened(RequestWorker::open(ring.name()), "worker");
    require(board.post({}, patience()).has_value(), "post");
    const auto taken = opened(worker.take(patience()), "take");
    require(taken.has_value(), "a request");
    const auto now = Deadline::now();
    try_in_child({
        {"RequestWorker::take", [&] { return refused_as_forked(worker.take(now)); }},
        {"RequestWorker::finish", [&] { return !worker.finish(*taken); }},
        {"RequestWorker::give_back", [&] { return !worker.give_back(*taken); }},
        {"RequestWorker::withdrawn", tells([&] { return worker.withdrawn(*taken); })},
        {"RequestWorker::interrupt", inert([&] { worker.interrupt(); })},
        {"RequestBoard::post", [&] { return refused_as_forked(board.post({}, now)); }},
        {"RequestBoard::withdraw", [&] { return !board.withdraw(taken->number); }},
        {"RequestBoard::given_up", [&] { return refused_as_forked(board.given_up(now)); }},
        {"RequestBoard::counts", tells([&] { return board.counts(); })},
        {"RequestBoard::interrupt", inert([&] { board.interrupt(); })},
    });
    require(worker.finish(*taken), "the parent's request");
    require(board.counts().taken == 0, "which is answered");
}

void try_recording() {
    const ScratchRing ring("forked", {.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = opened(Producer::open(ring.name()), "producer");
    auto stash = opened(Stash::open(ring.name(), {.batch = BatchTarget::groups(1)}), "stash");
    for (std::uint32_t i = 0; i < 2; i++) {
        require(producer.push(draft(i), patience()) == Push::ok, "a member");
    }
    Batch batch;
    require(stash->next(batch, patience()) == NextBatch::batch, "a batch");
    const auto folder = std::filesystem::temp_directory_path() / ring.name();
    auto writer = opened(RecordingWriter::open(folder, stash->schema()), "writer");
    try_in_child({
        {"RecordingWriter::add", [&] { return refused_as_forked(writer.add(batch)); }},
        {"RecordingWriter::add_group", [&] { return refused_as_forked(writer.add_group({}, 2)); }},
        {"RecordingWriter::acked", [&] { return refused_as_forked(writer.acked(0, 0)); }},
        {"RecordingWriter::sync", [&] { return refused_as_forked(writer.sync()); }},
        {"RecordingWriter::bytes", tells([&] { return writer.bytes(); })},
    });
    require(writer.add(batch).has_value(), "the parent's batch");
    std::filesystem::remove_all(folder);
}

void try_ledger() {
    const auto folder = std::filesystem::temp_directory_path() / scratch_name("ledger");
    const std::string restored = scratch_name("restored");
    {
        const ScratchRing ring("ledger", {.lanes = 1, .ledger_dir = folder.string()});
        auto producer = opened(Producer::open(ring.name()), "producer");
        require(producer.push(draft(), patience()) == Push::ok, "a record");
        auto stash = opened(Stash::open(ring.name(), {.group_size = 2}), "stash");
        Batch none;
        require(stash->next(none, Deadline::now()) == NextBatch::timed_out, "an open group");
        require(stash->sync_ledger(patience()).has_value(), "the ledger");
        try_in_child({{"Stash::waits_for", tells([&] { return stash->waits_for(); })}});
        auto parking = opened(Parking::open(ring.name()), "parking");
        require(parking.park(draft()).has_value(), "a parked rollout");
        auto taken = opened(parking.take(), "a parked rollout");
        try_in_child({
            {"ParkedRollout::done", [&] { return refused_as_forked(taken->done()); }},
            {"ParkedRollout::give_back", inert([&] { taken->give_back(); })},
            {"ParkedRollout::record", tells([&] { return taken->record().n_tokens(); })},
            {"ParkedRollout::state", tells([&] { return taken->state().size(); })},
            {"ParkedRollout::parked_ns", tells([&] { return taken->parked_ns(); })},
            {"Parking::park", [&] { return parking.park(draft()).has_value(); }},
            {"Parking::take", [&] { return parking.take()->has_value(); }},
            {"Parking::schema", tells([&] { return parking.schema().columns().size(); })},
        });
        require(taken->done().has_value(), "the parent's rollout");
    }
    auto restore = opened(LedgerRestore::begin(folder, restored), "restore");
    try_in_child({
        {"LedgerRestore::send", [&] { return refused_as_forked(restore.send(patience())); }},
        {"LedgerRestore::stat", tells([&] { return restore.stat().records; })},
    });
    require(restore.send(patience()).value_or(false), "the parent's record");
    static_cast<void>(remove_ring(restored, true));
    std::filesystem::remove_all(folder);
}

// Values: they belong to no process, and to no memory that another process sees.
const std::set<std::string> values{
    "DType",        "Draft",          "RecordedBatch", "Recording",  "DraftColumn",
    "Encoder",      "KeptRecord",     "Ledger",        "Error",      "GpuUuid",
    "GroupKey",     "GroupStat",      "Schema",        "Sequences",  "Split",
    "StashAccount", "TrajectoryView", "WeightLayout",  "WeightPlan", "detail"};
// tests/gpu/domain_test.cpp has the table of this one: it needs a GPU.
const std::set<std::string> elsewhere{"MemoryDomain"};
// The calls that make objects, move them or end them.
const std::set<std::string> makers{
    "open",      "attach",   "published", "create",          "remove",
    "operator=", "operator", "clear",     "published_layout"};

int count_forgotten(const char* path) {
    std::ifstream exports(path);
    int forgotten = 0;
    int seen = 0;
    for (std::string line; std::getline(exports, line);) {
        const auto first = line.find("::");
        const auto last = line.rfind("::");
        if (first == std::string::npos || first == last) continue;  // a function
        const std::string owner = line.substr(first + 2, line.find("::", first + 2) - first - 2);
        const std::string method = line.substr(last + 2);
        if (values.contains(owner) || elsewhere.contains(owner)) continue;
        seen++;
        // Makers, whose names mean other calls elsewhere.
        if (line == "rollring::ServerSeat::take") continue;
        if (line == "rollring::LedgerRestore::begin") continue;
        const bool special = method == owner || method == "~" + owner || makers.contains(method);
        if (special || called.contains(line)) continue;
        fmt::print(stderr, "{} is in no table of this test\n", line);
        forgotten++;
    }
    require(seen > 100, "the list of exported symbols was read");
    return forgotten;
}

int run(const char* exports) {
    store_before_any_lock();
    try_producer();
    try_relays();
    try_readers();
    try_owned_ring();
    try_stash_and_shares();
    try_requests();
    try_recording();
    try_ledger();
    try_weights();
    const int forgotten = count_forgotten(exports);
    fmt::print("{} methods were tried in forked children, {} were forgotten\n", called.size(),
               forgotten);
    return forgotten != 0;
}

}  // namespace

int main(int count, char** args) {
    if (count != 2) {
        fmt::print(stderr, "usage: forked EXPORTS\n");
        return 2;
    }
    try {
        return run(args[1]);
    } catch (const Failure& failure) {
        fmt::print(stderr, "{}\n", failure.what());
        return 1;
    }
}
