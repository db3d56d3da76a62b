#pragma once
// Engines that cannot take versions and have no seat to say so from: they could not attach, or were
// asked for a version without being attached. Their reasons stay until the next version is begun.

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "control_map.hpp"

namespace rollring::weights {

// For the publisher's threads.
class Refusals {
  public:
    explicit Refusals(const OwnControl& control) : page_(&control.refusals()) {}

    // The last one of a name counts.
    void note(std::string_view name, std::uint32_t pid, std::string_view why);
    // It has attached after all.
    void forget(std::string_view name);
    void clear();
    // "; 'engine' refused: ..." for each; empty if there is none.
    [[nodiscard]] std::string text() const;

  private:
    [[nodiscard]] RefusalLine* line_of(std::string_view name) const;

    RefusalsPage* page_;
    mutable std::mutex mutex_;
    std::uint64_t noted_ = 0;
};

}  // namespace rollring::weights
