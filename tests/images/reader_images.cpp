// A reader of shares stepped through attach, open, a look at a share, close and detach, while the
// trainer whose batches it reads lives. It is killed at any instruction of them, or stopped there
// while the trainer acknowledges or gives back the order's batch.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "liveness.hpp"
#include "parts.hpp"
#include "rollring/batch.hpp"
#include "share_book.hpp"
#include "sharing_trainer.hpp"

namespace rollring::test {
namespace {

enum class Act : std::uint32_t { attach, open, look, close, detach, count };
enum class Answer : std::uint32_t { good, stale };
// The event within an order, and the moment of it.
enum class Within : std::uint32_t { nothing, kill, ack, nack };
enum class Moment : std::uint32_t { anywhere, at_store, before_store, with_seat };

constexpr std::uint64_t full_every = 5;  // seats taken

RingOptions options() {
    return {.lanes = 2,
            .lane_bytes = 8 << 10,
            .soft_bytes = 2048,
            .journal_records = 16,
            .spill_bytes = 8 << 10,
            .group_rows = 32,
            .requests = 0};
}

class ReaderSteps {
  public:
    explicit ReaderSteps(std::uint64_t seed)
        : dice_{mix(seed)},
          trainer_(options(), dice_),
          segment_(attach_whole(trainer_.ring())),
          survivor_(options()),
          heirs_(options()) {
        const Geometry& geometry = segment_.geometry();
        seats_at_ = geometry.share_seats_offset();
        bell_at_ = geometry.bells_offset() + (geometry.lane_count + 2) * sizeof(Bell);
        auto seats = map_share_seats(segment_, false);
        require(seats.has_value(), "{}", seats ? "" : seats.error().to_string());
        seats_.emplace(std::move(*seats));
    }

    Stepped run(std::uint64_t boundaries) {
        while (boundaries_ < boundaries) context();
        const auto count = [&](Act act) { return ended_[static_cast<std::size_t>(act)]; };
        fmt::print(
            "reader: contexts={} boundaries={} images={} recoveries={} attached={} opened={} "
            "looked={} closed={} detached={} killed={} used={} acks={} waited={} left_behind={} "
            "acked_under={} nacked_under={} stale={} full={}\n",
            contexts_, boundaries_, images_, survivor_.recoveries() + heirs_.recoveries(),
            count(Act::attach), count(Act::open), count(Act::look), count(Act::close),
            count(Act::detach), killed_, used_, trainer_.acked(), waited_, left_behind_,
            acked_under_, nacked_under_, stale_, full_);
        for (const std::uint64_t one : {count(Act::attach), count(Act::open), count(Act::look),
                                        count(Act::close), count(Act::detach), killed_, waited_,
                                        left_behind_, acked_under_, nacked_under_, stale_, full_}) {
            require(one > 0 || contexts_ < contexts_enough, "not everything was tried");
        }
        return {boundaries_, images_, contexts_};
    }

  private:
    using Leased = SharingTrainer::Leased;

    void context() {
        trainer_.go_on();
        if (!stepper_) stepper_ = std::make_unique<Stepper>("--step-reader", trainer_.ring());
        const Act act = !attached_ ? Act::attach : act_when_attached();
        Leased* const about = batch_for(act);
        if (about != nullptr || act == Act::attach || act == Act::detach) {
            contexts_++;
            order(act, about);
        }
        // Batches go on: the reader's own are not in the way for long.
        if (dice_.below(3) == 0) acknowledge_unread();
    }

    Act act_when_attached() {
        const std::uint64_t roll = dice_.below(16);
        if (roll == 0) return Act::detach;
        const bool reads = std::ranges::any_of(trainer_.leased(), &Leased::is_read);
        if (!reads || roll < 7) return Act::open;
        return roll < 10 ? Act::look : Act::close;
    }
    // The order's batch; or any, for an order without one: of those that a dead reader has left in
    // the seat, if it has left any.
    Leased* batch_for(Act act) {
        std::vector<Leased*> fit;
        for (Leased& each : trainer_.leased()) {
            const bool wanted = act == Act::look || act == Act::close;
            if (act == Act::detach || each.is_read == wanted) fit.push_back(&each);
        }
        const auto left = std::ranges::find_if(
            fit, [&](const Leased* each) { return is_held(each->shared.number); });
        if (act == Act::attach && left != fit.end()) return *left;
        return fit.empty() ? nullptr : fit[dice_.below(fit.size())];
    }
    Within choose_within(Leased* about) {
        constexpr Within all[] = {Within::nothing, Within::kill, Within::ack, Within::ack,
                                  Within::nack};
        const Within one = all[dice_.below(std::size(all))];
        return about == nullptr && one != Within::kill ? Within::nothing : one;
    }

    void acknowledge_unread() {
        for (Leased& each : trainer_.leased()) {
            if (each.is_read) continue;
            require(trainer_.acknowledge(each), "an ack waits for nobody");
            return;
        }
    }

    void order(Act act, Leased* about) {
        orders().what = static_cast<std::uint32_t>(act);
        if (about != nullptr) tell(about->shared);
        const std::uint64_t number = about != nullptr ? about->shared.number : 0;
        // Most of the many instructions of an attach are in the system's libraries.
        const bool left = about != nullptr && act == Act::attach && is_held(number);
        const bool stepped = act != Act::attach || left || dice_.below(4) == 0;
        // An ack has to meet a seat that is taken and not cleared yet.
        const bool meets_left = left && dice_.below(3) != 0;
        const Within within = meets_left ? Within::ack : choose_within(about);
        const bool ended = stepped ? step(act, within != Within::nothing, meets_left) : pass();
        if (ended) {
            // It was over before anything could happen within it.
            if (within == Within::kill) return kill();
            take_answer(act, about, Answer::good);
        } else if (within == Within::kill) {
            kill();
        } else if (within == Within::ack) {
            acknowledge_under(act, *about, number);
        } else {
            trainer_.give_back(*about);
            nacked_under_++;
            stepper_->go_on();
            // It may have looked before, and may not see it until the next look.
            if (is_held(number)) {
                close_stale(number);
            } else {
                take_answer(act, nullptr, answer());
            }
        }
    }

    // One whose seat holds the batch is waited for, though a predecessor may have left that there;
    // it lets go of it, or its answer is good. Another one is refused acknowledged batches.
    void acknowledge_under(Act act, Leased& about, std::uint64_t number) {
        const bool held = is_taken() && is_held(number);
        const bool acked = trainer_.acknowledge(about);
        require(acked == !held, "an ack {} a reader whose seat {}",
                acked ? "passed over" : "waited for",
                held ? "holds the batch" : "does not hold it");
        (held ? waited_ : acked_under_)++;
        left_behind_ += held && act == Act::attach ? 1 : 0;
        stepper_->go_on();
        if (held) return take_answer(act, &about, Answer::good);
        take_answer(act, nullptr, act == Act::open ? Answer::stale : Answer::good);
        stale_ += act == Act::open ? 1 : 0;
    }

    // False: it was stopped in the middle.
    bool step(Act act, bool stops, bool with_seat) {
        std::uint64_t& length = length_[static_cast<std::size_t>(act)];
        const std::uint64_t from = stepper_->boundaries();
        const std::uint64_t images_from = stepper_->images();
        const auto moment = with_seat ? Moment::with_seat : static_cast<Moment>(dice_.below(3));
        const std::uint64_t image = images_from + dice_.below(act == Act::attach ? 8 : 3);
        std::uint64_t boundary = from + dice_.below(length + 1);
        // Where the same order stored something last time, or some instructions before.
        auto& stores = stores_[{act, orders().count.load()}];
        if (moment == Moment::before_store && !stores.empty()) {
            boundary = from + stores[dice_.below(stores.size())] - dice_.below(12);
        }
        std::vector<std::uint64_t> stored;
        const auto is_come = [&] {
            if (moment == Moment::with_seat) return is_taken();
            return moment == Moment::at_store ? stepper_->images() >= image
                                              : stepper_->boundaries() >= boundary;
        };
        Course course(survivor_, trainer_.promise());
        std::vector<std::byte> first;
        const bool ended = stepper_->step(
            [&](std::span<const std::byte> now) {
                if (first.empty()) {
                    first.assign(now.begin(), now.end());
                } else {
                    stored.push_back(stepper_->boundaries() - from);
                }
                require_own(first, now);
                course.see(now);
                heirs_.recover(now, trainer_.shared(), trainer_.promise().held);
            },
            [&] { return stops && is_come(); });
        const std::uint64_t took = stepper_->boundaries() - from;
        boundaries_ += took;
        images_ += stepper_->images() - images_from;
        if (ended) {
            length = took;
            stores = stored;
        }
        return ended;
    }

    bool pass() {
        stepper_->run();
        return true;
    }

    // A reader writes its own seat, which is the first, and rings the process that waits for
    // readers.
    void require_own(std::span<const std::byte> before, std::span<const std::byte> now) const {
        const auto same = [&](std::uint64_t from, std::uint64_t to) {
            return std::memcmp(before.data() + from, now.data() + from, to - from) == 0;
        };
        require(same(0, bell_at_) && same(bell_at_ + sizeof(Bell), seats_at_) &&
                    same(seats_at_ + sizeof(ShareSeat), now.size()),
                "a reader has written what is not its own");
    }

    void take_answer(Act act, Leased* about, Answer expected) {
        require(answer() == expected, "the reader's answer is {}",
                static_cast<std::uint32_t>(answer()));
        ended_[static_cast<std::size_t>(act)]++;
        if (act == Act::attach) attached_ = true;
        if (act == Act::open && about != nullptr) about->is_read = true;
        if (act == Act::close && about != nullptr) about->is_read = false;
        if (act == Act::detach) {
            attached_ = false;
            for (Leased& each : trainer_.leased()) each.is_read = false;
        }
        for (const Leased& each : trainer_.leased()) {
            require(is_held(each.shared.number) == each.is_read,
                    "its seat does not say what it has");
        }
    }

    void close_stale(std::uint64_t number) {
        orders().what = static_cast<std::uint32_t>(Act::close);
        orders().count = 1;
        orders().numbers[0] = number;
        stepper_->run();
        require(answer() == Answer::stale, "a share of a batch that was given back is good");
        require(!is_held(number), "a share that was closed is held");
        stale_++;
    }

    // No process waits for it, and its seat is the next one's.
    void kill() {
        stepper_.reset();
        attached_ = false;
        killed_++;
        for (Leased& each : trainer_.leased()) each.is_read = false;
        // Else the next that is stepped finds the seat as the dead one has left it.
        const std::uint64_t roll = dice_.below(9);
        if (roll < 3) use_seat();
        if (roll < 5) acknowledge_some();
    }

    // Of some the dead one had a share.
    void acknowledge_some() {
        while (!trainer_.leased().empty() && dice_.below(3) != 0) {
            Leased& leased = trainer_.leased().back();
            if (dice_.below(4) == 0) {
                trainer_.give_back(leased);
            } else {
                require(trainer_.acknowledge(leased), "an ack waits for a dead reader");
            }
        }
    }

    void use_seat() {
        std::vector<Reader> readers;
        readers.push_back(take_seat());
        if (!trainer_.leased().empty()) {
            Leased& leased = trainer_.leased().front();
            auto share = readers.front().open(leased.shared.ticket);
            require(share.has_value(), "{}", share ? "" : share.error().to_string());
            require(verified(*share) == leased.shared.ids, "a share has other records");
            require(!trainer_.acknowledge(leased), "an ack passed over a reader that lives");
            require(share->close().has_value(), "a share is stale");
        }
        if (++used_ % full_every == 0) fill_seats(readers);
    }

    Reader take_seat() {
        auto reader = Reader::attach(trainer_.ring(), {.name = "next", .attach_timeout = {}});
        require(reader.has_value(), "{}", reader ? "" : reader.error().to_string());
        const ShareSeat& seat = share_seat(*seats_, 0);
        require(seat.pid.load() == static_cast<std::uint32_t>(getpid()), "the seat is not taken");
        for (const auto& hold : seat.holds) require(hold.load() == 0, "the seat is not cleared");
        return std::move(*reader);
    }

    void fill_seats(std::vector<Reader>& readers) {
        const ReaderOptions at_once{.name = "one of many", .attach_timeout = {}};
        while (readers.size() < share_seats) {
            auto reader = Reader::attach(trainer_.ring(), at_once);
            require(reader.has_value(), "seat {} is lost: {}", readers.size(),
                    reader ? "" : reader.error().to_string());
            readers.push_back(std::move(*reader));
        }
        const auto refused = Reader::attach(trainer_.ring(), at_once);
        require(!refused && refused.error().code == Errc::busy, "one seat too many");
        full_++;
    }

    [[nodiscard]] bool is_taken() const { return alive(segment_.fd(), LifeByte::share_seat(0)); }
    [[nodiscard]] bool is_held(std::uint64_t number) const {
        return std::ranges::any_of(share_seat(*seats_, 0).holds,
                                   [&](const auto& hold) { return hold.load() == number; });
    }
    void tell(const SharedBatch& batch) {
        orders().numbers[0] = batch.number;
        std::array<std::uint64_t, numbers_max - 1> words{};
        require(batch.ticket.size() <= sizeof words, "a ticket of {} B", batch.ticket.size());
        std::memcpy(words.data(), batch.ticket.data(), batch.ticket.size());
        for (std::size_t i = 0; i < words.size(); i++) orders().numbers[1 + i] = words[i];
        orders().count = batch.ticket.size();
    }
    [[nodiscard]] Orders& orders() const { return stepper_->orders(); }
    [[nodiscard]] Answer answer() const { return static_cast<Answer>(orders().result.load()); }

    Dice dice_;
    SharingTrainer trainer_;
    Segment segment_;
    Survivor survivor_;
    ShareSurvivor heirs_;
    std::uint64_t seats_at_;
    std::uint64_t bell_at_;
    std::optional<Mapping> seats_;
    std::unique_ptr<Stepper> stepper_;
    bool attached_ = false;
    std::array<std::uint64_t, static_cast<std::size_t>(Act::count)> length_{};
    std::array<std::uint64_t, static_cast<std::size_t>(Act::count)> ended_{};
    // Instructions to each store of an order, by the bytes of its ticket.
    std::map<std::pair<Act, std::uint64_t>, std::vector<std::uint64_t>> stores_;
    std::uint64_t contexts_ = 0;
    std::uint64_t boundaries_ = 0;
    std::uint64_t images_ = 0;
    std::uint64_t killed_ = 0;
    std::uint64_t used_ = 0;         // its seats, by another
    std::uint64_t waited_ = 0;       // by an ack, for a reader that was stopped
    std::uint64_t left_behind_ = 0;  // of those: that had not cleared its seat yet
    std::uint64_t acked_under_ = 0;  // one that was about to begin, or done
    std::uint64_t nacked_under_ = 0;
    std::uint64_t stale_ = 0;
    std::uint64_t full_ = 0;
};

}  // namespace

Stepped step_reader(std::uint64_t seed, std::uint64_t boundaries) {
    return ReaderSteps(seed).run(boundaries);
}

int stepped_reader_role(const std::vector<std::string>& arguments) {
    const Shared<Orders> orders(arguments.at(0));
    std::optional<Reader> reader;
    std::map<std::uint64_t, Share> shares;  // by the batch's number
    const auto answer = [&](const Result<void>& result) {
        require(result || result.error().code == Errc::stale_ticket, "{}",
                result ? "" : result.error().to_string());
        const Answer one = result ? Answer::good : Answer::stale;
        orders->result = static_cast<std::uint32_t>(one);
    };
    obey(*orders.operator->(), [&] {
        const std::uint64_t number = orders->numbers[0].load();
        answer({});
        switch (static_cast<Act>(orders->what.load())) {
            case Act::attach: {
                auto attached = Reader::attach(arguments.at(1),
                                               {.name = "a reader that is stepped, or else dies"});
                require(attached.has_value(), "{}", attached ? "" : attached.error().to_string());
                reader = std::move(*attached);
                break;
            }
            case Act::open: {
                std::string ticket(orders->count.load(), '\0');
                std::array<std::uint64_t, numbers_max - 1> words{};
                for (std::size_t i = 0; i < words.size(); i++) {
                    words[i] = orders->numbers[1 + i].load();
                }
                std::memcpy(ticket.data(), words.data(), ticket.size());
                auto share = reader->open(ticket);
                if (share) {
                    shares.insert_or_assign(number, std::move(*share));
                } else {
                    answer(std::unexpected(share.error()));
                }
                break;
            }
            case Act::look: {
                const Share& share = shares.at(number);
                verified(share);
                answer(share.check());
                break;
            }
            case Act::close:
                answer(shares.at(number).close());
                shares.erase(number);
                break;
            default:
                reader.reset();  // its shares are open still
                shares.clear();
        }
    });
    return 0;
}

}  // namespace rollring::test
