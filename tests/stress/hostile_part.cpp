// A producer that damages its writable memory: the frames of its own lane and its own page. It must
// be put in quarantine, alone.

#include <cstring>
#include <optional>

#include "control_socket.hpp"
#include "journal.hpp"
#include "ring_map.hpp"
#include "support/load.hpp"

namespace rollring::test {
namespace {

class Wild {
  public:
    Wild(const Part& part, Journal& journal)
        : part_(part), journal_(journal), dice_{part.seed}, prompt_(prompt_of(journal.life())) {}

    int run() {
        if (!open()) return 0;
        const auto map = RingMap::attach(part_.ring, patience());
        require(map.has_value(), "{}", map ? "" : map.error().to_string());
        const Geometry& geometry = map->geometry();
        const std::uint32_t lane = producer_->lane();
        const std::uint64_t capacity = producer_->stats().lane_bytes;
        const auto page = map->segment().map(geometry.owner_offset(lane), page_bytes, true);
        const auto data = map->segment().map(geometry.data_offset(lane), capacity, true);
        require(page.has_value() && data.has_value(), "cannot map my own lane");
        auto& owner = page->at<LaneOwner>(0);
        for (int i = 0; i < 20; i++) push();
        while (part_.board->producers_end == 0) {
            switch (dice_.below(6)) {
                case 0:
                    scribble(data->data(), capacity);
                    break;
                case 1:
                    scribble(data->data() + owner.tail.load() % capacity / 64 * 64, 64);
                    break;
                case 2:
                    scribble(page->data(), sizeof(LaneOwner));
                    break;
                case 3:
                    owner.tail += dice_.below(4) * 64;
                    break;
                default:
                    push();
                    break;
            }
            weights::nap();
        }
        return 0;
    }

  private:
    bool open() {
        while (part_.board->producers_end == 0) {
            auto opened =
                Producer::open(part_.ring, {.name = "hostile",
                                            .attach_timeout = std::chrono::milliseconds(50),
                                            .checksum = Checksum::xxh3});
            if (opened) {
                producer_ = std::move(*opened);
                journal_.say(Kind::opened, producer_->lane());
                return true;
            }
            const Errc code = opened.error().code;
            require(code == Errc::no_free_lane || code == Errc::not_enough_shared_memory, "{}",
                    opened.error().to_string());
            journal_.say(Kind::refused, static_cast<std::int64_t>(code));
        }
        return false;
    }

    // Groups of two, as others send them.
    void push() {
        if (closed_) return journal_.say(Kind::waiting);
        const std::uint64_t number = sent_++;
        const std::vector<std::int32_t> tokens(8 + dice_.below(200), 7);
        Draft draft(prompt_);
        draft.meta.visit = number / 2;
        draft.meta.repetition_id = static_cast<std::uint32_t>(number % 2);
        draft.meta.group_size = 2;
        draft.set(Std::token_ids, tokens);
        journal_.begin({.head = {},
                        .visit = draft.meta.visit,
                        .digest = 0,
                        .repetition = draft.meta.repetition_id.value_or(0),
                        .attempt = 0,
                        .subsequence = 0,
                        .subsequences = 1,
                        .size = 2,
                        .failed = 0});
        closed_ = producer_->push(draft, Deadline::now()) == Push::closed;
    }

    void scribble(std::byte* at, std::uint64_t bytes) {
        const std::uint64_t word = dice_.next();
        std::memcpy(at + dice_.below(bytes / 4) * 4, &word, dice_.below(2) == 0 ? 1 : 4);
    }

    const Part& part_;
    Journal& journal_;
    Dice dice_;
    std::string prompt_;
    std::optional<Producer> producer_;
    std::uint64_t sent_ = 0;
    bool closed_ = false;
};

}  // namespace

int hostile_part(const Part& part, Journal& journal) {
    return Wild(part, journal).run();
}

}  // namespace rollring::test
