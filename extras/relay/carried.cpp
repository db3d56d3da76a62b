#include "carried.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>

namespace rollring::relay {
namespace {

constexpr std::uint64_t magic_of_one = 0x3244'5252'4143'5252;
constexpr std::size_t notes_max = 4096;

}  // namespace

// Words are stored in this order by one process, and read by the next one.
struct Carried::Page {
    struct Note {
        std::uint64_t position;
        std::uint64_t to;
        std::uint64_t lane;
    };
    std::atomic<std::uint64_t> magic;
    std::uint64_t source;
    std::uint64_t destination;
    std::uint64_t lanes;
    std::atomic<std::uint64_t> into;  // the destination's lane number plus 1; 0: none
    std::atomic<std::uint64_t> count;
    std::array<Note, notes_max> notes;
    Places::Slots places;

    // Behind the page, for each lane: the first position that was not carried.
    [[nodiscard]] std::atomic<std::uint64_t>& end_of(std::uint64_t lane) {
        return reinterpret_cast<std::atomic<std::uint64_t>*>(this + 1)[lane];
    }
};

std::size_t Carried::bytes(std::uint32_t lanes) {
    return sizeof(Page) + lanes * sizeof(std::uint64_t);
}

Carried::Carried(std::span<std::byte> memory, std::uint64_t source, std::uint64_t destination,
                 std::uint32_t lanes)
    : page_(reinterpret_cast<Page*>(memory.data())), places_(page_->places), ends_(lanes) {
    const bool ours = page_->magic.load() == magic_of_one && page_->source == source &&
                      page_->destination == destination && page_->lanes == lanes;
    if (ours) return;
    page_->magic.store(0);
    page_->count.store(0);
    page_->into.store(0);
    for (Places::Slot& slot : page_->places) slot.taken.store(0);
    for (std::uint32_t lane = 0; lane < lanes; lane++) page_->end_of(lane).store(0);
    page_->source = source;
    page_->destination = destination;
    page_->lanes = lanes;
    page_->magic.store(magic_of_one);
}

std::vector<Places::Place> Carried::recover(std::uint32_t lane, std::uint64_t end) {
    if (page_->into.load() != lane + std::uint64_t{1}) end = 0;
    std::vector<Places::Place> places = places_.recover(end);
    take_over(end);
    page_->into.store(lane + std::uint64_t{1});
    return places;
}

void Carried::take_over(std::uint64_t end) {
    const std::uint64_t count = std::min<std::uint64_t>(page_->count.load(), notes_max);
    for (std::uint64_t i = 0; i < count; i++) {
        const Page::Note& note = page_->notes[i];
        if (note.to >= end || note.lane >= ends_.size()) continue;
        auto& carried = page_->end_of(note.lane);
        carried.store(std::max(carried.load(), note.position + 1));
    }
    page_->count.store(0);
    for (std::size_t lane = 0; lane < ends_.size(); lane++) ends_[lane] = page_->end_of(lane);
}

std::uint64_t Carried::destination() const {
    return page_->destination;
}

bool Carried::has(std::uint32_t lane, std::uint64_t position) const {
    return position < ends_[lane];
}

bool Carried::is_full() const {
    return page_->count.load() >= notes_max;
}

void Carried::note(std::uint32_t lane, std::uint64_t position, std::uint64_t to) {
    const std::uint64_t count = page_->count.load();
    page_->notes[count] = {position, to, lane};
    page_->count.store(count + 1);
    ends_[lane] = position + 1;
}

void Carried::settle() {
    take_over(std::numeric_limits<std::uint64_t>::max());
    places_.settle();
}

}  // namespace rollring::relay
