#pragma once
// A publisher's words about its versions. Every write to the publisher page is here; other
// processes only read it.
//
// One version is open at a time. Part numbers continue from version to version, even if one was
// aborted half-way.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string_view>

#include "control_map.hpp"
#include "rollring/weights.hpp"

namespace rollring::weights {

class Publication {
  public:
    explicit Publication(const OwnControl& control) : page_(&control.publisher_to_write()) {}

    // --- for the thread that publishes ---
    // Opens the next publication, with this many parts.
    void begin(std::int64_t version, std::uint64_t parts);
    // Assigns this slot to the next part; returns the part's number.
    std::uint64_t place_part(std::uint32_t part, std::uint32_t slot);
    // All parts are on their way.
    void all_put();
    void commit();
    void abort(std::string_view why);
    // For a version that a predecessor has committed.
    void resume(std::int64_t version);
    // A committed version was sent again.
    void end_resent() { close(Outcome::committed, ""); }
    void show_why_not_direct(std::string_view why) { page_->why_not_direct.store(why); }
    void count_sync(const SyncTimes& times);
    void set_ranks_id(std::int64_t id) { store_release(page_->ranks_id, id); }
    void close_channel() { store_release(page_->closed, 1U); }

    [[nodiscard]] bool is_open() const { return open_; }
    [[nodiscard]] std::uint64_t number() const { return number_; }
    [[nodiscard]] std::int64_t version() const { return version_; }      // begun last
    [[nodiscard]] std::int64_t committed() const { return committed_; }  // -1: none
    [[nodiscard]] std::uint64_t next_part_number() const { return next_part_number_; }
    [[nodiscard]] bool is_all_put() const { return all_put_; }
    [[nodiscard]] bool is_filled() const { return observe(page_->filled) >= end_part_number_; }
    // When the part was filled that was filled last.
    [[nodiscard]] std::int64_t filled_ns() const { return filled_ns_; }
    [[nodiscard]] std::int64_t ranks_id() const { return observe(page_->ranks_id); }
    [[nodiscard]] std::uint64_t handles_passed() const { return observe(page_->handles_passed); }

    // Errors of waits that ended at their deadline.
    [[nodiscard]] std::unexpected<Error> silent(std::string_view stage, std::string_view who) const;
    [[nodiscard]] std::unexpected<Error> still_packing() const;

    // --- for the thread that admits ---
    // Shows a request to leave this version; returns its number.
    std::uint64_t ask_rollback(std::int64_t version);

    // --- for any thread ---
    [[nodiscard]] std::int64_t shown_version() const { return observe(page_->committed); }
    // The device has packed this part. Parts may come out of their order.
    void part_filled(std::uint64_t part_number);
    void count_handles(std::uint64_t handles) { add(page_->handles_passed, handles); }

  private:
    void close(Outcome outcome, std::string_view why);
    [[nodiscard]] PublicationLine& line() const {
        return page_->publications[number_ % publications_kept];
    }

    PublisherPage* page_;
    bool open_ = false;
    bool all_put_ = false;
    std::uint64_t number_ = 0;
    std::int64_t version_ = -1;
    std::int64_t committed_ = -1;
    std::uint64_t next_part_number_ = 0;
    std::uint64_t end_part_number_ = 0;

    std::mutex filled_mutex_;
    std::set<std::uint64_t> filled_ahead_;  // beyond the page's `filled`
    std::atomic<std::int64_t> filled_ns_ = 0;
};

}  // namespace rollring::weights
