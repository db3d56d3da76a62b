// Rings made, removed, looked at and used while the system refuses a call.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "refusal_cases.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t soon_ms = 30;

bool listed(const std::string& ring) {
    const auto all = list_rings();
    return std::ranges::find(all, ring) != all.end();
}

// One record through a new producer and the given consumer.
void pass_one(const std::string& ring, Consumer& consumer) {
    auto producer = Producer::open(ring, {.attach_timeout = {}});
    for (const Deadline deadline = patience(); !producer && !deadline.passed();) {
        Record record;
        require(consumer.poll(record) == Poll::empty, "a record is left");
        producer = Producer::open(ring, {.attach_timeout = {}});
    }
    require_done(producer, "a new producer");
    Load load;
    require(load.push(*producer, 99, 0) == Push::ok, "{}", producer->problem());
    Record record;
    require(consumer.wait(record, patience()) == Poll::record, "its record does not come");
    Load::verify(record);
    require(Load::stream_of(record) == 99, "another's record came");
    consumer.release(record.ref);
}

void require_usable(const std::string& ring) {
    auto consumer = Consumer::open(ring, {.attach_timeout = {}});
    require_done(consumer, "a consumer");
    pass_one(ring, *consumer);
}

class Named : public Case {
  public:
    ~Named() override { static_cast<void>(remove_ring(name_, true)); }

  protected:
    std::string name_ = scratch_name("refused");
};

class Create : public Named {
  public:
    Result<void> act() override { return create_ring(name_, options_); }
    void check(const Result<void>& acted, Call refused) override {
        require(!acted || listed(name_), "it is not there");
        if (acted || !listed(name_)) return;
        // A creator that cannot tell whether the name is still its own leaves the same as its death
        // would.
        const bool doubt =
            refused == Call::open || refused == Call::fcntl || refused == Call::fstat;
        const RingDiagnosis left = diagnose_ring(name_);
        require(doubt && left.health == RingHealth::unfinished && !left.in_use,
                "what could not be made stays");
    }
    void again() override {
        if (!stat_ring(name_)) require_done(create_ring(name_, options_), "create again");
        require_usable(name_);
    }

  protected:
    RingOptions options_ = refused_ring();
};

// Its overflow file is there as long as the ring is.
class CreateAndRemoveOverflow : public Create {
  public:
    CreateAndRemoveOverflow() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "rollring-refused-XXXXXX").string();
        require(mkdtemp(pattern.data()) != nullptr, "no directory");
        options_.overflow_dir = pattern;
    }
    ~CreateAndRemoveOverflow() override {
        std::error_code error;
        std::filesystem::remove_all(options_.overflow_dir, error);
    }
    Result<void> act() override {
        if (auto made = Create::act(); !made) return made;
        require(has_file(), "no overflow file");
        return remove_ring(name_);
    }
    void check(const Result<void>& acted, Call refused) override {
        const bool kept = refused == Call::unlinkat;
        require(listed(name_) || !has_file() || kept, "the overflow file stays");
        require(!acted || !listed(name_), "what was removed stays");
    }

  private:
    [[nodiscard]] bool has_file() const {
        return !std::filesystem::is_empty(options_.overflow_dir);
    }
};

class CreateOverLeftover : public Create {
  public:
    CreateOverLeftover() {
        const std::string path = fmt::format("/dev/shm/rollring.{}.{}", getuid(), name_);
        std::ofstream(path).flush();
        chmod(path.c_str(), 0600);
        require(listed(name_), "no leftover was made");
    }
    void check(const Result<void>& acted, Call /*refused*/) override {
        require(!acted || listed(name_), "it is not there");
        const bool leftover = diagnose_ring(name_).health == RingHealth::unfinished;
        require(acted || !listed(name_) || leftover, "what could not be made stays");
    }
};

class WithRing : public Case {
  protected:
    ScratchRing ring_{"refused", refused_ring()};
    std::uint64_t id_ = stat_ring(ring_.name())->ring_id;

    void require_untouched() const {
        const auto stat = stat_ring(ring_.name());
        require_done(stat, "the ring");
        require(stat->ring_id == id_, "the ring was replaced");
    }
};

// A creator must never take a whole ring for a leftover.
class CreateOverRing : public WithRing {
  public:
    Result<void> act() override {
        auto made = create_ring(ring_.name(), refused_ring());
        require(!made.has_value(), "a ring was made where there was one");
        if (made.error().code == Errc::already_exists) return {};
        return made;
    }
    void check(const Result<void>& /*acted*/, Call /*refused*/) override { require_untouched(); }
    void again() override { require_usable(ring_.name()); }
};

class Remove : public WithRing {
  public:
    Result<void> act() override { return remove_ring(ring_.name()); }
    void check(const Result<void>& acted, Call /*refused*/) override {
        require(listed(ring_.name()) == !acted.has_value(), "{}",
                acted ? "what was removed stays" : "it is gone all the same");
        if (!acted) require_untouched();
    }
    void again() override {
        if (!listed(ring_.name())) return;
        require_usable(ring_.name());
        require_done(remove_ring(ring_.name()), "remove again");
    }
};

class Look : public WithRing {
  public:
    Result<void> act() override {
        const RingDiagnosis found = diagnose_ring(ring_.name());
        // 'doctor --fix' removes those.
        require(found.health != RingHealth::unfinished && found.health != RingHealth::damaged,
                "a whole ring is called {}: {}", name(found.health), found.detail);
        require(!found.detail.empty() || found.health == RingHealth::ok, "no reason given");
        return outcome(stat_ring(ring_.name()));
    }
    void check(const Result<void>& /*acted*/, Call /*refused*/) override { require_untouched(); }
    void again() override { require_done(stat_ring(ring_.name()), "stat again"); }
};

class OpenProducer : public WithRing {
  public:
    Result<void> act() override {
        auto opened =
            Producer::open(ring_.name(), {.attach_timeout = std::chrono::milliseconds(soon_ms)});
        if (opened) producer_.emplace(std::move(*opened));
        return outcome(opened);
    }
    void check(const Result<void>& acted, Call /*refused*/) override {
        const auto stat = stat_ring(ring_.name());
        require_done(stat, "stat");
        const auto living = std::ranges::count_if(stat->lanes, &LaneStat::alive);
        require(living == (acted ? 1 : 0), "{} lanes are held", living);
    }
    void again() override {
        producer_.reset();
        auto consumer = Consumer::open(ring_.name());
        require_done(consumer, "a consumer");
        for (int i = 0; i < 4; i++) pass_one(ring_.name(), *consumer);  // each lane twice
    }

  private:
    std::optional<Producer> producer_;
};

// A lane of a producer that lives, one of a producer that has closed, records in both, and a
// predecessor that has read some and released some of those.
class OpenConsumer : public WithRing {
  public:
    OpenConsumer() {
        auto gone = Producer::open(ring_.name());
        auto lives = Producer::open(ring_.name());
        require(gone && lives, "producers");
        Load load;
        for (std::uint64_t i = 0; i < each; i++) {
            require(load.push(*gone, 0, i) == Push::ok, "{}", gone->problem());
            require(load.push(*lives, 1, i) == Push::ok, "{}", lives->problem());
        }
        producer_.emplace(std::move(*lives));
        auto before = Consumer::open(ring_.name());
        require_done(before, "the predecessor");
        for (int i = 0; i < 4; i++) {
            Record record;
            require(before->wait(record, patience()) == Poll::record, "a record");
            if (i % 2 == 0) continue;
            before->release(record.ref);
            released_++;
        }
    }
    Result<void> act() override {
        auto opened =
            Consumer::open(ring_.name(), {.attach_timeout = std::chrono::milliseconds(soon_ms)});
        if (opened) consumer_.emplace(std::move(*opened));
        return outcome(opened);
    }
    void check(const Result<void>& acted, Call /*refused*/) override {
        const auto stat = stat_ring(ring_.name());
        require_done(stat, "stat");
        require(stat->consumer_alive == acted.has_value(), "the seat is {}",
                acted ? "free" : "held by nobody");
    }
    void again() override {
        if (!consumer_) {
            auto opened = Consumer::open(ring_.name());
            require_done(opened, "open again");
            consumer_.emplace(std::move(*opened));
        }
        Record record;
        for (std::uint64_t i = released_; i < 2 * each; i++) {
            require(consumer_->wait(record, patience()) == Poll::record, "a record is missing");
            Load::verify(record);
            consumer_->release(record.ref);
        }
        require(consumer_->poll(record) == Poll::empty, "a released record came back");
        const ConsumerStats stats = consumer_->stats();
        require(stats.lost + stats.torn + stats.duplicates == 0, "a loss was counted");
    }

  private:
    static constexpr std::uint64_t each = 5;
    std::uint64_t released_ = 0;
    std::optional<Producer> producer_;
    std::optional<Consumer> consumer_;
};

// Records pushed, waited for, polled, released one by one and together; a lane filled to the brim;
// a producer's end. Committed records arrive, once, whole and in order.
class Flow : public WithRing {
  public:
    Flow() {
        auto consumer = Consumer::open(ring_.name());
        require_done(consumer, "consumer");
        consumer_.emplace(std::move(*consumer));
        auto producer = Producer::open(ring_.name());
        require_done(producer, "producer");
        producer_.emplace(std::move(*producer));
    }
    Result<void> act() override {
        for (int i = 0; i < 3; i++) {
            if (auto pushed = push(patience()); !pushed) return pushed;
        }
        for (int i = 0; i < 3; i++) {
            if (auto taken = take(Deadline::after_ms(2'000)); !taken) return taken;
        }
        if (auto all = consumer_->release_all(std::exchange(held_, {}), 1); !all) return all;
        while (push(Deadline::after_ms(2))) continue;
        if (closed_) return refused(Errc::peer_gone, producer_->problem());
        while (got_ < sent_) {
            if (auto taken = take(Deadline::after_ms(2'000)); !taken) return taken;
            consumer_->release(held_.back());
            held_.pop_back();
        }
        if (auto pushed = push(patience()); !pushed) return pushed;
        producer_->close();
        Record record;
        for (const Deadline deadline = Deadline::after_ms(2'000); !deadline.passed();) {
            if (got_ < sent_) {
                static_cast<void>(take(Deadline::now()));
            } else {
                require(consumer_->poll(record) == Poll::empty, "a record too many");
            }
            for (const RecordRef& ref : std::exchange(held_, {})) consumer_->release(ref);
            if (consumer_->producers_active() == 0) return {};
        }
        return refused(Errc::timed_out, "the lane is not given back");
    }
    void check(const Result<void>& /*acted*/, Call /*refused*/) override {
        require(!closed_, "the producer says: {}", producer_->problem());
        while (got_ < sent_) require_done(take(patience()), "what was committed");
        producer_->close();
        Record record;
        for (const Deadline deadline = patience(); consumer_->producers_active() > 0;) {
            require(!deadline.passed(), "its lane is never given back");
            require(consumer_->poll(record) == Poll::empty, "a record that was not committed");
        }
        for (const RecordRef& ref : std::exchange(held_, {})) consumer_->release(ref);
        const ConsumerStats stats = consumer_->stats();
        require(stats.lost + stats.torn + stats.duplicates + stats.quarantines == 0,
                "a loss was counted");
        require(stats.producers_died == 0, "the producer was taken for dead");
    }
    void again() override {
        for (int i = 0; i < 4; i++) pass_one(ring_.name(), *consumer_);
    }

  private:
    Result<void> push(Deadline deadline) {
        const Push pushed = producer_->push(load_.draft(0, sent_), deadline);
        closed_ = pushed == Push::closed;
        if (pushed == Push::ok) {
            sent_++;
            return {};
        }
        return refused(closed_ ? Errc::peer_gone : Errc::timed_out, producer_->problem());
    }
    Result<void> take(Deadline deadline) {
        Record record;
        switch (consumer_->wait(record, deadline)) {
            case Poll::record:
                break;
            case Poll::closed:
                throw Failure("the consumer says that the ring is gone");
            default:
                return refused(Errc::timed_out, "nothing came");
        }
        Load::verify(record);
        require(Load::number_of(record) == got_ && !record.redelivered, "record {} came for {}",
                Load::number_of(record), got_);
        got_++;
        held_.push_back(record.ref);
        return {};
    }

    Load load_;
    std::optional<Consumer> consumer_;
    std::optional<Producer> producer_;
    std::uint64_t sent_ = 0;
    std::uint64_t got_ = 0;
    std::vector<RecordRef> held_;
    bool closed_ = false;
};

template <class T>
NamedCase named(const char* name) {
    return {name, [] { return std::make_unique<T>(); }};
}

}  // namespace

RingOptions refused_ring() {
    return {.lanes = 2,
            .lane_bytes = 64 << 10,
            .soft_bytes = 16 << 10,
            .journal_records = 64,
            .spill_bytes = 64 << 10,
            .group_rows = 64};
}

std::vector<NamedCase> ring_cases() {
    return {named<Create>("create"),
            named<CreateAndRemoveOverflow>("create-and-remove-overflow"),
            named<CreateOverLeftover>("create-over-leftover"),
            named<CreateOverRing>("create-over-ring"),
            named<Remove>("remove"),
            named<Look>("look"),
            named<OpenProducer>("open-producer"),
            named<OpenConsumer>("open-consumer"),
            named<Flow>("flow")};
}

}  // namespace rollring::test
