#include <array>
#include <utility>

#include "cli/formats/custom_columns.hpp"
#include "cli/formats/json_columns.hpp"
#include "cli/formats/parsed_record.hpp"
#include "cli/formats/rollring_json.hpp"

namespace rollring::cli {
namespace {

// Writes the keys of one line, and remembers them.
class LineWriter {
  public:
    explicit LineWriter(std::string& out) : out_(&out) { *out_ += '{'; }

    std::string& key(std::string_view key) {
        if (count_ != 0) *out_ += ',';
        if (count_ < written_.size()) written_[count_++] = key;
        *out_ += '"';
        *out_ += key;  // only our own names, which need no escapes
        *out_ += "\":";
        return *out_;
    }

    template <class T>
    void number(std::string_view name, T value) {
        append_element(key(name), value);
    }

    // Left out if it equals the meaning of an absent key.
    template <class T>
    void unless(std::string_view name, T value, T absent) {
        if (value != absent) number(name, value);
    }

    // JSON of any producer.
    void json(std::string_view name, std::string_view text) {
        if (!append_json_text(key(name), text, 1)) blame(name);
    }

    // Returns the columns whose JSON is invalid.
    std::string close(std::string_view extra) {
        if (!extra.empty() && !append_extra(*out_, extra, std::span(written_).first(count_))) {
            blame("extra");
        }
        *out_ += "}\n";
        return std::move(blamed_);
    }

  private:
    void blame(std::string_view name) {
        blamed_ += blamed_.empty() ? "'" : "', '";
        blamed_ += name;
    }

    std::string* out_;
    std::string blamed_;
    std::array<std::string_view, 64> written_{};
    std::size_t count_ = 0;
};

void write_versions(LineWriter& line, const TrajectoryView& record) {
    const Meta& meta = record.meta();
    if (const auto* runs = record.find(static_cast<std::uint16_t>(Std::policy_version))) {
        append_column(line.key("policy_version"), *runs);
    } else if (meta.policy_version_min == meta.policy_version_max) {
        line.unless<std::int64_t>("policy_version", meta.policy_version_min, -1);
    } else {
        line.number("policy_version_min", meta.policy_version_min);
        line.number("policy_version_max", meta.policy_version_max);
    }
}

// Columns of text or bytes, depending on the producer.
void write_blob(LineWriter& line, std::string_view name, const TrajectoryView& record, Std which) {
    const ColumnView* column = record.find(static_cast<std::uint16_t>(which));
    if (column == nullptr) return;
    if (record.meta().origin != native) {
        line.json(name, record.text(which));
    } else {
        append_blob(line.key(name), *column);
    }
}

void write_header(LineWriter& line, const TrajectoryView& record) {
    const Meta& meta = record.meta();
    append_string(line.key("instance_id"), record.instance_id());
    if (meta.repetition_id.has_value()) {
        line.number("repetition_id", std::uint32_t{meta.repetition_id});
    }
    line.unless("group_size", meta.group_size, 0U);
    if (record.find(static_cast<std::uint16_t>(Std::source)) != nullptr) {
        append_string(line.key("source"), record.text(Std::source));
    }
    line.unless("n_prompt", meta.n_prompt, 0U);
    if (meta.reward) append_number(line.key("reward"), *meta.reward, Integral::plain);
    if (const auto* tokens = record.find(static_cast<std::uint16_t>(Std::token_ids))) {
        append_column(line.key("tokens"), *tokens);
    }
    line.unless<std::uint64_t>("visit", meta.visit, 0);
    line.unless("attempt", meta.attempt, 0U);
    line.unless<std::uint32_t>("subsequence_index", meta.subsequence_index, 0);
    if (!meta.last_subsequence) line.key("last_subsequence") += "false";
    if (meta.source_id) line.number("source_id", *meta.source_id);
    if (meta.status != Status::completed) append_string(line.key("status"), name(meta.status));
    write_versions(line, record);
    line.unless<std::int64_t>("created_ns", meta.created_ns, 0);
    line.unless<std::int64_t>("finished_ns", meta.finished_ns, 0);
}

constexpr std::array lists{Std::loss_mask,    Std::logprobs,      Std::advantages,
                           Std::ref_logprobs, Std::token_rewards, Std::routed_experts,
                           Std::topk_ids,     Std::topk_logprobs, Std::labels};
constexpr std::array texts{Std::messages, Std::generation_params, Std::overrides,
                           Std::group_overrides};

}  // namespace

std::string append_rollring_line(std::string& out, const TrajectoryView& record,
                                 const Schema& schema) {
    LineWriter line(out);
    write_header(line, record);
    const auto name_of = [](Std column) -> std::string_view {
        return Schema::standard().columns()[static_cast<std::size_t>(column)].name;
    };
    for (const Std which : lists) {
        const auto* column = record.find(static_cast<std::uint16_t>(which));
        if (column != nullptr) append_column(line.key(name_of(which)), *column);
    }
    for (const Std which : texts) {
        const auto* column = record.find(static_cast<std::uint16_t>(which));
        if (column != nullptr) line.json(name_of(which), record.text(which));
    }
    write_blob(line, name_of(Std::images), record, Std::images);
    write_blob(line, name_of(Std::user), record, Std::user);
    for (const auto& column : record.columns()) {
        if (column.column < static_cast<std::uint16_t>(Std::count)) continue;
        const Column& declared = schema.columns()[column.column];
        append_custom(line.key(declared.name), column, declared);
    }
    return written_as_strings(record, line.close(record.text(Std::extra)));
}

}  // namespace rollring::cli
