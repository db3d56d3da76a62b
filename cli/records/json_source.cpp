#include <fmt/core.h>

#include "cli/formats/census.hpp"
#include "cli/formats/content.hpp"
#include "cli/formats/json_values.hpp"
#include "cli/formats/lines.hpp"
#include "cli/formats/rollring_json.hpp"
#include "integrations/atropos/atropos_json.hpp"

namespace rollring::cli {
namespace {

class JsonSource final : public RecordSource {
  public:
    JsonSource(Lines lines, Format format, const Selection& selection,
               const std::string& source_name, const std::string& run_id)
        : lines_(std::move(lines)),
          format_(format),
          line_bytes_max_(selection.line_bytes_max),
          visit_(selection.visit),
          group_size_(selection.group_size),
          skips_bad_(selection.skips_bad),
          source_name_(source_name),
          group_(run_id.empty() ? draw_run_id() : run_id) {
        look_at_first();
    }

    void use_schema(const Schema& schema) override { schema_ = schema; }

    Next next(Draft& draft) override {
        while (waiting_.empty() && problems_.empty()) {  // a batch may have no group
            if (!lines_.next(line_)) return lines_.problem().empty() ? Next::end : Next::failed;
            try {
                read_line();
            } catch (const BadRecord& error) {
                problem_ = error.what();
                return Next::bad;
            }
        }
        if (problems_.empty()) return hand_out(draft);
        problem_ = problems_.front();
        problems_ = problems_.subspan(1);
        return Next::bad;
    }

    // A line of our format is one record. One of Atropos has its whole group: setting that aside
    // gains nothing.
    [[nodiscard]] std::optional<Bookmark> bookmark() const override {
        return format_ == Format::rollring ? lines_.bookmark() : std::nullopt;
    }
    Next again(const Bookmark& bookmark, Draft& draft) override {
        if (!lines_.again(bookmark, line_)) return Next::failed;
        try {
            read_line();
        } catch (const BadRecord& error) {  // the file has changed since
            problem_ = error.what();
            return Next::bad;
        }
        return hand_out(draft);
    }

    [[nodiscard]] std::string where() const override {
        if (!lines_.listed()) return fmt::format("{}:{}", lines_.path(), line_.number);
        return fmt::format("{}:{}: element {} of the list", lines_.path(), line_.number,
                           line_.place + 1);
    }
    [[nodiscard]] std::string problem() const override {
        return lines_.problem().empty() ? fmt::format("{}: {}", where(), problem_)
                                        : lines_.problem();
    }
    [[nodiscard]] std::optional<double> progress() const override { return lines_.progress(); }
    [[nodiscard]] std::optional<std::uint64_t> total() const override {
        return format_ == Format::rollring ? lines_.total() : std::nullopt;
    }
    [[nodiscard]] std::vector<std::string> remarks() const override {
        std::vector<std::string> all;
        for (const std::string& said : {size_remark(), keys_.text()}) {
            if (!said.empty()) all.push_back(fmt::format("{}: {}", lines_.path(), said));
        }
        return all;
    }

  private:
    [[nodiscard]] std::string size_remark() const;

    // So that size_remark() knows the usual contents of a first line before anything is sent.
    void look_at_first() {
        if (format_ != Format::rollring || lines_.streamed()) return;
        Line line;
        try {
            if (!lines_.at(0, line) || line.too_long) return;
            const Membership first = membership_of(parse_json(line.text));
            if (!first.repetition || wants_size(first.sized)) count_all();
        } catch (const BadRecord&) {
            return;  // reported when the line is read
        }
    }

    [[nodiscard]] bool wants_size(bool sized) const { return !sized && group_size_ == 0; }

    // Reads the whole file once, before any record is sent that needs its counts.
    void count_all() {
        if (counted_ || lines_.streamed()) return;
        counted_ = true;
        Line line;
        for (std::uint64_t place = 0; place < lines_.count(); place++) {
            if (!lines_.at(place, line)) continue;
            if (line.too_long) {
                has_bad_ = true;
                continue;
            }
            try {
                census_.take(place, membership_of(parse_json(line.text)));
            } catch (const BadRecord&) {
                has_bad_ = true;  // reported when the line is read
            }
        }
        common_size_ = census_.common_size().value_or(0);
    }

    // Adds facts that the line itself lacks. Members from a pipe stay without a number.
    void complete(const Membership& its) {
        const bool wanted = wants_size(its.sized);
        if (!its.sized) record_.meta.group_size = group_size_;
        unsized_stream_ |= wanted && lines_.streamed();
        const bool counted = !record_.meta.repetition_id.has_value();
        if (lines_.streamed() || (!counted && !wanted)) return;
        count_all();
        if (wanted) record_.meta.group_size = common_size_;
        if (!counted) return;
        if (census_.mixed(line_.place)) {
            bad("repetition_id",
                "is missing, and other members of its group have one: number all members of a "
                "group, or none");
        }
        record_.meta.repetition_id = census_.number(line_.place);
    }
    Next hand_out(Draft& draft) {
        ParsedRecord& record = waiting_.front();
        waiting_ = waiting_.subspan(1);
        record.meta.visit += visit_ + line_.pass;
        if (!source_name_.empty() && !record.has(Std::source)) {
            record.set_text(Std::source, source_name_);
        }
        record.fill(draft);
        return Next::record;
    }

    [[nodiscard]] JsonValue parsed_line() const {
        try {
            return parse_json(line_.text);
        } catch (const BadRecord& error) {
            if (begins_as_json(line_.text)) throw;
            throw BadRecord(
                fmt::format("{}; a record is an object: `rollring formats` shows the "
                            "accepted files",
                            error.what()));
        }
    }

    void read_line() {
        if (line_.too_long) {
            throw BadRecord("longer than " + bytes_text(line_bytes_max_) +
                            ": raise --max-line to accept it");
        }
        const JsonValue line = parsed_line();
        if (format_ == Format::atropos) {
            group_.parse(line, schema_, line_.number);
            waiting_ = group_.members();
            problems_ = group_.problems();
        } else {
            parse_rollring(line, schema_, record_, &keys_);
            if (!record_.meta.repetition_id.has_value() || record_.meta.group_size == 0) {
                complete(membership_of(line));
            }
            waiting_ = {&record_, 1};
        }
    }

    Lines lines_;
    Format format_;
    std::uint64_t line_bytes_max_;
    std::uint64_t visit_;
    std::uint32_t group_size_;
    bool skips_bad_;
    std::string source_name_;
    Schema schema_ = Schema::standard();
    Line line_;
    AtroposLine group_;
    ParsedRecord record_;
    std::span<ParsedRecord> waiting_;        // the line's records, not handed out yet
    std::span<const std::string> problems_;  // of the line's groups, not reported yet
    std::string problem_;
    KeyWatch keys_;
    Census census_;
    bool counted_ = false;
    bool has_bad_ = false;
    bool unsized_stream_ = false;
    std::uint32_t common_size_ = 0;  // of groups whose records name none
};

std::string JsonSource::size_remark() const {
    if (unsized_stream_) {
        return "group_size is not given, and members of a pipe cannot be counted: the trainer's "
               "default applies; give --group-size";
    }
    if (!counted_ || group_size_ != 0 || census_.unsized_groups() == 0) return {};
    if (common_size_ != 0) {
        return fmt::format("group_size is not given; every group has {} members, so it is {}",
                           common_size_, common_size_);
    }
    // The members that are counted may not be all of a group.
    if (has_bad_ && !skips_bad_) {
        return "group_size is not given, and a bad line keeps members from being counted: give "
               "--group-size, or group_size in each record";
    }
    return fmt::format(
        "group_size is not given, and the size of the groups in it is {}: give --group-size, or "
        "group_size in each record",
        census_.sizes());
}

}  // namespace

Result<std::unique_ptr<RecordSource>> open_json_source(const std::string& path, Format format,
                                                       const Selection& selection,
                                                       const std::string& source_name,
                                                       const std::string& run_id) {
    auto lines = Lines::open(path, selection, format == Format::atropos);
    if (!lines) return std::unexpected(lines.error());
    return std::make_unique<JsonSource>(std::move(*lines), format, selection, source_name, run_id);
}

}  // namespace rollring::cli
