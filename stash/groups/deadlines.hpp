#pragma once
// The deadlines of incomplete groups. A list by age keeps nearly all of them in order, at no cost;
// a heap has the exceptions.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "group.hpp"

namespace rollring {

class Deadlines {
  public:
    // The slab must outlive this object.
    Deadlines(Slab<Group>& groups, std::int64_t deadline_ns)
        : groups_(&groups), by_age_(groups), deadline_ns_(deadline_ns) {}

    [[nodiscard]] const AgeList& by_age() const { return by_age_; }

    // Adds a group, which is open from its `opened_ns` on.
    void enter(std::uint32_t index);
    // Removes a finished group.
    void leave(std::uint32_t index);
    // Gives a group a deadline that does not follow from its age.
    void set(std::uint32_t index, std::int64_t due_ns);
    // Corrects the age of a group that was already open under a predecessor.
    void note_opened(std::uint32_t index, std::int64_t opened_ns);
    // An open group whose deadline has passed; each is returned once. Group::none: there is none.
    [[nodiscard]] std::uint32_t take_due(std::int64_t now_ns);
    // Groups that are ready with a part of their members, because of their deadline; the caller
    // empties the list.
    [[nodiscard]] std::vector<std::uint32_t>& partial() { return partial_; }
    // A group stays open past its deadline.
    void note_overdue() { any_overdue_ = true; }
    // Whether groups may be open past their deadline, and how many are.
    [[nodiscard]] bool any_overdue() const { return any_overdue_; }
    [[nodiscard]] std::size_t count_overdue();
    // The oldest groups that wait for members, at most `count`.
    [[nodiscard]] std::vector<std::uint32_t> oldest_open(std::size_t count) const;

  private:
    struct Due {
        std::int64_t at_ns;  // void if it is not the group's due_ns
        std::uint32_t index;
        [[nodiscard]] bool operator>(const Due& other) const { return at_ns > other.at_ns; }
    };
    [[nodiscard]] bool is_due(std::uint32_t index, std::int64_t now_ns) const {
        const Group& group = (*groups_)[index];
        return group.state == GroupState::open && group.due_ns <= now_ns;
    }

    Slab<Group>* groups_;
    AgeList by_age_;
    std::int64_t deadline_ns_;
    std::uint32_t next_ = Group::none;  // in the list: the first whose deadline has not passed
    std::int64_t newest_ns_ = std::numeric_limits<std::int64_t>::min();
    // Groups whose deadline does not follow the order of the list; the earliest in front.
    std::vector<Due> heap_;
    std::vector<std::uint32_t> partial_;
    bool any_overdue_ = false;
};

}  // namespace rollring
