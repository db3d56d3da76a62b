// Receipts of batches that a checkpoint has: their records leave the ring without another lease.

#include <algorithm>
#include <vector>

#include "receipt.hpp"
#include "stash_impl.hpp"
#include "turn.hpp"

namespace rollring {

Result<std::uint64_t> Stash::Impl::settle(std::string_view receipt, std::int64_t step) {
    if (auto usable = core.check_usable(); !usable) return std::unexpected(usable.error());
    if (polled) {
        return refused(Errc::invalid_argument,
                       "settle receipts before the first next(): their records may be in "
                       "another batch by now");
    }
    const auto named = read_receipt(receipt);
    if (!named) return std::unexpected(named.error());
    const bool ours = named->ring_id == core.map().ring_id();
    if (!ours && ledger == nullptr) {
        return refused(Errc::invalid_argument,
                       "the receipt belongs to another ring: this one was created later");
    }
    if (ledger != nullptr) {
        const auto settled = settle_in_ledger(*named);
        if (!settled || !ours) return settled;
    }
    const std::vector<RecordRef> found = find_unreleased(named->entries, core.roster());
    if (found.empty()) return std::uint64_t{0};
    // A batch that was leased later may have been acknowledged before.
    if (step >= 0) step = std::max(step, core.last_acked_step());
    if (auto checked = core.check_step(step); !checked) return std::unexpected(checked.error());
    // Their groups are finished, as after ack().
    const std::int64_t now = monotonic_ns();
    std::vector<GroupKey> keys;
    for (const RecordRef& one : found) {
        TrajectoryView view;
        if (!core.view(one, view)) continue;
        const GroupKey key = view.group_key();
        if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    }
    shown.prepare_tombstones(keys, now);
    auto released = core.release_all(found, step, false);
    if (!released) return std::unexpected(released.error());
    Turn turn(*this, now);
    for (const GroupKey& key : keys) turn.groups().note_over(key, now);
    turn.shows_account(true);
    return found.size();
}

}  // namespace rollring
