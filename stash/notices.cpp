#include "notices.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "human.hpp"
#include "rollring/ring.hpp"

namespace rollring {
namespace {

constexpr std::int64_t sums_every_ns = 10'000'000'000;
constexpr std::int64_t overdue_first_ns = 60'000'000'000;
constexpr std::int64_t overdue_most_ns = 600'000'000'000;
constexpr std::size_t groups_named = 3;

// The likely cause and the remedy; `duplicate`, `mixed_numbers` and `late` get theirs elsewhere.
std::string_view advice(DropReason reason) {
    switch (reason) {
        case DropReason::duplicate:
        case DropReason::mixed_numbers:
        case DropReason::late:
        case DropReason::count:
            break;
        case DropReason::superseded:
            return "a higher attempt of its member is there";
        case DropReason::surplus:
            return "its group has all members that it asks for: group_size, and the stash's "
                   "group_size and extra, say how many";
        case DropReason::failed:
            return "its status says that the rollout failed";
        case DropReason::bad_reward:
            return "the reward of its member is NaN or infinite";
        case DropReason::group_void:
            return "another member of its group failed, and on_failed or bad_reward void the group";
        case DropReason::too_few:
            return "too many members of its group are lost for it to reach min_size";
        case DropReason::deadline:
            return "its group was not complete by the deadline";
        case DropReason::zero_variance:
            return "all rewards of its group are equal, and zero_variance drops such groups";
        case DropReason::stale:
            return "its oldest token is more than max_lag versions behind";
        case DropReason::unfinished:
            return "the other subsequences of its member have not come";
        case DropReason::oversized:
            return "its group has more records than one acknowledgement holds: create the ring "
                   "with more journal_records";
    }
    return {};
}

std::string name_of(const Record& record) {
    const Meta& meta = record.view.meta();
    std::string text = fmt::format("'{}'", printable(record.view.instance_id()));
    if (meta.visit != 0) text += fmt::format(" visit {}", meta.visit);
    if (meta.repetition_id.has_value()) {
        text += fmt::format(" #{}", std::uint32_t{meta.repetition_id});
    }
    return text;
}

}  // namespace

void Notices::dropped(const Record& record, DropReason reason) {
    if (note(static_cast<std::size_t>(reason), record)) {
        told_[static_cast<std::size_t>(reason)].example = cause_of_drop(record, reason);
    }
}

void Notices::size_conflict(const Record& record, const Group& group) {
    if (!note(conflict, record)) return;
    told_[conflict].example = fmt::format(
        "{} of {} says group_size {}, and the first of its group said {}, which holds: send the "
        "missing members, or a mark of each member that will not come (status \"aborted\")",
        name_of(record), load_sender(core_->map(), record.producer_lane, record.producer_epoch),
        record.view.meta().group_size, group.size);
    tell_new();
}

// True if an example is wanted: one for each total and each batch, because texts cost more than
// records.
bool Notices::note(std::size_t kind, const Record& record) {
    Told& told = told_[kind];
    told.ever++;
    const bool wanted = told.untold++ == 0 || told.since_batch == 0;
    told.since_batch++;
    if (!wanted) return false;
    told.lane = record.producer_lane;
    told.epoch = record.producer_epoch;
    return true;
}

void Notices::tell_new() {
    for (std::size_t kind = 0; kind < told_.size(); kind++) {
        if (told_[kind].untold != 0 && told_[kind].untold == told_[kind].ever) {
            tell(kind, monotonic_ns());
        }
    }
}

std::string Notices::cause_of_drop(const Record& record, DropReason reason) const {
    const std::string who = load_sender(core_->map(), record.producer_lane, record.producer_epoch);
    std::string text = fmt::format("{} of {}: ", name_of(record), who);
    const Group* const group = groups_->find_group(record.view.group_key());
    if (reason == DropReason::mixed_numbers) {
        const bool numbered = record.view.meta().repetition_id.has_value();
        return text + fmt::format(
                          "it has {} repetition_id, and its group began with {}: give one "
                          "to every member of a group, or to none",
                          numbered ? "a" : "no", numbered ? "none" : "one");
    }
    if (reason == DropReason::late) {
        return text +
               fmt::format(
                   "its group was over before it came: it had all its members or was "
                   "dropped, {}or another producer or an earlier run had the same "
                   "instance_id and visit. Give each run, and each pass over the data, its "
                   "own visit",
                   options_->deadline ? "the stash's deadline had ended it, " : "") +
               assumed_size();
    }
    if (reason != DropReason::duplicate) return text.append(advice(reason));
    const Member* const there =
        group != nullptr ? group->member(record.view.meta().repetition_id.value_or(0)) : nullptr;
    if (there == nullptr) return text + "the same repetition_id came before";
    if (there->is_from(record.producer_lane, record.producer_epoch)) {
        return text + "it has pushed that repetition_id before";
    }
    return text + fmt::format("two producers push the same repetition_id, the other is {}",
                              load_sender(core_->map(), there->lane, there->producer_epoch));
}

// "; records without a group_size ...", or nothing.
std::string Notices::assumed_size() const {
    if (!groups_->assumes_size()) return {};
    return fmt::format(
        "; records without a group_size make groups of {} (the stash's group_size, {} by default)",
        options_->group_size, StashOptions{}.group_size);
}

std::string Notices::text_of(std::size_t kind, std::uint64_t count) const {
    const Told& told = told_[kind];
    const std::string_view one = count == 1 ? ": " : ", one of them: ";
    if (kind == conflict) {
        return fmt::format("{} of another group_size than their group{}{}",
                           counted(count, "record"), one, told.example);
    }
    return fmt::format("{} dropped as {}{}{}", counted(count, "record"),
                       name(static_cast<DropReason>(kind)), one, told.example);
}

void Notices::tell(std::size_t kind, std::int64_t now_ns) {
    Told& told = told_[kind];
    std::string text = text_of(kind, told.untold);
    if (told.ever != told.untold) text += fmt::format(" ({} so far)", told.ever);
    events_->push({kind == conflict ? Event::Kind::size_conflict : Event::Kind::dropped,
                   told.lane,
                   told.epoch,
                   {},
                   told.untold,
                   std::move(text)});
    told.untold = 0;
    told.told_ns = now_ns;
}

void Notices::tell_all(std::int64_t now_ns) {
    for (std::size_t kind = 0; kind < told_.size(); kind++) {
        if (told_[kind].untold != 0) tell(kind, now_ns);
    }
}

void Notices::tell(std::int64_t now_ns) {
    for (std::size_t kind = 0; kind < told_.size(); kind++) {
        const Told& told = told_[kind];
        if (told.untold != 0 && now_ns - told.told_ns >= sums_every_ns) tell(kind, now_ns);
    }
    tell_overdue(now_ns);
}

void Notices::partial(std::uint32_t index, std::int64_t now_ns) {
    const GroupStat group = shown_->stat_of(index, now_ns);
    partial_groups_++;
    events_->push({Event::Kind::partial,
                   group.lanes.empty() ? 0 : group.lanes.front(),
                   0,
                   {},
                   partial_groups_,
                   fmt::format("the deadline of a group has passed, and it ships with {} of {} "
                               "members ({} so far): {}",
                               group.complete, group.size, counted(partial_groups_, "such group"),
                               group.to_string())});
}

// The first report comes at once, further ones less and less often while any group is overdue.
void Notices::tell_overdue(std::int64_t now_ns) {
    if (!groups_->deadlines().any_overdue() || now_ns < overdue_next_ns_) return;
    const std::size_t count = groups_->deadlines().count_overdue();
    if (count == 0) {
        overdue_every_ns_ = 0;
        return;
    }
    overdue_every_ns_ = std::clamp(2 * overdue_every_ns_, overdue_first_ns, overdue_most_ns);
    overdue_next_ns_ = now_ns + overdue_every_ns_;
    std::string text = fmt::format("{} {} for more than {:.0f} s for members that have not come",
                                   count, count == 1 ? "group waits" : "groups wait",
                                   static_cast<double>(options_->due_after().count()) * 1e-9);
    text += shown_->oldest_text(groups_named, now_ns);
    text +=
        ". They are kept: send the missing members, or a mark of each member that will not come "
        "(status \"aborted\"), or open the stash with a deadline";
    events_->push({Event::Kind::overdue, 0, 0, {}, count, std::move(text)});
}

std::string Notices::since_batch() const {
    std::string text;
    for (std::size_t kind = 0; kind < told_.size(); kind++) {
        if (told_[kind].since_batch == 0) continue;
        text += (text.empty() ? "" : "; ") + text_of(kind, told_[kind].since_batch);
    }
    return text;
}

std::string Notices::waits_for(std::int64_t now_ns) const {
    std::string text = fmt::format(
        "{} open, {} of them complete; {} attached", counted(groups_->open_groups(), "group"),
        groups_->ready_groups(), counted(core_->roster().producers(), "producer"));
    text += shown_->oldest_text(groups_named, now_ns);
    if (groups_->open_groups() > groups_->ready_groups()) text += assumed_size();
    // With their causes each time: a caller may have shown no text before this one.
    if (const std::string came = since_batch(); !came.empty()) {
        text += "; since the last batch: " + came;
    }
    return text;
}

}  // namespace rollring
