// Payload memory of the host: one sealed memfd per block, writable by its maker alone.

#include <fmt/core.h>

#include <utility>

#include "backend.hpp"
#include "host_mover.hpp"
#include "round_up.hpp"
#include "sealed.hpp"

namespace rollring::device {
namespace {

class HostBlock : public SharedBlock {
  public:
    HostBlock(Sealed sealed, Mapping mapping)
        : sealed_(std::move(sealed)), mapping_(std::move(mapping)) {}

    [[nodiscard]] std::byte* data() const override { return mapping_.data(); }
    [[nodiscard]] BlockTicket ticket() const override {
        return {.memory = PayloadMemory::host, .bytes = mapping_.bytes()};
    }
    [[nodiscard]] int fd() const override { return sealed_.fd(); }

  private:
    Sealed sealed_;
    Mapping mapping_;
};

class HostMemory : public Memory {
  public:
    Result<std::unique_ptr<SharedBlock>> make(std::uint64_t bytes) override {
        auto sealed = Sealed::make("weights", round_up(bytes, 4096));
        if (!sealed) return std::unexpected(sealed.error());
        auto mapping = sealed->map(0, sealed->bytes(), true);
        if (!mapping) return std::unexpected(mapping.error());
        if (auto done = sealed->seal_for_others(); !done) return std::unexpected(done.error());
        return std::make_unique<HostBlock>(std::move(*sealed), std::move(*mapping));
    }

    Result<std::unique_ptr<SharedBlock>> import(const BlockTicket& ticket, Fd fd) override {
        if (ticket.memory != PayloadMemory::host || ticket.bytes == 0) {
            return refused(Errc::bad_manifest, "the publisher's block is not host memory");
        }
        auto sealed = Sealed::accept(std::move(fd), ticket.bytes, false);
        if (!sealed) return std::unexpected(sealed.error());
        auto mapping = sealed->map(0, ticket.bytes, false);
        if (!mapping) return std::unexpected(mapping.error());
        return std::make_unique<HostBlock>(std::move(*sealed), std::move(*mapping));
    }
};

}  // namespace

Backend make_host_backend() {
    return {std::make_unique<HostMemory>(), std::make_unique<HostMover>()};
}

}  // namespace rollring::device
