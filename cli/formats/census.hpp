#pragma once
// Which groups a file has, and their members: for records that do not number their repetition, or
// do not say how large their group is.

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace rollring::cli {

// What a record says of its group.
struct Membership {
    std::string instance_id;
    std::uint64_t visit = 0;
    std::optional<std::uint32_t> repetition;  // none: it is counted
    bool begins = true;                       // the first subsequence of its member
    bool sized = false;                       // it says its group_size
};

// Records come in the order of the file, whatever the order in which they are sent, so that a
// record has the same number in every process that reads the file.
class Census {
  public:
    // Returns the record's number: its own, or how many members its group had before.
    std::uint32_t take(std::uint64_t place, const Membership& record);

    // Of the record that was taken with this place; 0 for a line that is no record.
    [[nodiscard]] std::uint32_t number(std::uint64_t place) const;
    // Whether its group has members of both kinds: then a counted number may be another's own.
    [[nodiscard]] bool mixed(std::uint64_t place) const;
    // How many members each group has, of those that do not say it; nothing where the file does not
    // make it plain: the number differs, is 1, or the members' own numbers tell of others
    // elsewhere.
    [[nodiscard]] std::optional<std::uint32_t> common_size() const;
    // "3 to 8", of the same groups.
    [[nodiscard]] std::string sizes() const;
    [[nodiscard]] std::uint64_t unsized_groups() const;

  private:
    struct Group {
        std::uint32_t members = 0;
        std::uint32_t last = 0;     // number
        std::uint32_t highest = 0;  // number of its own
        bool own = false;           // has members that number themselves
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
    std::vector<Record> records_;                    // by place
    std::unordered_set<std::uint64_t> own_numbers_;  // group and number
};

}  // namespace rollring::cli
