#include <fmt/format.h>

#include "cli/formats/atropos_json.hpp"
#include "cli/formats/lines.hpp"
#include "cli/formats/rollring_json.hpp"

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
          source_name_(source_name),
          group_(run_id.empty() ? draw_run_id() : run_id) {}

    void use_schema(const Schema& schema) override { schema_ = schema; }

    Next next(Draft& draft) override {
        while (waiting_.empty() && problems_.empty()) {  // a batch may hold no group
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

    // A line of our format is one record. One of Atropos' has all of its group: nothing is gained
    // by setting that aside.
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
        return fmt::format("{}:{}", lines_.path(), line_.number);
    }
    [[nodiscard]] std::string problem() const override {
        return lines_.problem().empty() ? fmt::format("{}: {}", where(), problem_)
                                        : lines_.problem();
    }
    [[nodiscard]] std::optional<double> progress() const override { return lines_.progress(); }
    [[nodiscard]] std::optional<std::uint64_t> total() const override {
        return format_ == Format::rollring ? lines_.total() : std::nullopt;
    }

  private:
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

    void read_line() {
        if (line_.too_long) {
            throw BadRecord("longer than " + bytes_text(line_bytes_max_) +
                            ": raise --max-line if it should be");
        }
        const JsonValue line = parse_json(line_.text);
        if (format_ == Format::atropos) {
            group_.parse(line, schema_, line_.number);
            waiting_ = group_.members();
            problems_ = group_.problems();
        } else {
            parse_rollring(line, schema_, record_);
            waiting_ = {&record_, 1};
        }
    }

    Lines lines_;
    Format format_;
    std::uint64_t line_bytes_max_;
    std::uint64_t visit_;
    std::string source_name_;
    Schema schema_ = Schema::standard();
    Line line_;
    AtroposLine group_;
    ParsedRecord record_;
    std::span<ParsedRecord> waiting_;        // the line's records that were not handed out yet
    std::span<const std::string> problems_;  // of the line's groups, not told yet
    std::string problem_;
};

}  // namespace

Result<std::unique_ptr<RecordSource>> open_json_source(const std::string& path, Format format,
                                                       const Selection& selection,
                                                       const std::string& source_name,
                                                       const std::string& run_id) {
    auto lines = Lines::open(path, selection);
    if (!lines) return std::unexpected(lines.error());
    return std::make_unique<JsonSource>(std::move(*lines), format, selection, source_name, run_id);
}

}  // namespace rollring::cli
