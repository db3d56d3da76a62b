// The work of `rollring serve-atropos`.

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "cli/commands/door.hpp"
#include "cli/commands/token.hpp"
#include "cli/formats/json_tree.hpp"
#include "integrations/atropos/atropos_api.hpp"
#include "integrations/atropos/commands/serve_atropos.hpp"
#include "rollring/extras/server_seat.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

// Whole groups wait in a lane until the trainer asks for them. A group of 16 members of 131,072
// tokens takes 20 to 30 MiB. The first lane is reserved whole, and so lanes are many, not large.
constexpr std::uint32_t default_lanes = 128;
std::uint64_t default_lane_bytes() {
    constexpr std::uint64_t mib = std::uint64_t{1} << 20;
    return std::bit_floor(std::clamp(memory_total() / 8, mib, 64 * mib));
}

void report(const ServeOptions& options, const AtroposHub::Counts& counts) {
    if (options.json) {
        print_json({{"ring", options.hub.ring},
                    {"groups", counts.groups},
                    {"batches", counts.batches},
                    {"sequences", counts.sequences},
                    {"handed", counts.handed}});
        return;
    }
    const std::string last = counts.handed == 0
                                 ? ""
                                 : fmt::format(
                                       "; a batch of {} was handed out last, and the trainer has "
                                       "not asked for the next one",
                                       counted(counts.handed, "sequence"));
    print(fmt::format("received {}; {} in {} were trained on{}\n", counted(counts.groups, "group"),
                      counted(counts.sequences, "sequence"), counted(counts.batches, "batch"),
                      last));
}

// The served ring. A ring that this server has made is removed at its end, if it has nothing to
// continue with.
class ServedRing {
  public:
    // `lane_bytes` is for a new ring; bytes_not_given if no size was asked for.
    static Result<ServedRing> open(const std::string& name, std::uint64_t lane_bytes);
    ServedRing(ServedRing&& other) noexcept
        : name_(std::move(other.name_)),
          made_(std::exchange(other.made_, false)),
          seat_(std::move(other.seat_)) {}
    ~ServedRing() {
        if (made_) static_cast<void>(remove_ring(name_));
    }

    [[nodiscard]] bool made() const { return made_; }
    // Decides before the end whether the ring is removed.
    void decide(bool keep, bool has_clients, const std::string& state_path);

  private:
    explicit ServedRing(std::string name, bool made) : name_(std::move(name)), made_(made) {}

    std::string name_;
    bool made_;
    std::optional<ServerSeat> seat_;
};

// The process that serves the ring, found by the names of its lanes.
std::string other_server(const std::string& ring) {
    const auto stat = stat_ring(ring);
    if (!stat) return "another process";
    for (const LaneStat& lane : stat->lanes) {
        if (lane.alive && lane.producer.starts_with(LanePool::producer_name)) {
            return fmt::format("another process (pid {})", lane.pid);
        }
    }
    return "another process";
}

Result<ServedRing> ServedRing::open(const std::string& name, std::uint64_t lane_bytes) {
    const bool asked = lane_bytes != bytes_not_given;
    auto created = create_ring(
        name, {.lanes = default_lanes, .lane_bytes = asked ? lane_bytes : default_lane_bytes()});
    if (!created && created.error().code != Errc::already_exists) {
        return std::unexpected(created.error());
    }
    if (const auto stat = stat_ring(name);
        !created && asked && stat && stat->lane_bytes != lane_bytes) {
        return refused(Errc::invalid_argument,
                       fmt::format("ring {} exists, with lanes of {}: leave --lane-bytes out, or "
                                   "remove that ring with 'rollring rm {}'",
                                   name, bytes_text(stat->lane_bytes), name));
    }
    ServedRing ring(name, created.has_value());
    auto seat = ServerSeat::take(name);
    if (!seat && seat.error().code == Errc::busy) {
        return refused(Errc::busy, fmt::format("ring {} is already served by {}: stop that server, "
                                               "or serve another ring",
                                               name, other_server(name)));
    }
    if (!seat) return std::unexpected(seat.error());
    ring.seat_.emplace(std::move(*seat));
    return ring;
}

void ServedRing::decide(bool keep, bool has_clients, const std::string& state_path) {
    const RingDiagnosis now = diagnose_ring(name_);
    const bool ours = std::exchange(made_, false);
    if (ours && !keep && !has_clients && !now.has_records) {
        seat_.reset();
        if (remove_ring(name_)) return remove_state(state_path);  // fails while others are attached
    }
    const auto stat = stat_ring(name_);
    note(
        fmt::format("ring {} stays and holds {} of memory: 'rollring serve-atropos {}' continues "
                    "with it, 'rollring rm {}' removes it",
                    name_, bytes_text(stat ? stat->resident_bytes : 0), name_, name_));
}

// The server reserves memory before any environment has sent anything, so it reports the amount.
void tell_memory(const std::string& name) {
    const auto stat = stat_ring(name);
    if (!stat) return;
    const std::uint64_t smaller = std::min(std::uint64_t{16} << 20, stat->lane_bytes / 2);
    note(
        fmt::format("ring {} is new. Its lanes have {}, and a group must fit into one. It reserves "
                    "{} now, as much again at a trainer's first batch, and another lane for each "
                    "full one. --lane-bytes {}MiB makes a smaller ring",
                    name, bytes_text(stat->lane_bytes), bytes_text(stat->resident_bytes),
                    std::max(std::uint64_t{1}, smaller >> 20)));
}

}  // namespace

int serve_atropos(const ServeOptions& options) {
    AtroposHubOptions hub_options = options.hub;
    const std::string token = token_of(options.token);
    if (hub_options.state_path.empty()) {
        hub_options.state_path = default_state_path(options.hub.ring);
    }
    auto listener =
        open_door(options.host, static_cast<std::uint16_t>(options.port), token, "--port N");
    if (!listener) return fail(listener.error());
    if (auto writable = check_state_path(hub_options.state_path); !writable) {
        return fail(writable.error());
    }
    auto ring = ServedRing::open(options.hub.ring, options.lane_bytes);
    if (!ring) return fail(ring.error());
    auto hub = AtroposHub::open(hub_options);
    if (!hub) return fail(hub.error());
    if (!has_standard_columns((*hub)->schema())) {
        return fail(Errc::bad_record,
                    fmt::format("ring {} does not begin with the standard columns, which this "
                                "program fills",
                                options.hub.ring));
    }
    if (ring->made() && options.lane_bytes == bytes_not_given) tell_memory(options.hub.ring);
    note(fmt::format("serving ring {} at http://{}:{}", options.hub.ring, options.host,
                     listener->port()));
    AtroposApi api(**hub);
    {
        HttpServer server(std::move(*listener), options.limits, token,
                          [&api](const HttpRequest& request) { return api.answer(request); });
        server.run();
    }
    report(options, (*hub)->counts());
    const bool has_clients = (*hub)->has_clients();
    hub->reset();
    ring->decide(options.keep, has_clients, hub_options.state_path);
    return interrupt_exit();
}

}  // namespace rollring::cli
