#pragma once
// What an engine has in its memory, as far as its subscriber knows: a version whole, nothing yet,
// or a mixture.

#include <cstdint>
#include <string>

#include "rollring/weights.hpp"

namespace rollring::weights {

class Holding {
  public:
    explicit Holding(std::int64_t held_version) : live_version_(held_version) {}

    [[nodiscard]] SubscriberState state() const { return state_; }
    [[nodiscard]] std::int64_t live_version() const { return live_version_; }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    // Parts of two versions, or of one that may never be committed.
    [[nodiscard]] bool is_mixed() const {
        return state_ == SubscriberState::poisoned || being_written_;
    }
    // "this subscriber holds version 7 whole"
    [[nodiscard]] std::string text() const;

    void set(SubscriberState state) { state_ = state; }
    // A version on its way in may be in the engine's memory from here on, in part.
    void touch() { being_written_ = true; }
    // It is not on its way any more. `problem`: why it did not come.
    void give_up(std::string problem);
    void adopt(std::int64_t version);

  private:
    SubscriberState state_ = SubscriberState::ready;
    std::int64_t live_version_;
    bool being_written_ = false;
    std::string problem_;
};

}  // namespace rollring::weights
