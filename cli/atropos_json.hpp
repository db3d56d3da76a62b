#pragma once
// `--format atropos`: one ScoredDataGroup a line, one record for each of its members.
//
//   tokens -> token_ids         masks -> loss_mask, and labels where a mask is neither the token's
//   id scores -> reward                     nor -100; the leading -100s count as n_prompt env_id ->
//   source_id         inference_logprobs -> logprobs advantages, ref_logprobs, messages, overrides:
//   the columns of that name distill_token_ids, distill_logprobs -> topk_ids, topk_logprobs
//   generation_params, group_overrides: on every member
//   images, and the rest of the line (unknown keys, nulls): on member 0, in images and extra
//
// The key of a group is its "instance_id" if it has one, else "atropos/<env_id or 0>/<line>".

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/json_text.hpp"
#include "cli/parsed_record.hpp"

namespace rollring::cli {

// A line taken apart into one record a member.
class AtroposGroup {
  public:
    // Throws BadRecord with the key and what is wrong with it; the group then has no members.
    void parse(Json line, std::uint64_t line_number);
    [[nodiscard]] std::span<ParsedRecord> members() { return std::span(records_).first(count_); }

  private:
    [[nodiscard]] const Json* list(std::string_view key) const;
    void keep_rest();
    void read_member(std::uint32_t index, ParsedRecord& record) const;
    void read_lists(std::uint32_t index, ParsedRecord& record) const;

    Json line_;
    std::string instance_id_;
    std::optional<std::int64_t> env_id_;
    std::uint32_t count_ = 0;
    Json extra_;
    std::vector<ParsedRecord> records_;  // the first count_ of them; kept for their memory
};

// Puts the members of groups together again, in whatever order they come.
class AtroposGroups {
  public:
    // Appends the line of each group that this record completes.
    void add(const TrajectoryView& record, std::string& out);
    // Appends what is left, in the order of coming; returns how many groups were not complete.
    std::uint64_t finish(std::string& out);

  private:
    enum Field : std::uint8_t {
        tokens,
        masks,
        scores,
        advantages,
        ref_logprobs,
        messages,
        inference_logprobs,
        overrides,
        distill_token_ids,
        distill_logprobs,
        field_count,
    };
    struct Member {
        std::uint32_t repetition_id = 0;
        std::array<std::optional<std::string>, field_count> fields;
    };
    struct Group {
        std::uint64_t arrival = 0;
        std::uint32_t group_size = 0;
        std::optional<std::int64_t> env_id;
        std::optional<std::string> generation_params, group_overrides, images;
        std::string extra;
        std::vector<Member> members;
    };
    struct HashKey {
        std::size_t operator()(const GroupKey& key) const { return key.low; }
    };

    static Member read_member(const TrajectoryView& record);
    static void write(Group& group, std::string& out);

    std::unordered_multimap<GroupKey, Group, HashKey> open_;
    std::uint64_t arrivals_ = 0;
};

}  // namespace rollring::cli
