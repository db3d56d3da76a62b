#include "integrations/atropos/atropos_hub.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/formats/json_text.hpp"
#include "cli/terminal/output.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr std::int64_t attach_ms = 2'000;   // for a predecessor's seat
constexpr std::int64_t arrive_ms = 10'000;  // from the ring to the stash, at the most
constexpr std::int64_t lease_slice_ms = 20;

// Groups are whole or not at all: a partial group of a dead server was never answered, so its
// environment posts it again.
StashOptions stash_options() {
    return {.at_deadline = AtDeadline::hold,
            .min_size = group_size_max,
            .bad_reward = BadReward::absent,
            .order = Order::freshest,  // the book keeps the order; take every complete group
            .batch = BatchTarget::groups(1),
            .advantages = Advantages::none};
}

}  // namespace

Result<std::unique_ptr<AtroposHub>> AtroposHub::open(const AtroposHubOptions& options) {
    std::unique_ptr<AtroposHub> hub(new AtroposHub(options));
    auto lanes = LanePool::open(options.ring);
    if (!lanes) return std::unexpected(lanes.error());
    hub->lanes_ = std::move(*lanes);
    const auto stat = stat_ring(options.ring);
    if (!stat) return std::unexpected(stat.error());
    hub->ring_id_ = stat->ring_id;
    if (auto state = read_state(options.state_path, stat->ring_id)) {
        if (state->trainer) hub->book_.enter_trainer(*state->trainer);
        if (state->started) hub->book_.start();
        hub->book_.set_step(state->step);
        for (AtroposEnv& env : state->envs) hub->book_.enter_env_again(std::move(env));
        hub->receipts_ = std::move(state->receipts);
    }
    // Fail early if the state file cannot be written.
    if (auto written = hub->write_down(); !written) return std::unexpected(written.error());
    return hub;
}

std::uint64_t AtroposHub::next_id() {
    const std::scoped_lock lock(book_mutex_);
    last_id_ = std::max(last_id_ + 1, static_cast<std::uint64_t>(realtime_ns()));
    return last_id_;
}

AtroposHub::Posted AtroposHub::post(std::span<ParsedRecord> members,
                                    const std::function<bool()>& gone) {
    const Meta& meta = members.front().meta;
    const AtroposEntry entry{.id = meta.visit,
                             .env_id = meta.source_id,
                             .size = static_cast<std::uint32_t>(members.size())};
    const GroupKey key = GroupKey::of(members.front().text(Std::instance_id), meta.visit);
    {
        const std::scoped_lock lock(book_mutex_);
        posted_.emplace(key, entry.id);
    }
    std::vector<Draft> drafts(members.size());
    for (std::size_t i = 0; i < members.size(); i++) {
        members[i].meta.created_ns = static_cast<std::int64_t>(entry.id);
        members[i].fill(drafts[i]);
    }
    Posted answer{.sent = LaneSend::closed};
    // The stash gives the credit that a post may wait for, and works only in the calls of the hub.
    const auto given_up = [&] {
        look();
        return gone();
    };
    answer.sent = lanes_->send(drafts, options_.hold_ms, given_up, answer.problem);
    const std::scoped_lock lock(book_mutex_);
    if (answer.sent == LaneSend::ok) {
        counts_.groups++;
        // Groups taken by another trainer would stay in the book and throttle the environments.
        if (read_by_another()) {
            posted_.erase(key);
        } else {
            answer.buffered = book_.enter(entry);
        }
    } else {
        posted_.erase(key);
    }
    return answer;
}

std::string AtroposHub::open_stash() {
    if (stash_) return {};
    auto opened = Stash::open(options_.ring, stash_options(),
                              {.attach_timeout = std::chrono::milliseconds(attach_ms)});
    if (!opened) return opened.error().to_string();
    std::vector<std::string> receipts;
    {
        const std::scoped_lock lock(book_mutex_);
        if (!again_) receipts = receipts_;
        receipts_.clear();
    }
    const std::int64_t step = std::max<std::int64_t>(0, (*opened)->last_acked_step());
    for (const std::string& receipt : receipts) {
        const auto done = (*opened)->settle(receipt, step);  // tidy-ok: a receipt settles
        if (!done) {
            note(fmt::format("the trainer's previous batch is delivered again: {}",
                             done.error().message));
        }
    }
    stash_ = std::move(*opened);
    reads_ = true;
    return {};
}

void AtroposHub::adopt(Leased stranger) {
    const auto sent_ns = stranger.batch.sequences().front().view.meta().created_ns;
    std::uint64_t id = sent_ns > 0 ? static_cast<std::uint64_t>(sent_ns) : next_id();
    while (leased_.contains(id)) id++;
    stranger.entry.id = id;
    const AtroposEntry entry = stranger.entry;
    leased_.emplace(id, std::move(stranger));
    const std::scoped_lock lock(book_mutex_);
    static_cast<void>(book_.enter(entry));
}

// Leases everything that is complete in the ring. Groups that were not posted here are older than
// this server, or come from producers on the ring.
void AtroposHub::lease_what_came(Deadline deadline) {
    Batch batch;
    while (stash_->next(batch, deadline) == NextBatch::batch) {
        deadline = Deadline::now();  // only the first one is waited for
        const auto& first = batch.sequences().front().view;
        AtroposEntry entry{.id = 0,
                           .env_id = first.meta().source_id,
                           .size = static_cast<std::uint32_t>(batch.sequences().size())};
        {
            const std::scoped_lock lock(book_mutex_);
            const auto known = posted_.find(batch.groups().front().key);
            if (known != posted_.end()) {
                entry.id = known->second;
                posted_.erase(known);
            }
        }
        Leased one{entry, std::exchange(batch, Batch())};
        if (entry.id == 0) {
            adopt(std::move(one));
        } else {
            leased_.emplace(entry.id, std::move(one));
        }
    }
    Event event;
    while (stash_->next_event(event)) {
        if (event.kind == Event::Kind::stalled || event.kind == Event::Kind::quarantined) {
            note(fmt::format("{}: {}", name(event.kind), event.detail));
        }
    }
}

// Received groups are in the ring and arrive within moments.
bool AtroposHub::lease_all(std::span<const AtroposEntry> wanted) {
    const Deadline deadline = Deadline::after_ms(arrive_ms);
    const auto missing = [this](const AtroposEntry& entry) { return !leased_.contains(entry.id); };
    while (std::ranges::any_of(wanted, missing)) {
        if (deadline.passed()) return false;
        lease_what_came(Deadline::after_ms(lease_slice_ms));
    }
    return true;
}

// The trainer asks for the next batch, so it is done with the last one if it has read that.
void AtroposHub::finish_last() {
    bool again = false;
    {
        const std::scoped_lock lock(book_mutex_);
        again = std::exchange(again_, false) || !written_;
        receipts_.clear();
        if (again) {
            book_.put_back(handed_);
            if (!handed_.empty()) book_.set_step(book_.step() - 1);
        }
    }
    if (!again) {
        for (const AtroposEntry& entry : handed_) {
            Leased& one = leased_.at(entry.id);
            const std::int64_t step = std::max<std::int64_t>(0, stash_->last_acked_step());
            if (auto done = one.batch.ack(step); !done) {
                note(fmt::format("a group was not acknowledged: {}", done.error().message));
            }
            leased_.erase(entry.id);
            const std::scoped_lock lock(book_mutex_);
            counts_.sequences += entry.size;
        }
        const std::scoped_lock lock(book_mutex_);
        if (!handed_.empty()) counts_.batches++;
    }
    handed_.clear();
    written_ = false;
}

std::string AtroposHub::text_of(std::span<const AtroposEntry> entries) {
    std::string text = "[";
    for (const AtroposEntry& entry : entries) {
        AtroposGroups groups(AtroposGroups::Absent::null);
        std::string line;
        for (const Sequence& sequence : leased_.at(entry.id).batch.sequences()) {
            groups.add(sequence.view, schema(), line);
        }
        groups.finish(line);
        if (text.size() > 1) text += ',';
        text.append(line, 0, line.find_last_not_of('\n') + 1);
    }
    return text += ']';
}

AtroposHub::Handed AtroposHub::next_batch() {
    auto turn = std::make_shared<std::unique_lock<std::mutex>>(trainer_mutex_);
    if (std::string problem = open_stash(); !problem.empty()) {
        return {.groups = {}, .problem = std::move(problem)};
    }
    finish_last();
    lease_what_came();
    std::vector<AtroposEntry> batch = with_book(
        [](AtroposBook& book) {
            book.start();
            return book.take_batch();
        },
        true);
    if (batch.empty()) return {.groups = {}};
    if (!lease_all(batch)) {
        // Another reader has taken it.
        const std::size_t lost = std::erase_if(
            batch, [this](const AtroposEntry& entry) { return !leased_.contains(entry.id); });
        note(fmt::format("groups of a batch that are no longer in the ring: {}", lost));
        with_book([&](AtroposBook& book) { book.put_back(batch); }, false);
        return {.groups = {}};
    }
    handed_ = std::move(batch);
    with_book([](AtroposBook& book) { book.set_step(book.step() + 1); }, true);
    // Holds the lock until the answer is written, so that no other request gets a batch.
    return {.groups = text_of(handed_),
            .delivered = [this, turn](bool written) { delivered(written); }};
}

void AtroposHub::delivered(bool written) {
    written_ = written;
    if (!written) return;
    std::vector<std::string> receipts;
    receipts.reserve(handed_.size());
    for (const AtroposEntry& entry : handed_) {
        receipts.push_back(leased_.at(entry.id).batch.receipt());
    }
    const std::scoped_lock lock(book_mutex_);
    receipts_ = std::move(receipts);
    save();
}

void AtroposHub::register_trainer(const AtroposTrainer& trainer) {
    const std::scoped_lock lock(book_mutex_);
    book_.enter_trainer(trainer);
    again_ = true;
    receipts_.clear();
    save();
}

void AtroposHub::look() {
    const std::unique_lock turn(trainer_mutex_, std::try_to_lock);
    if (turn && stash_) lease_what_came();
}

std::string AtroposHub::reset() {
    const std::scoped_lock trainer_lock(trainer_mutex_);
    const bool untouched = with_book(
        [this](AtroposBook& book) {
            return posted_.empty() && book.waiting_sequences() == 0 && !book.started();
        },
        false);
    if (!untouched || stash_) {
        if (std::string problem = open_stash(); !problem.empty()) return problem;
        lease_what_came();
        const std::int64_t step = std::max<std::int64_t>(0, stash_->last_acked_step());
        for (auto& [id, one] : leased_) static_cast<void>(one.batch.ack(step));
    }
    leased_.clear();
    handed_.clear();
    written_ = false;
    const std::scoped_lock lock(book_mutex_);
    book_ = AtroposBook();
    posted_.clear();
    receipts_.clear();
    again_ = false;
    save();
    return {};
}

Result<void> AtroposHub::write_down() const {
    const AtroposState state{.ring_id = ring_id_,
                             .trainer = book_.trainer(),
                             .started = book_.started(),
                             .step = book_.step(),
                             .envs = {book_.envs().begin(), book_.envs().end()},
                             .receipts = receipts_};
    return write_state(options_.state_path, state);
}

void AtroposHub::save() {
    if (auto written = write_down(); !written) note(written.error().to_string());
}

AtroposHub::Counts AtroposHub::counts() {
    const std::scoped_lock trainer_lock(trainer_mutex_);
    const std::scoped_lock lock(book_mutex_);
    Counts counts = counts_;
    for (const AtroposEntry& entry : handed_) counts.handed += written_ ? entry.size : 0;
    return counts;
}

bool AtroposHub::has_clients() {
    const std::scoped_lock lock(book_mutex_);
    return book_.trainer() || !book_.envs().empty();
}

std::optional<std::string> AtroposHub::stuck() {
    const std::scoped_lock lock(book_mutex_);
    if (!book_.trainer() || !receipts_.empty() || book_.has_batch()) return std::nullopt;
    const std::uint64_t sequences = book_.waiting_sequences();
    return fmt::format(
        "its {} sequences do not fill a batch of {}: if this persists, the ring is too small "
        "(rollring create --lanes, --lane-bytes)",
        sequences, book_.trainer()->batch_size);
}

}  // namespace rollring::cli
