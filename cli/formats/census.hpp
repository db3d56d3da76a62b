#pragma once
// The groups of a file, and their members: for records without a repetition number or without the
// size of their group.

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace rollring::cli {

// A record's statements about its group.
struct Membership {
    std::string instance_id;
    std::uint64_t visit = 0;
    std::optional<std::uint32_t> repetition;  // none: it is counted
    bool begins = true;                       // the first subsequence of its member
    bool sized = false;                       // it names its group_size
};

// Records come in the order of the file, and not in the order of sending, so that a record has the
// same number in every process that reads the file.
class Census {
  public:
    // Returns the record's number: its own, or the number of members that its group had before.
    std::uint32_t take(std::uint64_t place, const Membership& record);

    // The number of the record taken at this index; 0 for a line that is not a record.
    [[nodiscard]] std::uint32_t number(std::uint64_t place) const;
    // Whether its group has members of both kinds: a counted number may then equal another one's
    // own.
    [[nodiscard]] bool mixed(std::uint64_t place) const;
    // The number of members of each group that does not name it. Empty if the file leaves it open:
    // the number differs or is 1, or the members' own numbers point to others elsewhere.
    [[nodiscard]] std::optional<std::uint32_t> common_size() const;
    // "3 to 8", for the same groups.
    [[nodiscard]] std::string sizes() const;
    [[nodiscard]] std::uint64_t unsized_groups() const;

  private:
    struct Group {
        std::uint32_t members = 0;
        std::uint32_t last = 0;     // number
        std::uint32_t highest = 0;  // number of its own
        bool own = false;           // has members with numbers of their own
        bool counted = false;
        bool sized = false;
    };
    struct Record {
        std::uint32_t group;
        std::uint32_t number;
    };
    static constexpr std::uint32_t none = UINT32_MAX;

    std::unordered_map<std::string, std::uint32_t> by_name_;
    std::vector<Group> groups_;
    std::vector<Record> records_;                    // by index
    std::unordered_set<std::uint64_t> own_numbers_;  // group and number
};

}  // namespace rollring::cli
