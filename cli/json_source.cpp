#include <fmt/format.h>

#include "cli/atropos_json.hpp"
#include "cli/lines.hpp"
#include "cli/rollring_json.hpp"

namespace rollring::cli {
namespace {

class JsonSource final : public RecordSource {
  public:
    JsonSource(Lines lines, Format format, const std::string& source_name)
        : lines_(std::move(lines)), format_(format), source_name_(source_name) {}

    Next next(Draft& draft) override {
        if (waiting_.empty()) {
            if (!lines_.next(line_)) return lines_.problem().empty() ? Next::end : Next::failed;
            try {
                read_line();
            } catch (const BadRecord& error) {
                problem_ = error.what();
                return Next::bad;
            }
        }
        ParsedRecord& record = waiting_.front();
        waiting_ = waiting_.subspan(1);
        record.meta.visit += line_.pass;
        if (!source_name_.empty() && !record.has(Std::source)) {
            record.set_text(Std::source, source_name_);
        }
        record.fill(draft);
        return Next::record;
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
    void read_line() {
        if (format_ == Format::atropos) {
            group_.parse(parse_json(line_.text), line_.number);
            waiting_ = group_.members();
        } else {
            parse_rollring(parse_json(line_.text), record_);
            waiting_ = {&record_, 1};
        }
    }

    Lines lines_;
    Format format_;
    std::string source_name_;
    Line line_;
    AtroposGroup group_;
    ParsedRecord record_;
    std::span<ParsedRecord> waiting_;  // the line's records that were not handed out yet
    std::string problem_;
};

}  // namespace

Result<std::unique_ptr<RecordSource>> open_json_source(const std::string& path, Format format,
                                                       const Selection& selection,
                                                       const std::string& source_name) {
    auto lines = Lines::open(path, selection);
    if (!lines) return std::unexpected(lines.error());
    return std::make_unique<JsonSource>(std::move(*lines), format, source_name);
}

}  // namespace rollring::cli
