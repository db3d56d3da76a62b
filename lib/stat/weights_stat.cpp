// A weight channel as seen from outside.

#include <cstring>

#include "channel_names.hpp"
#include "control_map.hpp"
#include "delta_staging.hpp"
#include "greeting.hpp"
#include "liveness.hpp"
#include "rollring/weights.hpp"

namespace rollring {
namespace weights {
namespace {

ChannelState state_of(const PublisherPage& page) {
    const std::uint64_t publication = observe(page.publication);
    const auto view = look_up(page, publication);
    if (publication == 0 || !view) return ChannelState::idle;
    if (view->outcome == Outcome::committed) return ChannelState::committed;
    if (view->outcome == Outcome::aborted) return ChannelState::aborted;
    return view->put ? ChannelState::published : ChannelState::filling;
}

std::vector<SubscriberStat> subscribers_of(const PeerControl& control) {
    std::vector<SubscriberStat> all;
    for (std::uint32_t seat = 0; seat < control.header().subscribers_max; seat++) {
        const std::uint64_t epoch = observe(control.admission(seat).epoch);
        const SubscriberPage& page = control.subscriber(seat);
        const bool alive = rollring::alive(control.memory().fd(), LifeByte::subscriber(seat));
        // Expelled: alive, but without a seat.
        const bool expelled = epoch == 0 && alive && observe(page.closed) == 0;
        if ((epoch == 0 || observe(page.epoch) != epoch) && !expelled) continue;
        GpuUuid gpu;
        const std::uint64_t words[2] = {peek(page.gpu[0]), peek(page.gpu[1])};
        std::memcpy(gpu.bytes.data(), words, sizeof words);
        all.push_back({.name = page.name.load(),
                       .pid = peek(page.pid),
                       .alive = alive,
                       .gpu = gpu.to_string(),
                       .state = expelled ? SubscriberState::expelled
                                         : static_cast<SubscriberState>(observe(page.state)),
                       .read_done_parts = peek(page.read_done),
                       .staged_version = peek(page.staged_version),
                       .live_version = peek(page.live_version),
                       .problem = page.problem.load(),
                       .delta = shown_delta(page)});
    }
    for (const RefusalLine& line : control.refusals().lines) {
        const std::string name = line.name.load();
        if (name.empty()) continue;
        all.push_back({.name = name,
                       .pid = peek(line.pid),
                       .alive = false,
                       .gpu = "-",
                       .state = SubscriberState::refused,
                       .read_done_parts = 0,
                       .staged_version = -1,
                       .live_version = -1,
                       .problem = line.why.load()});
    }
    return all;
}

Result<WeightsStat> stat_rank(std::string_view ring, std::uint32_t rank, const RingLink& link) {
    auto socket = connect_to(ring, rank);
    if (!socket) return std::unexpected(socket.error());
    Patience patience(Deadline::after_ms(2000));
    auto answer = greet(socket->get(), MessageKind::hello_observer, link, "observer", patience);
    if (!answer) return std::unexpected(answer.error());
    const Message& welcome = answer->message;
    const auto manifest = manifest_of(*answer);
    if (!manifest) return std::unexpected(manifest.error());
    const auto control = PeerControl::accept(std::move(answer->fds[0]), welcome.control_bytes);
    if (!control) return std::unexpected(control.error());

    const ControlHeader& header = control->header();
    const PublisherPage& page = control->publisher();
    const auto view = look_up(page, observe(page.publication));
    return WeightsStat{
        .ring = std::string(ring),
        .publisher = std::string(header.name, strnlen(header.name, sizeof header.name)),
        .rank = header.rank,
        .ranks = header.ranks,
        .pid = header.pid,
        .gpu = manifest->gpu.to_string(),
        .memory = std::string(name(manifest->memory)),
        .why_not_direct = page.why_not_direct.load(),
        .tensors = manifest->packing.tensors.size(),
        .payload_bytes = manifest->packing.payload_bytes,
        .parts = static_cast<std::uint32_t>(manifest->packing.parts.size()),
        .slots = manifest->slots,
        .slot_bytes = manifest->packing.slot_bytes,
        .checksums = manifest->checksums,
        .layout_hash = manifest->hash_text(),
        .state = state_of(page),
        .version = view ? view->version : -1,
        .committed_version = observe(page.committed),
        .syncs = peek(page.syncs),
        .aborts = peek(page.aborts),
        .handles_passed = peek(page.handles_passed),
        .last_times = {.wait_slot_ns = peek(page.times[0]),
                       .put_ns = peek(page.times[1]),
                       .publish_ns = peek(page.times[2]),
                       .staged_ns = peek(page.times[3]),
                       .commit_ns = peek(page.times[4])},
        .subscribers = subscribers_of(*control),
    };
}

}  // namespace
}  // namespace weights

std::string_view name(ChannelState state) {
    switch (state) {
        case ChannelState::idle:
            return "idle";
        case ChannelState::filling:
            return "filling";
        case ChannelState::published:
            return "published";
        case ChannelState::committed:
            return "committed";
        case ChannelState::aborted:
            return "aborted";
        case ChannelState::silent:
            return "not answering";
    }
    return "unknown";
}

Result<std::vector<WeightsStat>> stat_weights(std::string_view ring) {
    const auto link = weights::RingLink::attach(ring, Deadline::now(), false);
    if (!link) return std::unexpected(link.error());
    std::vector<WeightsStat> all;
    for (const std::uint32_t rank : channel::ranks_of(ring)) {
        auto stat = weights::stat_rank(ring, rank, *link);
        if (stat) {
            all.push_back(std::move(*stat));
        } else if (stat.error().code == Errc::timed_out) {
            WeightsStat silent{};  // perhaps stopped, which is just when statistics are wanted
            silent.ring = ring;
            silent.rank = rank;
            silent.state = ChannelState::silent;
            silent.version = silent.committed_version = -1;
            all.push_back(std::move(silent));
        } else if (stat.error().code != Errc::not_found && stat.error().code != Errc::peer_gone) {
            return std::unexpected(stat.error());
        }
    }
    return all;
}

}  // namespace rollring
