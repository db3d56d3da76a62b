#include "oracle.hpp"

#include <algorithm>
#include <cstring>

#include "support/load.hpp"

namespace rollring::test {
namespace {

constexpr std::uint64_t group_visits_max = 1 << 24;  // no life sends so many groups

template <class T>
T read_as(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

bool has(const std::vector<bool>& set, std::uint64_t number) {
    return number < set.size() && set[number];
}
void mark(std::vector<bool>& set, std::uint64_t number) {
    if (set.size() <= number) set.resize(number + 1);
    set[number] = true;
}

}  // namespace

std::string_view name(Role role) {
    static constexpr std::string_view names[] = {"producer", "hostile", "trainer", "publisher",
                                                 "subscriber"};
    return names[static_cast<std::size_t>(role)];
}

void Oracle::started(std::uint64_t life, Role role, std::uint32_t index) {
    if (lives_.size() <= life) lives_.resize(life + 1);
    lives_[life].role = role;
    lives_[life].index = index;
}

void Oracle::killed(std::uint64_t life) {
    lives_.at(life).killed = true;
    lives_.at(life).killed_ns = monotonic_ns();
}

Oracle::Life& Oracle::life_of(const Head& head) {
    return lives_.at(head.life);
}

std::uint64_t Oracle::taken_for_dead(const std::byte* entry) {
    const auto head = read_as<Head>(entry);
    if (head.kind != Kind::event) return 0;
    const auto word = read_as<Word>(entry);
    const bool lost = static_cast<Event::Kind>(word.a) == Event::Kind::producer_died;
    return lost ? static_cast<std::uint64_t>(word.b) & 0xffffffff : 0;
}

void Oracle::take(const std::byte* entry) {
    const auto head = read_as<Head>(entry);
    if (life_of(head).role == Role::trainer) note_trainer(head);
    switch (head.kind) {
        case Kind::begun:
            return begun(read_as<Begun>(entry));
        case Kind::acking:
            return acking(entry);
        case Kind::failure:
            throw Failure(
                fmt::format("{} (life {}): {}", name(life_of(head).role), head.life,
                            std::string_view(reinterpret_cast<const char*>(entry + sizeof head),
                                             head.bytes - sizeof head)));
        default:
            return word(read_as<Word>(entry));
    }
}

void Oracle::word(const Word& word) {
    Life& life = life_of(word.head);
    switch (word.head.kind) {
        case Kind::opened: {
            life.lane = word.a;
            const auto lane = static_cast<std::uint32_t>(word.a);
            holders_[lane].push_back(word.head.life);
            if (life.role == Role::hostile) hostile_ever_.insert(lane);
            return;
        }
        case Kind::pushed:
            return pushed(word.head);
        case Kind::waiting:
            counts_.waits++;
            return;
        case Kind::refused:
            counts_.refused++;
            return;
        case Kind::resumed:
            return resumed(word.a);
        case Kind::dropped:
            counts_.dropped.at(static_cast<std::size_t>(word.a)) +=
                static_cast<std::uint64_t>(word.b);
            return;
        case Kind::acked:
            require(pending_ && word.a == pending_step_, "step {} was not announced", word.a);
            return acked(word.a);
        case Kind::event:
            return event(static_cast<Event::Kind>(word.a), static_cast<std::uint32_t>(word.b >> 32),
                         static_cast<std::uint64_t>(word.b) & 0xffffffff);
        case Kind::committing:
            versions_.insert(word.a);
            return;
        case Kind::committed:
            require(word.a > committed_, "version {} is committed after {}", word.a, committed_);
            committed_ = word.a;
            counts_.versions++;
            return;
        case Kind::aborted:
            versions_.erase(word.a);
            counts_.aborted++;
            return;
        case Kind::live:
            return live(life, word.a, word.b == 1);
        default:
            return;
    }
}

// --- producers -----------------------------------------------------------------------------------

void Oracle::begun(const Begun& entry) {
    Life& life = life_of(entry.head);
    if (life.role == Role::hostile) {
        hostile_keys_.insert(GroupKey::of(prompt_of(entry.head.life), entry.visit).low);
        return;
    }
    require(!life.in_flight, "life {} pushes two records at once", entry.head.life);
    counts_.begun++;
    counts_.retries += entry.attempt > 0 ? 1 : 0;
    life.in_flight = true;
    life.flying = id_of(entry.head.life, entry.visit);
    life.copy = ~std::size_t{0};
    if (has(life.voided, entry.visit)) return;
    if (entry.failed != 0) {  // none of it is ever acknowledged
        mark(life.voided, entry.visit);
        groups_.erase(life.flying);
        counts_.groups_voided++;
        return;
    }
    if (has(life.acked, entry.visit)) {
        counts_.after_ack++;
        return;
    }
    const auto [at, is_new] = groups_.try_emplace(life.flying);
    Group& group = at->second;
    if (is_new) {
        counts_.groups_begun++;
        group.life = entry.head.life;
        group.from_ns = entry.head.at_ns;
        group.size = entry.size;
        group.subsequences = entry.subsequences;
    }
    const bool again = std::ranges::any_of(group.copies, [&](const Copy& copy) {
        return copy.repetition == entry.repetition && copy.subsequence == entry.subsequence &&
               copy.attempt == entry.attempt;
    });
    counts_.copies += again ? 1 : 0;
    life.copy = group.copies.size();
    group.copies.push_back({.digest = entry.digest,
                            .floor = committed_,
                            .repetition = entry.repetition,
                            .attempt = entry.attempt,
                            .subsequence = entry.subsequence,
                            .early = !group.could_be_complete,
                            .pushed = false,
                            .at_ns = entry.head.at_ns});
    std::set<std::uint32_t> seen;
    for (const Copy& copy : group.copies) {
        seen.insert(copy.repetition << 16 | copy.subsequence);
    }
    group.could_be_complete = seen.size() == std::size_t{group.size} * group.subsequences;
}

void Oracle::pushed(const Head& head) {
    Life& life = life_of(head);
    require(life.in_flight, "life {} pushed what it had not begun", head.life);
    life.in_flight = false;
    counts_.pushed++;
    const auto group = groups_.find(life.flying);
    // It may have been shipped before its producer could say that it was taken.
    if (group == groups_.end() || life.copy >= group->second.copies.size()) return;
    group->second.copies[life.copy].pushed = true;
    group->second.last_ns = head.at_ns;
}

// --- trainers ------------------------------------------------------------------------------------

void Oracle::acking(const std::byte* entry) {
    const auto acking = read_as<Acking>(entry);
    require(!pending_, "step {} is acknowledged before step {} is done", acking.step,
            pending_step_);
    require(acking.step == step_ + 1, "step {} after {}", acking.step, step_);
    pending_ = true;
    pending_step_ = acking.step;
    pending_groups_.resize(acking.groups);
    pending_pieces_.resize(acking.pieces);
    const std::byte* at = entry + sizeof acking;
    std::memcpy(pending_groups_.data(), at, acking.groups * sizeof(Shipped));
    std::memcpy(pending_pieces_.data(), at + acking.groups * sizeof(Shipped),
                acking.pieces * sizeof(Piece));
}

void Oracle::acked(std::int64_t step) {
    pending_ = false;
    step_ = step;
    std::span<const Piece> rest = pending_pieces_;
    for (const Shipped& shipped : pending_groups_) {
        check_exposed(shipped, rest.first(shipped.pieces));
        rest = rest.subspan(shipped.pieces);
    }
}

void Oracle::resumed(std::int64_t step) {
    if (step_ >= 0) counts_.recoveries++;
    if (pending_ && step == pending_step_) {
        counts_.cut_done++;
        return acked(step);
    }
    require(step == step_, "last acknowledged step is {}, not {}", step, step_);
    counts_.cut_undone += pending_ ? 1 : 0;
    pending_ = false;
}

// A producer's leftovers in its lane can be damaged by the lane's next holder, if that is hostile.
bool Oracle::exposed(std::uint64_t life) const {
    const auto held = holders_.find(static_cast<std::uint32_t>(lives_[life].lane));
    if (held == holders_.end()) return false;
    const auto at = std::ranges::find(held->second, life);
    return std::any_of(at, held->second.end(),
                       [&](std::uint64_t later) { return lives_[later].role == Role::hostile; });
}

void Oracle::check_exposed(const Shipped& shipped, std::span<const Piece> pieces) {
    try {
        check_group(shipped, pieces);
    } catch (const Failure&) {
        const std::uint64_t life = shipped.life;
        // Its very name may be damaged; else it must have lain where a hostile one could write.
        const bool named = life > 0 && life < lives_.size() && lives_[life].role == Role::producer;
        if (hostile_ever_.empty()) throw;
        if (named && !exposed(life)) throw;
        const bool again = named && has(lives_[life].acked, shipped.visit);
        if (again && were_acked(id_of(life, shipped.visit), pieces)) throw;
        counts_.exposed_damaged++;
        if (!named || shipped.visit > group_visits_max) return;
        mark(lives_[life].acked, shipped.visit);
        groups_.erase(id_of(life, shipped.visit));
    }
}

// A record whose visit was damaged names another group, which may be over long since; the same
// records once more are not damage.
bool Oracle::were_acked(std::uint64_t id, std::span<const Piece> pieces) const {
    const auto found = acked_digests_.find(id);
    return found != acked_digests_.end() && std::ranges::all_of(pieces, [&](const Piece& piece) {
               return std::ranges::find(found->second, piece.digest) != found->second.end();
           });
}

void Oracle::remember_acked(std::uint64_t id, std::span<const Piece> pieces) {
    std::vector<std::uint64_t>& digests = acked_digests_[id];
    for (const Piece& piece : pieces) digests.push_back(piece.digest);
    acked_lately_.push_back(id);
    if (acked_lately_.size() <= acked_remembered) return;
    acked_digests_.erase(acked_lately_.front());
    acked_lately_.pop_front();
}

void Oracle::check_group(const Shipped& shipped, std::span<const Piece> pieces) {
    if (hostile_keys_.contains(shipped.key.low)) {
        counts_.hostile_groups++;
        return;
    }
    const std::uint64_t life = shipped.life;
    const std::uint64_t visit = shipped.visit;
    require(life > 0 && life < lives_.size() && lives_[life].role == Role::producer,
            "a group of nobody's: life {}", life);
    require(shipped.key == GroupKey::of(prompt_of(life), visit), "group {}/{} has another key",
            life, visit);
    std::vector<bool>& acked = lives_[life].acked;
    require(!has(lives_[life].voided, visit), "group {}/{}: a member failed", life, visit);
    require(!has(acked, visit), "group {}/{} is acknowledged twice; lane {} was held by {}", life,
            visit, lives_[life].lane, holders_of(static_cast<std::uint32_t>(lives_[life].lane)));
    const auto at = groups_.find(id_of(life, visit));
    require(at != groups_.end(), "group {}/{} was never begun", life, visit);
    const Group& group = at->second;
    require(
        shipped.size == group.size && pieces.size() == std::size_t{group.size} * group.subsequences,
        "group {}/{}: {} records and size {} instead of {} x {}", life, visit, pieces.size(),
        shipped.size, group.size, group.subsequences);
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    for (const Piece& piece : pieces) {
        require(piece.key == shipped.key, "group {}/{} holds a member of another", life, visit);
        require(seen.emplace(piece.repetition, piece.subsequence).second,
                "group {}/{} has member {} subsequence {} twice", life, visit, piece.repetition,
                piece.subsequence);
        check_piece(group, shipped, piece);
    }
    mark(acked, visit);
    groups_.erase(at);
    if (!hostile_ever_.empty()) remember_acked(id_of(life, visit), pieces);
    counts_.groups_checked++;
    counts_.records_checked += pieces.size();
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces) {
        bytes += piece.tokens * token_bytes;
        counts_.long_records += piece.tokens * token_bytes > stress_lane_bytes / 3 ? 1 : 0;
    }
    counts_.large_groups += bytes > stress_spill_bytes / 3 ? 1 : 0;
}

void Oracle::check_piece(const Group& group, const Shipped& shipped, const Piece& piece) const {
    // Texts only where they are needed: this runs for every record.
    const auto must = [&](bool kept, const auto& what) {
        if (kept) return;
        throw Failure(fmt::format("group {}/{} member {} subsequence {} attempt {} {}",
                                  shipped.life, shipped.visit, piece.repetition, piece.subsequence,
                                  piece.attempt, what()));
    };
    const Copy* sent = nullptr;
    for (const Copy& copy : group.copies) {
        if (copy.repetition == piece.repetition && copy.subsequence == piece.subsequence &&
            copy.attempt == piece.attempt && sent == nullptr) {
            sent = &copy;
        }
    }
    must(sent != nullptr, [] { return std::string("was never pushed"); });
    must(sent->digest == piece.digest, [&] {
        return "has other bytes than were pushed: " +
               describe(shipped.life << 32 | shipped.visit, group);
    });
    must(piece.attempt >= least_attempt(group, piece.repetition),
         [&] { return "was superseded: " + describe(shipped.life << 32 | shipped.visit, group); });
    must(piece.version == -1 || versions_.contains(piece.version), [&] {
        return fmt::format("carries version {}, which was never committed", piece.version);
    });
    must(piece.version >= sent->floor, [&] {
        return fmt::format("carries version {} when {} was committed", piece.version, sent->floor);
    });
}

// The attempt that was known before the group could be complete.
std::uint32_t Oracle::least_attempt(const Group& group, std::uint32_t repetition) {
    std::uint32_t most = 0;
    for (const Copy& copy : group.copies) {
        if (copy.early && copy.repetition == repetition) most = std::max(most, copy.attempt);
    }
    return most;
}

void Oracle::event(Event::Kind kind, std::uint32_t lane, std::uint64_t life) {
    const bool known = life > 0 && life < lives_.size() && lives_[life].role == Role::producer;
    switch (kind) {
        case Event::Kind::producer_died:
            counts_.producers_died++;
            require(!known || lives_[life].killed, "producer {} lives and was taken for dead",
                    life);
            return;
        case Event::Kind::producer_closed:
            counts_.producers_closed++;
            return;
        case Event::Kind::quarantined:
        case Event::Kind::torn:
            (kind == Event::Kind::torn ? counts_.torn : counts_.quarantines)++;
            // Without a name: left by one of those before, or by one that damaged even its name.
            require(life == 0 ? ever_hostile(lane) : hostile_lane(lane),
                    "lane {} of producer {}: {}; holders: {}", lane, life, rollring::name(kind),
                    holders_of(lane));
            return;
        default:
            return;
    }
}

// The last ones, for people.
std::string Oracle::holders_of(std::uint32_t lane) const {
    std::string text;
    const auto found = holders_.find(lane);
    if (found == holders_.end()) return "none";
    const auto& all = found->second;
    for (std::size_t i = all.size() > 8 ? all.size() - 8 : 0; i < all.size(); i++) {
        const Life& life = lives_[all[i]];
        text += fmt::format(" {}{}", all[i], life.role == Role::hostile ? " (hostile)" : "");
        if (life.killed) text += fmt::format(" dead at {} ms", life.killed_ns / 1'000'000);
    }
    return text;
}

// Or the spill, with records of such a lane.
bool Oracle::ever_hostile(std::uint32_t lane) const {
    return holders_.contains(lane) ? hostile_ever_.contains(lane) : !hostile_ever_.empty();
}

// An event may be told when the lane has its next holder already.
bool Oracle::hostile_lane(std::uint32_t lane) const {
    const auto found = holders_.find(lane);
    if (found == holders_.end()) return ever_hostile(lane);
    const auto& all = found->second;
    for (std::size_t i = all.size(); i > 0 && i + 2 > all.size(); i--) {
        if (lives_[all[i - 1]].role == Role::hostile) return true;
    }
    return false;
}

}  // namespace rollring::test
