#include "rollring/batch.hpp"

#include <atomic>
#include <utility>

namespace rollring {
namespace {

using detail::RecordForm;

bool has_form(std::span<const ColumnView> columns, std::uint32_t tokens, const RecordForm& form) {
    if (columns.size() != form.columns.size()) return false;
    const std::byte* at = columns.empty() ? nullptr : columns[0].data.data();
    for (std::size_t i = 0; i < columns.size(); i++) {
        const ColumnView& column = columns[i];
        const RecordForm::Column& its = form.columns[i];
        const std::array inner{column.shape[1], column.shape[2], column.shape[3]};
        if (RecordForm::head_of(column) != its.head || inner != its.inner ||
            column.data.data() != at) {
            return false;
        }
        if (its.row_bytes != 0 && column.shape[0] != tokens) return false;
        at += its.row_bytes != 0 ? RecordForm::bytes_of(its.row_bytes, tokens) : its.bytes;
    }
    return true;
}

// The form of one record. A column may be as long as the record by chance, which does no harm:
// records in which it is not have another form.
RecordForm form_of(std::span<const ColumnView> columns, std::uint32_t tokens) {
    RecordForm form;
    for (const ColumnView& column : columns) {
        const bool by_token = column.shape[0] == tokens && tokens != 0 &&
                              column.column != static_cast<std::uint16_t>(Std::instance_id);
        const auto bytes = static_cast<std::uint32_t>(RecordForm::bytes_of(1, column.data.size()));
        form.columns.push_back(
            {RecordForm::head_of(column),
             {column.shape[1], column.shape[2], column.shape[3]},
             by_token ? static_cast<std::uint32_t>(column.data.size() / tokens) : 0,
             bytes});
    }
    return form;
}

// The index of the record's form. Most records of a batch have the same one.
std::uint32_t number_of(std::vector<RecordForm>& forms, const TrajectoryView& view,
                        std::uint32_t last) {
    constexpr std::size_t few = 8;
    const auto columns = view.columns();
    const std::uint32_t tokens = view.n_tokens();
    if (last < forms.size() && has_form(columns, tokens, forms[last])) return last;
    for (std::uint32_t i = 0; i < forms.size(); i++) {
        if (has_form(columns, tokens, forms[i])) return i;
    }
    if (forms.size() == few) return detail::RecordPlace::no_form;
    RecordForm made = form_of(columns, tokens);
    if (!has_form(columns, tokens, made)) return detail::RecordPlace::no_form;
    forms.push_back(std::move(made));
    return static_cast<std::uint32_t>(forms.size() - 1);
}

}  // namespace

void Sequences::lease_to(std::shared_ptr<void> keeper, Batch* batch,
                         std::shared_ptr<const MappedLanes> lanes) {
    static std::atomic<std::uint64_t> leases_ever{0};
    lease_.state_ = std::make_shared<Lease::State>(++leases_ever, detail::forks, std::move(keeper),
                                                   batch, std::move(lanes));
}

void Sequences::begin(std::size_t sequences) {
    sequences_.reserve(sequences);
    places_.reserve(sequences);
    rewards_.reserve(sequences);
    advantages_.reserve(sequences);
    repetition_ids_.reserve(sequences);
    versions_.reserve(sequences);
    cu_seqlens_.reserve(sequences + 1);
    cu_seqlens_.push_back(0);
    group_offsets_.push_back(0);
}

void Sequences::add(const TrajectoryView& view, std::uint32_t member, bool withheld, double reward,
                    double advantage) {
    sequences_.push_back({view, static_cast<std::uint32_t>(groups_.size()), member, withheld});
    const std::uint32_t last = places_.empty() ? 0 : places_.back().form;
    const auto columns = view.columns();
    places_.push_back({columns.empty() ? nullptr : columns[0].data.data(), view.n_tokens(),
                       number_of(forms_, view, last)});
    rewards_.push_back(reward);
    advantages_.push_back(advantage);
    repetition_ids_.push_back(view.meta().repetition_id.value_or(member));
    versions_.push_back(view.meta().policy_version_min);
    cu_seqlens_.push_back(cu_seqlens_.back() + view.n_tokens());
}

void Sequences::end_group(const BatchGroupInfo& group) {
    groups_.push_back(group);
    group_offsets_.push_back(static_cast<std::uint32_t>(sequences_.size()));
}

void Sequences::clear() {
    groups_.clear();
    sequences_.clear();
    places_.clear();
    forms_.clear();
    group_offsets_.clear();
    cu_seqlens_.clear();
    rewards_.clear();
    advantages_.clear();
    repetition_ids_.clear();
    versions_.clear();
}

}  // namespace rollring
