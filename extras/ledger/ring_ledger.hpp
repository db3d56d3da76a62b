#pragma once
// The ledger of a living ring: the half of StashLedger that knows records and batches. The
// LogWriter knows the disk.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "book.hpp"
#include "ledger_scan.hpp"
#include "liveness.hpp"
#include "log_writer.hpp"
#include "stash_ledger.hpp"

namespace rollring::ledger {

class RingLedger : public StashLedger {
  public:
    static Result<std::unique_ptr<StashLedger>> open(LedgerRequest request);
    ~RingLedger() override;

    [[nodiscard]] bool may_cut() override;
    [[nodiscard]] bool takes() override {
        return log_.takes() || (!unread_.empty() && log_.takes_known());
    }
    void wait(Deadline deadline) override {
        empty_oldest_segment();
        log_.wait(deadline);
    }
    [[nodiscard]] bool read(const Record& record) override;
    void dropped(const Record& record) override;
    void end_turn() override;
    void begin_ack(std::span<const Record* const> records, std::int64_t step) override;
    [[nodiscard]] bool ack_is_over() override {
        return log_.has(ack_ticket_) || !log_.problem().empty();
    }
    [[nodiscard]] Result<void> end_ack(Deadline deadline) override;
    void ack_failed() override;
    [[nodiscard]] Result<std::uint64_t> settle(std::uint64_t ring_id,
                                               std::span<const RecordIdentity> records) override;
    [[nodiscard]] Result<std::uint64_t> settle_through(std::int64_t step) override;
    [[nodiscard]] Result<void> sync(Deadline deadline) override;
    [[nodiscard]] std::int64_t settled_step() const override { return book_.settled_step(); }
    [[nodiscard]] bool has_no_space() const override { return log_.has_no_space(); }
    [[nodiscard]] std::string problem() const override { return log_.problem(); }
    [[nodiscard]] std::string waits_for() const override { return log_.waits_for(); }

  private:
    RingLedger(ProcessFd locked, Contents contents, const LedgerRequest& request);
    [[nodiscard]] std::string so_far() const;
    [[nodiscard]] Identity identity_of(const Record& record) const {
        return {ring_id_, record.producer_lane, record.producer_epoch, record.sequence};
    }
    [[nodiscard]] bool may_mark();
    void append_record(const Record& record);
    void append_numbers(Kind kind, std::span<const std::uint64_t> numbers, std::uint64_t batch = 0,
                        std::int64_t step = recording::no_step);
    Result<std::uint64_t> forget(const std::vector<std::uint64_t>& numbers);
    void remove_empty_segments();
    // Moves some of its records, if it has few and room is scarce.
    void empty_oldest_segment();
    [[nodiscard]] Result<void> move_records(std::uint64_t segment,
                                            std::span<const std::uint64_t> numbers);
    void note_place(std::uint64_t number, Kept record, const Place& place);

    ProcessFd locked_;
    std::filesystem::path directory_;
    std::uint64_t ring_id_;
    bool waits_for_each_;  // Durable::record
    Book book_;
    std::deque<std::uint64_t> segments_;  // that hold, or held, a record
    std::vector<const Record*> read_;     // in this turn, and not in the ledger
    // Records of the ledger that the ring is to give, or to give again: a full ledger takes them,
    // as otherwise no batch could come of them, and nothing could make room.
    std::unordered_set<std::uint64_t> unread_;
    std::vector<Mark> marks_;               // one a lane
    std::function<bool()> moved_are_read_;  // empty once they are
    std::vector<std::uint64_t> gone_;
    std::vector<std::uint64_t> again_;
    std::vector<std::uint64_t> acked_;  // by the last begin_ack()
    std::uint64_t ack_ticket_ = 0;      // likewise
    std::uint64_t cut_ticket_ = 0;      // of the last record that was read
    std::uint64_t ticket_ = 0;
    std::uint64_t unmovable_ = 0;  // a segment of which a record could not be read
    LogWriter log_;
};

}  // namespace rollring::ledger
