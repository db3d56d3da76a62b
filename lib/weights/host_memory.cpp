// Payload memory of the host: one sealed memfd per chunk, that only its maker can write.

#include <fmt/format.h>

#include <utility>

#include "host_mover.hpp"
#include "memory.hpp"
#include "sealed.hpp"

namespace rollring::weights {
namespace {

class HostChunk : public Chunk {
  public:
    HostChunk(Sealed sealed, SealedMapping mapping)
        : sealed_(std::move(sealed)), mapping_(std::move(mapping)) {}

    [[nodiscard]] std::byte* data() const override { return mapping_.data(); }
    [[nodiscard]] ChunkTicket ticket() const override {
        return {.memory = PayloadMemory::host, .bytes = mapping_.bytes()};
    }
    [[nodiscard]] int fd() const override { return sealed_.fd(); }

  private:
    Sealed sealed_;
    SealedMapping mapping_;
};

class HostMemory : public Memory {
  public:
    [[nodiscard]] PayloadMemory kind() const override { return PayloadMemory::host; }

    Result<std::unique_ptr<Chunk>> make(std::uint64_t bytes) override {
        auto sealed = Sealed::make("weights", (bytes + 4095) / 4096 * 4096);
        if (!sealed) return std::unexpected(sealed.error());
        auto mapping = sealed->map(0, sealed->bytes(), true);
        if (!mapping) return std::unexpected(mapping.error());
        if (auto done = sealed->seal_for_others(); !done) return std::unexpected(done.error());
        return std::make_unique<HostChunk>(std::move(*sealed), std::move(*mapping));
    }

    Result<std::unique_ptr<Chunk>> import(const ChunkTicket& ticket, Fd fd) override {
        if (ticket.memory != PayloadMemory::host || ticket.bytes == 0) {
            return std::unexpected(
                Error{Errc::bad_manifest, 0, "the publisher's chunk is no host memory"});
        }
        auto sealed = Sealed::accept(std::move(fd), ticket.bytes, false);
        if (!sealed) return std::unexpected(sealed.error());
        auto mapping = sealed->map(0, ticket.bytes, false);
        if (!mapping) return std::unexpected(mapping.error());
        return std::make_unique<HostChunk>(std::move(*sealed), std::move(*mapping));
    }
};

}  // namespace

Backend make_host_backend() {
    return {std::make_unique<HostMemory>(), std::make_unique<HostMover>()};
}

}  // namespace rollring::weights
