#include "entry_taker.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace rollring::ledger {
namespace {

constexpr std::uint64_t ring_bytes_max = 1 << 16;

}  // namespace

std::optional<std::uint64_t> LedgerRing::size(std::string_view of) const {
    std::string_view text = sizes;
    while (!text.empty()) {
        const std::string_view row = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(row.size() + 1, text.size()));
        if (!row.starts_with(of) || row.substr(of.size(), 1) != " ") continue;
        std::uint64_t number = 0;
        const auto [end, wrong] =
            std::from_chars(row.data() + of.size() + 1, row.data() + row.size(), number);
        if (wrong == std::errc() && end == row.data() + row.size()) return number;
    }
    return std::nullopt;
}

void EntryTaker::take(std::uint64_t offset, const EntryHeader& entry,
                      std::span<const std::byte> payload) {
    const Kind kind = kind_of(entry);
    if (kind == Kind::record) {
        take_record(offset, entry, payload);
    } else if (kind == Kind::ring) {
        take_ring(payload);
    } else {
        take_numbers(entry, payload);
    }
}

// A record whose bytes are not whole was not durable, or is damaged. Another copy counts only if it
// is whole: the file of the first may still be there.
void EntryTaker::take_damaged(const EntryHeader& entry, std::string problem) {
    if (kind_of(entry) == Kind::record && found_->book.record(entry.number) == nullptr) {
        found_->book.use(entry.number);
        broken_->insert_or_assign(entry.number, std::move(problem));
    } else {
        found_->note(std::move(problem));
    }
}

void EntryTaker::take_record(std::uint64_t offset, const EntryHeader& entry,
                             std::span<const std::byte> payload) {
    RecordOrigin origin{};
    if (entry.payload_bytes <= sizeof origin || payload.size() < sizeof origin) return;
    std::memcpy(&origin, payload.data(), sizeof origin);
    broken_->erase(entry.number);
    if (const Kept* const before = found_->book.record(entry.number)) {
        found_->older[entry.number].push_back(*before);
    }
    found_->book.keep(entry.number,
                      {.origin = {origin.ring_id, origin.lane, origin.epoch, origin.sequence},
                       .key = {origin.key_low, origin.key_high},
                       .tokens = origin.tokens,
                       .segment = found_->newest,
                       .offset = offset,
                       .bytes = line + padded(entry.payload_bytes)});
}

void EntryTaker::take_ring(std::span<const std::byte> payload) {
    RingHead head{};
    if (payload.size() < sizeof head || payload.size() > ring_bytes_max) return;
    std::memcpy(&head, payload.data(), sizeof head);
    const std::string text(reinterpret_cast<const char*>(payload.data() + sizeof head),
                           payload.size() - sizeof head);
    if (head.name_bytes > text.size()) return;
    found_->ring = {.id = head.ring_id,
                    .name = text.substr(0, head.name_bytes),
                    .sizes = text.substr(head.name_bytes)};
    Book& book = found_->book;
    const auto settled = found_->ring.size("settled_step");
    // A ring that was not restored from the one before it has steps of its own.
    const std::int64_t before = book.ring_id() == head.ring_id ? book.settled_step() : -1;
    const auto next_number = found_->ring.size("next_number");
    // Files are removed once their records are gone, the oldest first.
    if (found_->segments.size() == 1) found_->gone_below = next_number.value_or(0);
    book.go_on(next_number.value_or(1), found_->ring.size("next_batch").value_or(1),
               settled ? std::max(before, static_cast<std::int64_t>(*settled)) : before);
    book.enter_ring(head.ring_id);
}

void EntryTaker::take_numbers(const EntryHeader& entry, std::span<const std::byte> payload) {
    const Kind kind = kind_of(entry);
    std::vector<std::uint64_t> numbers(payload.size() / sizeof(std::uint64_t));
    if (!numbers.empty()) {
        std::memcpy(numbers.data(), payload.data(), numbers.size() * sizeof(std::uint64_t));
    }
    if (kind == Kind::acked) found_->book.ack(entry.number, entry.step, numbers);
    if (kind == Kind::gone) {
        static_cast<void>(found_->book.forget(numbers));
        found_->book.settle_step(entry.step);
        found_->gone.insert(numbers.begin(), numbers.end());
        for (const std::uint64_t number : numbers) broken_->erase(number);
    }
    if (kind == Kind::again) found_->book.give_again(numbers);
}

}  // namespace rollring::ledger
