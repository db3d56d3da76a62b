#include "share_load.hpp"

#include <csignal>
#include <thread>

#include "rollring/batch.hpp"
#include "rollring/stash.hpp"

namespace rollring::test {
namespace {

constexpr std::uint32_t members = 3;
constexpr std::int64_t ack_patience_ns = 5'000'000;
constexpr std::int64_t readers_turn_ns = 20'000'000;

class ShareTrainer {
  public:
    ShareTrainer(ShareLedger& ledger, const std::string& ring)
        : ledger_(ledger), dice_{static_cast<std::uint64_t>(monotonic_ns())} {
        auto opened = Stash::open(
            ring,
            {.group_size = members, .order = Order::freshest, .batch = BatchTarget::groups(2)});
        require(opened.has_value(), "{}", opened ? "" : opened.error().to_string());
        stash_ = std::move(*opened);
        // Our predecessor died behind its ack, or before.
        if (ledger_.set_count != 0 && step() == ledger_.set_step) note_acked();
        ledger_.set_count = 0;
    }

    void run() {
        Batch batch;
        while (ledger_.end < 2 || ledger_.groups != ledger_.sent) {
            const NextBatch got =
                ledger_.end < 2 ? stash_->next(batch, Deadline::after_ms(20)) : stash_->rest(batch);
            if (got != NextBatch::batch) continue;
            for (std::uint32_t reader = 0; reader < share_readers; reader++) post(batch, reader);
            wait_for_readers();
            if (dice_.below(16) == 0) {
                batch.nack();
                ledger_.nacks++;
            } else {
                acknowledge(batch);
            }
        }
    }

  private:
    [[nodiscard]] std::int64_t step() const { return stash_->last_acked_step(); }

    void post(Batch& batch, std::uint32_t reader) {
        const auto ticket = batch.ticket(
            {.rank = reader, .world = share_readers, .by = static_cast<SplitBy>(dice_.below(5))});
        require(ticket.has_value(), "{}", ticket ? "" : ticket.error().to_string());
        Mailbox& mail = ledger_.mail[reader];
        require(ticket->size() <= mail.ticket.size(), "{} B", ticket->size());
        mail.serial = mail.serial | 1;
        mail.bytes = ticket->size();
        std::ranges::copy(*ticket, mail.ticket.begin());
        mail.serial++;
    }

    // One that is dead or stopped takes nothing.
    void wait_for_readers() {
        const Deadline turn = Deadline::after_ns(readers_turn_ns);
        for (const Mailbox& mail : ledger_.mail) {
            while (mail.taken != mail.serial && !turn.passed()) std::this_thread::yield();
        }
    }

    void acknowledge(Batch& batch) {
        std::uint32_t count = 0;
        for (const std::uint32_t first : batch.group_offsets().first(batch.groups().size())) {
            const auto group =
                static_cast<std::uint32_t>(batch.sequences()[first].view.meta().visit);
            require(ledger_.acked[group] == 0, "group {} comes again, acknowledged", group);
            ledger_.set[count++] = group;
        }
        ledger_.set_step = step() + 1;
        ledger_.set_count = count;
        for (;;) {
            const std::int64_t from_ns = monotonic_ns();
            const auto acked = batch.ack(ledger_.set_step, Deadline::after_ns(ack_patience_ns));
            const std::int64_t took_ns = monotonic_ns() - from_ns;
            if (took_ns > ledger_.longest_ack_ns) ledger_.longest_ack_ns = took_ns;
            if (acked) break;
            require(acked.error().code == Errc::busy && batch.leased(), "{}",
                    acked.error().to_string());
            ledger_.busy++;
        }
        note_acked();
        ledger_.set_count = 0;
    }

    // Killed in here, our successor does it again.
    void note_acked() {
        for (std::uint32_t i = 0; i < ledger_.set_count; i++) {
            if (ledger_.acked[ledger_.set[i]].exchange(1) == 0) ledger_.groups++;
        }
    }

    ShareLedger& ledger_;
    Dice dice_;
    std::unique_ptr<Stash> stash_;
};

bool is_whole(const Share& share) {
    for (const Sequence& one : share.sequences()) {
        const std::uint64_t group = one.view.meta().visit;
        const std::uint32_t repetition = one.view.meta().repetition_id.value_or(0);
        const auto ids = one.view.token_ids();
        if (ids.size() != Load::tokens(group, repetition)) return false;
        for (std::uint32_t i = 0; i < ids.size(); i++) {
            if (ids[i] != Load::token(group, repetition, i)) return false;
        }
    }
    return true;
}

void read_mail(Mailbox& mail, Reader& reader, Dice& dice) {
    const std::uint64_t serial = mail.serial;
    const std::string ticket(mail.ticket.data(),
                             std::min<std::uint64_t>(mail.bytes, mail.ticket.size()));
    if (serial == mail.taken || serial % 2 != 0 || mail.serial != serial) {
        std::this_thread::yield();
        return;
    }
    auto share = reader.open(ticket);
    if (share) {
        mail.reading = 1;
        bool whole = true;
        const std::uint64_t times = 1 + dice.below(8);
        for (std::uint64_t i = 0; i < times || mail.hold != 0; i++) {
            mail.held = mail.hold.load();
            whole &= is_whole(*share);
        }
        mail.reading = 0;
        const auto closed = share->close();
        require(closed || closed.error().code == Errc::stale_ticket, "{}",
                closed ? "" : closed.error().to_string());
        require(whole || !closed, "other bytes than the ticket's, and no word of it");
        (closed ? mail.whole : mail.stale)++;
    } else {
        // Of a trainer that died as it wrote there.
        require(share.error().code == Errc::stale_ticket || mail.serial != serial, "{}",
                share.error().to_string());
        mail.stale++;
    }
    mail.taken = serial;
}

}  // namespace

// Rings so small that returned memory is soon written over.
ShareRun::ShareRun()
    : ring_(
          "shares",
          {.lanes = 1, .lane_bytes = 128 << 10, .soft_bytes = 64 << 10, .spill_bytes = 256 << 10}),
      roles_{{{{"--share-trainer"}}, {{"--share-reader"}}, {{"--share-reader"}}}} {
    sender_ = start_self({"--share-sender", ring_.name(), ledger_.fd()});
}

ShareRun::~ShareRun() {
    for (const Role& role : roles_) {
        if (role.pid != 0) kill_and_collect(role.pid);
    }
    if (sender_ != 0) kill_and_collect(sender_);
}

// A dead reader's word must not count for its successor.
void ShareRun::clear_mail(std::size_t index) {
    Mailbox& mail = ledger_->mail[index];
    mail.reading = 0;
    mail.hold = mail.held = 0;
}

void ShareRun::start(Role& role, const std::string& fault) {
    const auto index = static_cast<std::size_t>(&role - roles_.data());
    if (index != 0) clear_mail(index - 1);
    role.pid = start_self(
        {role.words.front(), ring_.name(), ledger_.fd(), std::to_string(index - 1)}, fault);
}

void ShareRun::start_all() {
    for (Role& role : roles_) {
        if (role.pid == 0) start(role);
    }
}

void ShareRun::check_alive() {
    for (const Role& role : roles_) {
        require(role.pid == 0 || look_at(role.pid) != 'e', "a {} has ended by itself",
                role.words.front());
    }
}

void ShareRun::finish() {
    ledger_->end = 1;
    require(collect(std::exchange(sender_, 0)) == 0, "the sender failed");
    ledger_->end = 2;
    for (Role& role : roles_) {
        require(collect(std::exchange(role.pid, 0)) == 0, "a {} failed", role.words.front());
    }
    for (std::uint32_t group = 0; group < ledger_->sent; group++) {
        require(ledger_->acked[group] == 1, "group {} is lost", group);
    }
    auto consumer = Consumer::open(ring_.name());
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    Record record;
    require(consumer->poll(record) == Poll::empty, "a record is left");
}

int share_sender_role(const std::vector<std::string>& arguments) {
    const Shared<ShareLedger> ledger(arguments.at(1));
    auto producer = Producer::open(arguments.at(0));
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    Load load;
    for (std::uint32_t group = 0; ledger->end == 0; group++) {
        require(group < share_groups_most, "{} groups are too few", share_groups_most);
        for (std::uint32_t repetition = 0; repetition < members; repetition++) {
            Draft draft = load.draft(group, repetition);
            draft.meta.group_size = members;
            const Push push = producer->push(draft, patience());
            require(push == Push::ok, "push: {}: {}", name(push), producer->problem());
        }
        ledger->sent = group + 1;
    }
    return 0;
}

int share_trainer_role(const std::vector<std::string>& arguments) {
    const Shared<ShareLedger> ledger(arguments.at(1));
    ShareTrainer(*ledger.operator->(), arguments.at(0)).run();
    return 0;
}

int share_reader_role(const std::vector<std::string>& arguments) {
    const Shared<ShareLedger> ledger(arguments.at(1));
    Mailbox& mail = ledger->mail[std::stoul(arguments.at(2))];
    auto reader = Reader::attach(arguments.at(0), {.name = "reader " + arguments.at(2)});
    require(reader.has_value(), "{}", reader ? "" : reader.error().to_string());
    Dice dice{static_cast<std::uint64_t>(monotonic_ns())};
    while (ledger->end < 2 || ledger->groups != ledger->sent) read_mail(mail, *reader, dice);
    return 0;
}

namespace {

struct Deaths {
    std::uint64_t in_a_read = 0;
    std::uint64_t trainers = 0;
    std::uint64_t stops = 0;
};

struct Target {
    std::size_t index = 0;
    std::uint64_t number = 0;
    bool stop_first = false;
};

// Most reads are held open until the signal has come: on a busy machine it comes long after the
// read that it is meant for. The others are met wherever they are by then.
void end_reader(ShareRun& run, const Target& target, Dice& dice, Deaths& deaths) {
    ShareLedger& ledger = run.ledger();
    Mailbox& mail = ledger.mail[target.index];
    const bool hold = dice.below(8) != 0;
    if (hold) mail.hold = target.number;
    run.until([&] { return hold ? mail.held == target.number : mail.reading != 0; });
    const pid_t pid = run.reader(target.index).pid;
    kill(pid, SIGSTOP);
    await_stopped(pid);
    require(!hold || mail.reading != 0, "a read that was held has ended");
    mail.hold = 0;
    // Stopped in a read, it is in the way of an ack, which says so by its deadline.
    if (target.stop_first && mail.reading != 0) {
        const std::uint64_t busy = ledger.busy;
        const std::uint64_t nacks = ledger.nacks;
        run.until([&] { return ledger.busy != busy || ledger.nacks != nacks; });
        deaths.stops++;
        if (dice.below(2) == 0) {
            kill(pid, SIGCONT);
            return;
        }
    }
    deaths.in_a_read += mail.reading;
    run.kill_one(run.reader(target.index));
}

}  // namespace

void share_kills(std::uint64_t kills, Dice& dice) {
    ShareRun run;
    run.start_all();
    ShareLedger& ledger = run.ledger();
    Deaths deaths;
    for (std::uint64_t i = 0; i < kills; i++) {
        const std::uint64_t whom = dice.below(5);
        if (whom == 0) {
            const std::uint64_t groups = ledger.groups;
            run.until([&] { return ledger.groups != groups || dice.below(50) == 0; });
            run.kill_one(run.trainer());
            deaths.trainers++;
        } else {
            end_reader(run, {whom % share_readers, i + 1, whom == 1}, dice, deaths);
        }
        run.start_all();
    }
    const auto sum = [&](auto what) {
        std::uint64_t all = 0;
        for (const Mailbox& mail : ledger.mail) all += what(mail);
        return all;
    };
    run.finish();
    const std::uint64_t whole = sum([](const Mailbox& mail) { return mail.whole.load(); });
    fmt::print(
        "shares: kills={} in_a_read={} trainers={} stops={} groups={} whole={} stale={} busy={} "
        "nacks={} longest_ack_ms={}\n",
        kills, deaths.in_a_read, deaths.trainers, deaths.stops, ledger.groups.load(), whole,
        sum([](const Mailbox& mail) { return mail.stale.load(); }), ledger.busy.load(),
        ledger.nacks.load(), ledger.longest_ack_ns.load() / 1'000'000);
    require(deaths.in_a_read >= kills / 4, "only {} died in a read", deaths.in_a_read);
    require(whole >= kills, "only {} shares were read", whole);
    require(ledger.longest_ack_ns < 20'000'000'000, "an ack took {} ns",
            ledger.longest_ack_ns.load());
}

}  // namespace rollring::test
