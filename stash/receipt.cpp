#include "receipt.hpp"

#include <fmt/core.h>

#include <cstring>
#include <map>
#include <tuple>

namespace rollring {
namespace {

constexpr std::uint64_t receipt_magic = 0x3154504352'4c4c52;  // "RLLRCPT1"

// A receipt is this head and one entry for each record; in native byte order, because it stays on
// one machine.
struct ReceiptHead {
    std::uint64_t magic;
    std::uint64_t ring_id;
    std::uint64_t count;
    std::uint64_t reserved;
};
static_assert(sizeof(ReceiptHead) == 32 && sizeof(ReceiptEntry) == 32);

using Identity = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;

Identity identity_of(const Frame& frame) {
    return {frame.lane, frame.epoch, frame.sequence};
}
Identity identity_of(const ReceiptEntry& entry) {
    return {entry.producer_lane, entry.producer_epoch, entry.sequence};
}

}  // namespace

std::string write_receipt(std::span<const ReceiptEntry> entries, std::uint64_t ring_id) {
    const ReceiptHead head{receipt_magic, ring_id, entries.size(), 0};
    std::string bytes(sizeof head + entries.size_bytes(), '\0');
    std::memcpy(bytes.data(), &head, sizeof head);
    if (!entries.empty()) {
        std::memcpy(bytes.data() + sizeof head, entries.data(), entries.size_bytes());
    }
    return bytes;
}

Result<Receipt> read_receipt(std::string_view receipt) {
    ReceiptHead head{};
    if (receipt.size() >= sizeof head) std::memcpy(&head, receipt.data(), sizeof head);
    if (head.magic != receipt_magic || (receipt.size() - sizeof head) % sizeof(ReceiptEntry) != 0 ||
        head.count != (receipt.size() - sizeof head) / sizeof(ReceiptEntry)) {
        return refused(Errc::invalid_argument,
                       fmt::format("these {} bytes are not a receipt of a batch", receipt.size()));
    }
    std::vector<ReceiptEntry> entries(head.count);
    std::memcpy(entries.data(), receipt.data() + sizeof head, receipt.size() - sizeof head);
    return Receipt{head.ring_id, std::move(entries)};
}

std::vector<RecordRef> find_unreleased(std::span<const ReceiptEntry> entries,
                                       const ProducerRoster& roster) {
    std::vector<RecordRef> found;
    std::map<Identity, bool> elsewhere;
    RecordRef ref{};
    Frame frame;
    for (const ReceiptEntry& entry : entries) {
        const auto& feeds = roster.feeds();
        // Positions never repeat: an unreleased record at this position is the one, regardless of
        // its frame.
        const bool here = entry.lane < feeds.size() && feeds[entry.lane] &&
                          feeds[entry.lane]->undelivered(entry.position, ref, frame);
        if (here) {
            found.push_back(ref);
        } else {
            elsewhere.emplace(identity_of(entry), true);
        }
    }
    // Records that were nacked, and then moved to the spill before the trainer died.
    const auto& spilled = roster.feeds().back();
    for (std::uint64_t at = spilled ? spilled->oldest_position() : 0;
         spilled && !elsewhere.empty() && spilled->frame_at(at, frame); at += frame.bytes) {
        if (!is_record(frame)) continue;
        if (!spilled->undelivered(at, ref, frame)) continue;
        if (elsewhere.erase(identity_of(frame)) != 0) found.push_back(ref);
    }
    return found;
}

}  // namespace rollring
