#pragma once
// Keys of a line that may mean a field of ours and are not among its names.

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/json_value.hpp"
#include "cli/formats/parsed_record.hpp"

namespace rollring::cli {

// Whether this key has the reward of a line without `reward`.
bool is_score(std::span<const JsonMember> members, std::string_view key, JsonValue value);

// Collects the keys of many records, and reports once for each that it may mean a field.
class KeyWatch {
  public:
    // A key that is the name of no field and no column.
    void see(std::string_view key);
    // The record's reward is its score.
    void see_score() { score_ = true; }
    // All keys of this record have been seen, and its fields are filled.
    void judge(std::span<const JsonMember> members, const ParsedRecord& record);
    // For people; empty if there is nothing to report.
    [[nodiscard]] std::string text() const;

  private:
    std::set<std::string, std::less<>> seen_;
    std::vector<std::string> fresh_;  // of the record that is still being judged
    std::vector<std::string> told_;   // "'scores' (did you mean 'reward'?)"
    bool score_ = false;
};

}  // namespace rollring::cli
