#pragma once
// `--format atropos`: the JSON that stock Atropos writes, sends and returns, one record for each
// member.
//
// A line is a ScoredDataGroup (a line of its data_path_to_save_groups, the body of /scored_data), a
// ScoredDataItem (a group of one), a list of groups (the body of /scored_data_list), or
// {"batch": [...]} (the answer of /batch). Of a group:
//
//   tokens -> token_ids      masks -> loss_mask, and labels where a mask is neither the token's id
//   scores -> reward                  nor -100; the leading -100s count as n_prompt
//   env_id -> source_id      inference_logprobs -> logprobs
//   advantages, ref_logprobs, messages, overrides: the columns of that name
//   distill_token_ids, distill_logprobs -> topk_ids, topk_logprobs
//   a column of the ring's schema: by its name, a list with one entry a member
//   generation_params, group_overrides: on every member
//   images, and the rest of the line (unknown keys, nulls): on member 0, in images and extra
//
// The key of a group is its "instance_id" if it has one. Otherwise it is generated:
// "atropos/<env_id or 0>/<run>/<line>", and "/<index>" in a list. Two producers never generate the
// same key, nor do two runs over one file.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cli/formats/json_value.hpp"
#include "cli/formats/parsed_record.hpp"

namespace rollring::cli {

// A random 64-bit run ID for generated keys.
std::string draw_run_id();

// A line taken apart into one record a member.
class AtroposLine {
  public:
    // A column by token with more or fewer entries than tokens is refused, or kept unchanged in
    // `extra`, because Atropos' server accepts it, and some of its environments send it.
    enum class Uneven : std::uint8_t { refused, kept };
    explicit AtroposLine(std::string run_id, Uneven uneven = Uneven::refused)
        : run_id_(std::move(run_id)), uneven_(uneven) {}

    // Throws BadRecord with the key and its fault; the line then has no members. A bad group of a
    // list costs no other: it is among the problems. The line must live as long as the members are
    // used.
    void parse(JsonValue line, const Schema& schema, std::uint64_t line_number);
    [[nodiscard]] std::span<ParsedRecord> members() { return std::span(records_).first(count_); }
    [[nodiscard]] std::span<const std::string> problems() const { return problems_; }

  private:
    std::string run_id_;
    Uneven uneven_;
    std::size_t count_ = 0;
    std::vector<ParsedRecord> records_;  // the first count_ of them; kept for their memory
    std::vector<std::string> problems_;
};

// Assembles the members of groups, which may come in any order. Each subsequence of a member is an
// entry of its own: Atropos' groups have no other form for it.
class AtroposGroups {
  public:
    // Absent values: the key is left out, or null, as Atropos' server answers.
    enum class Absent : std::uint8_t { left_out, null };
    explicit AtroposGroups(Absent absent = Absent::left_out) : absent_(absent) {}

    // Appends the line of each group that this record completes. Returns the columns whose JSON was
    // invalid and was written as a string; empty if none.
    std::string add(const TrajectoryView& record, const Schema& schema, std::string& out);
    // Appends the rest, in the order of arrival; returns the number of incomplete groups.
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
        std::pair<std::uint32_t, std::uint16_t> place;  // repetition_id, subsequence_index
        bool last = true;                               // of its repetition's subsequences
        std::array<std::optional<std::string>, field_count> fields;
        std::map<std::string, std::string> custom;  // columns of the schema, by name
    };
    struct Group {
        std::uint64_t arrival = 0;
        std::uint32_t group_size = 0;
        bool item = false;  // one member, not in lists
        std::optional<std::int64_t> env_id;
        std::optional<std::string> generation_params, group_overrides, images;
        std::string extra;
        std::vector<Member> members;
    };
    struct HashKey {
        std::size_t operator()(const GroupKey& key) const { return key.low; }
    };

    static Member read_member(const TrajectoryView& record, const Schema& schema,
                              std::string& blamed);
    void write(Group& group, std::string& out) const;

    Absent absent_;
    std::unordered_multimap<GroupKey, Group, HashKey> open_;
    std::uint64_t arrivals_ = 0;
};

}  // namespace rollring::cli
