// Compares an existing ring with the options of a process that would have made it.

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "human.hpp"
#include "ring_map.hpp"
#include "rollring/ring.hpp"
#include "round_up.hpp"

namespace rollring {
namespace {

// Finds the first option that differs, in the order of the calls.
class Comparison {
  public:
    explicit Comparison(std::string_view ring) : ring_(ring) {}

    void count(std::string_view option, std::optional<std::uint32_t> wanted, std::uint64_t there) {
        if (wanted && *wanted != there) {
            differs(option, std::to_string(*wanted), std::to_string(there));
        }
    }
    // Rounded up in the same way as when the ring was made.
    void bytes(std::string_view option, std::optional<std::uint64_t> wanted, std::uint64_t there,
               std::uint64_t unit = page_bytes) {
        if (wanted && (*wanted > lane_bytes_max || round_up(*wanted, unit) != there)) {
            differs(option, human_bytes(*wanted), human_bytes(there));
        }
    }
    void differs(std::string_view option, std::string_view wanted, std::string_view there) {
        if (!problem_.empty()) return;
        problem_ = fmt::format(
            "ring {} exists with other options: {} is {}, and this call asks for {}. Remove it "
            "('rollring rm {}'), use another name, or leave that option out",
            ring_, option, there, wanted, ring_);
    }
    [[nodiscard]] Result<void> result() const {
        if (problem_.empty()) return {};
        return refused(Errc::already_exists, problem_);
    }

  private:
    std::string ring_;
    std::string problem_;
};

std::string text_of(const Column& column) {
    std::string dims;
    for (const std::uint32_t length : column.dims) {
        dims += (dims.empty() ? " of dims [" : ", ") + std::to_string(length);
    }
    return column.dtype.to_string() + (column.per == Per::token ? " a token" : " a record") + dims +
           (dims.empty() ? "" : "]");
}

void compare_columns(const Schema& wanted, const Schema& there, Comparison& found) {
    for (const Column& column : wanted.columns()) {
        const auto index = there.find(column.name);
        const std::string option = fmt::format("column '{}'", column.name);
        if (!index) {
            found.differs(option, text_of(column), "not in its schema");
        } else if (const Column& its = there.columns()[*index];
                   its.dtype != column.dtype || its.per != column.per || its.dims != column.dims) {
            found.differs(option, text_of(column), text_of(its));
        }
    }
    for (const Column& column : there.columns()) {
        if (!wanted.find(column.name)) {
            found.differs(fmt::format("column '{}'", column.name), "none of that name",
                          text_of(column));
        }
    }
}

// The directory of its overflow file.
std::string overflow_dir_of(const RingMap& map) {
    return std::filesystem::path(map.segment().overflow_path()).parent_path().string();
}

bool same_folder(const std::string& a, const std::string& b) {
    std::error_code unknown;
    return a == b || std::filesystem::equivalent(a, b, unknown);
}

void compare_ledgers(const RingExpectation& wanted, const LedgerPlan& there, Comparison& found) {
    const auto shown = [](const std::string& text) { return text.empty() ? "none" : text; };
    if (wanted.ledger_dir && !same_folder(*wanted.ledger_dir, there.directory)) {
        found.differs("ledger", shown(*wanted.ledger_dir), shown(there.directory));
    }
    if (there.directory.empty()) return;
    found.bytes("ledger_bytes", wanted.ledger_bytes, there.bytes);
    if (wanted.durable && *wanted.durable != there.durable) {
        found.differs("durable", std::string(name(*wanted.durable)),
                      std::string(name(there.durable)));
    }
}

}  // namespace

Result<void> expect_ring(std::string_view name, const RingExpectation& wanted) {
    auto map = RingMap::attach(name, Deadline::after_ms(5'000), Access::read_only);
    if (!map) return std::unexpected(map.error());
    const Geometry& there = map->geometry();
    Comparison found(name);
    found.count("lanes", wanted.lanes, there.lane_count);
    found.bytes("lane_bytes", wanted.lane_bytes, there.lane_bytes);
    if (wanted.soft_bytes.value_or(0) != 0) {  // 0: any choice
        const std::uint64_t most = std::min(*wanted.soft_bytes, there.lane_bytes);
        found.bytes("soft_bytes", most, there.soft_bytes, line_bytes);
    }
    found.count("journal_records", wanted.journal_records, there.journal_records);
    found.bytes("spill_bytes", wanted.spill_bytes, there.spill_bytes);
    if (wanted.overflow_dir) {
        const std::string its = overflow_dir_of(*map);
        if (!same_folder(*wanted.overflow_dir, its)) {
            found.differs("overflow_dir",
                          wanted.overflow_dir->empty() ? "none" : *wanted.overflow_dir,
                          its.empty() ? "none" : its);
        }
    }
    found.bytes("overflow_bytes", wanted.overflow_bytes, there.overflow_bytes);
    found.count("group_rows", wanted.group_rows, there.group_rows);
    const SegmentHeader& header = map->segment().header();
    found.count("requests", wanted.requests, header.requests);
    if (header.requests != 0) {
        found.bytes("request_bytes", wanted.request_bytes, header.request_bytes);
    }
    compare_ledgers(wanted, map->segment().ledger(), found);
    if (wanted.schema) compare_columns(*wanted.schema, map->schema(), found);
    return found.result();
}

}  // namespace rollring
