#include "find_publisher.hpp"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "channel_names.hpp"
#include "control_map.hpp"
#include "greeting.hpp"

namespace rollring::weights {
namespace {

GpuUuid uuid_of(Device device, const device::Gpus& gpus) {
    if (!device.is_gpu()) return {};  // leaves CUDA alone
    const auto visible = gpus.visible();
    const auto ordinal = static_cast<std::size_t>(device.gpu);
    return ordinal < visible.size() ? visible[ordinal] : GpuUuid{};
}

GpuUuid gpu_of(const Message& welcome) {
    GpuUuid gpu;
    std::memcpy(gpu.bytes.data(), welcome.gpu, sizeof welcome.gpu);
    return gpu;
}

}  // namespace

bool is_on_gpu(const Message& welcome, Device device, const device::Gpus& gpus) {
    const GpuUuid own = uuid_of(device, gpus);
    return own.is_gpu() && gpu_of(welcome) == own;
}

Result<std::uint32_t> find_publisher(std::string_view ring, const SubscriberOptions& options,
                                     const RingLink& link, const device::Gpus& gpus,
                                     Patience& patience) {
    if (options.rank) return *options.rank;
    const auto ranks = channel::ranks_of(ring);
    if (ranks.empty()) {
        return refused(Errc::not_found, fmt::format("ring {} has no publisher", ring));
    }
    const GpuUuid own = uuid_of(options.device, gpus);
    std::string seen;
    std::uint32_t answered = 0;
    std::uint32_t expected = 1;
    for (const std::uint32_t rank : ranks) {
        auto socket = connect_to(ring, rank);
        if (!socket) continue;
        // A stopped publisher must not keep us from the others.
        Patience brief({std::min(patience.deadline().at_ns, Deadline::after_ms(200).at_ns)});
        const auto welcome = greet(socket->get(), MessageKind::hello_observer, link, options.name,
                                   ranks.size() == 1 ? patience : brief);
        if (!welcome && (welcome.error().code == Errc::peer_gone ||
                         (welcome.error().code == Errc::timed_out && ranks.size() > 1))) {
            continue;
        }
        if (!welcome) return std::unexpected(welcome.error());
        const GpuUuid gpu = gpu_of(welcome->message);
        answered++;
        expected = std::max(expected, welcome->message.ranks);
        if ((gpu.is_gpu() && gpu == own) || welcome->message.ranks == 1) return rank;
        seen += fmt::format("{}rank {} on {}", seen.empty() ? "" : ", ", rank, gpu.to_string());
    }
    if (answered < expected) {  // the right one may be about to come
        return refused(Errc::not_found,
                       fmt::format("ring {} has {} live publishers of {}{}{}", ring, answered,
                                   expected, seen.empty() ? "" : ": ", seen));
    }
    return refused(Errc::invalid_argument,
                   fmt::format("none of the publishers is on this subscriber's GPU ({}): {}; name "
                               "one with SubscriberOptions::rank",
                               own.to_string(), seen));
}

std::string who_publishes(std::string_view ring, std::uint32_t rank, const RingLink& link) {
    const auto socket = connect_to(ring, rank);
    if (!socket) return ", which does not answer: it may be stopped; resume it, or end it";
    ucred peer{};
    socklen_t bytes = sizeof peer;
    getsockopt(socket->get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    Patience brief(Deadline::after_ms(200));
    auto welcome = greet(socket->get(), MessageKind::hello_observer, link, "observer", brief);
    if (!welcome) {
        const bool older = welcome.error().code == Errc::permission_denied;
        return fmt::format(": pid {}, which {}; end that process, or close its publisher", peer.pid,
                           older ? "publishes on an older ring of this name"
                                 : "does not answer and may be stopped");
    }
    const auto control =
        PeerControl::accept(std::move(welcome->fds[0]), welcome->message.control_bytes);
    if (!control) return fmt::format(": pid {}", peer.pid);
    const ControlHeader& header = control->header();
    return fmt::format(": '{}' (pid {}); end that process, or close its publisher",
                       std::string_view(header.name, strnlen(header.name, sizeof header.name)),
                       peer.pid);
}

}  // namespace rollring::weights
