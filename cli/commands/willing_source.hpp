#pragma once
// A source of records that first hands out those that may be sent: records of groups that may not
// be opened yet are set aside, and read again once they may. So a producer that shares a window of
// groups with others does not wait for one of them while it has members of another at hand
// (docs/progress.md).

#include <deque>
#include <functional>
#include <list>
#include <string>
#include <unordered_map>

#include "cli/formats/record_source.hpp"
#include "rollring/producer.hpp"

namespace rollring::cli {

struct GroupWanted {
    std::string instance_id;
    std::uint64_t visit = 0;
    GroupPlan plan;  // by its first record
};

class WillingSource final : public RecordSource {
  public:
    // The group of a draft's record; and whether that group is open, or is opened by the call.
    using Describe = std::function<GroupWanted(const Draft& draft)>;
    using MaySend = std::function<bool(const GroupWanted& group)>;
    WillingSource(RecordSource& source, Describe describe, MaySend may_send)
        : source_(&source), describe_(std::move(describe)), may_send_(std::move(may_send)) {}

    // With nothing else left, returns a record that must wait. Its sender waits for a moment and
    // puts it back, because by then others may have opened a group with more records here.
    Next next(Draft& draft) override;
    [[nodiscard]] bool put_back() override;
    [[nodiscard]] std::string where() const override { return source_->where(); }
    [[nodiscard]] std::string problem() const override { return source_->problem(); }
    [[nodiscard]] std::optional<double> progress() const override { return source_->progress(); }
    [[nodiscard]] std::optional<std::uint64_t> total() const override { return source_->total(); }
    void use_schema(const Schema& schema) override { source_->use_schema(schema); }

  private:
    struct Group {
        GroupWanted wanted;
        std::string name;
        std::deque<Bookmark> records;
    };
    bool set_aside(GroupWanted wanted, std::string name);
    Next next_of_open(Draft& draft);
    Next take(std::list<Group>::iterator group, Draft& draft);
    std::list<Group>::iterator find_willing();

    RecordSource* source_;
    Describe describe_;
    MaySend may_send_;
    std::list<Group> aside_;  // oldest first
    std::unordered_map<std::string, std::list<Group>::iterator> by_name_;
    std::list<Group>::iterator look_ = aside_.end();  // the next one to ask about
    Group open_;                                      // was set aside, and is being sent
    std::optional<Bookmark> given_;                   // the record of it that was handed out
    std::size_t count_ = 0;
    bool ended_ = false;
};

}  // namespace rollring::cli
