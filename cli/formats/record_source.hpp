#pragma once
// The source of records: a file of JSON lines, or a generator. One interface for both.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/quantity.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::cli {

enum class Next {
    record,  // the draft is filled
    end,     // no more records
    bad,     // not a record: problem() has the reason; the next call continues behind it
    failed,  // the input cannot be read: problem() has the reason
};

// A record that was handed out, to be read again.
struct Bookmark {
    std::uint64_t at;
    std::uint64_t pass;
};

class RecordSource {
  public:
    RecordSource() = default;
    RecordSource(const RecordSource&) = delete;
    RecordSource& operator=(const RecordSource&) = delete;
    virtual ~RecordSource() = default;

    // The ring's columns, which lines may then name; before the first next().
    virtual void use_schema(const Schema& /*schema*/) {}
    // The draft's spans are valid until the next call.
    virtual Next next(Draft& draft) = 0;
    // A bookmark of the last record of next(); empty if it cannot be read again, because it came
    // from a pipe or with others in a line.
    [[nodiscard]] virtual std::optional<Bookmark> bookmark() const { return std::nullopt; }
    // Reads that record again, without an effect on next().
    virtual Next again(const Bookmark& /*bookmark*/, Draft& /*draft*/) { return Next::failed; }
    // Takes the last record of next() back for later, because its group may not be opened yet.
    // False if it cannot: then the sender waits.
    [[nodiscard]] virtual bool put_back() { return false; }
    // The origin of the last record or bad line: "FILE:LINE".
    [[nodiscard]] virtual std::string where() const = 0;
    [[nodiscard]] virtual std::string problem() const = 0;
    // The progress, from 0 to 1; empty if the end is unknown.
    [[nodiscard]] virtual std::optional<double> progress() const = 0;
    // Records of all shards and passes, if that is known without reading them.
    [[nodiscard]] virtual std::optional<std::uint64_t> total() const = 0;
    // Sentences for people: assumptions about unstated facts in the records so far.
    [[nodiscard]] virtual std::vector<std::string> remarks() const { return {}; }
};

enum class Format { rollring, atropos };

// The part of the input to read, and its order.
struct Selection {
    std::optional<std::uint64_t> shuffle = {};  // seed
    std::uint64_t repeat = 1;                   // passes; `visit` grows by one in each
    std::uint64_t visit = 0;                    // added to that of every record
    Shard shard = {};
    std::uint64_t line_bytes_max = std::uint64_t{512} << 20;  // a longer line is a bad one
    std::uint32_t group_size = 0;  // of records that name none; 0: it is counted
    bool skips_bad = false;        // the caller goes on behind a bad line
};

struct SyntheticSpec {
    std::uint64_t groups = 1000;
    std::uint32_t group_size = 8;
    std::uint32_t tokens_min = 2048;
    std::uint32_t tokens_max = 32768;
    std::uint32_t layers = 0;  // 0: no routed experts
    std::uint32_t experts_per_token = 0;
    std::uint32_t experts = 128;  // up to 256 of them fit into u8, more need u16
    std::uint64_t seed = 1;
};

// "groups=1000,group-size=8,tokens=2048:32768,routed-experts=48x8,experts=128,seed=1"; all have
// defaults. On failure `problem` names the wrong part.
std::optional<SyntheticSpec> parse_synthetic(std::string_view text, std::string& problem);

std::unique_ptr<RecordSource> make_synthetic(const SyntheticSpec& spec, const Selection& selection,
                                             const std::string& source_name);

// `source_name` is for records that do not name their source; `run_id` is for the keys of groups
// without one (atropos_json.hpp), and random if it is empty. Path "-" is standard input.
Result<std::unique_ptr<RecordSource>> open_json_source(const std::string& path, Format format,
                                                       const Selection& selection,
                                                       const std::string& source_name,
                                                       const std::string& run_id = {});

}  // namespace rollring::cli
