// The role of the other process of a test: it answers messages about one block, until it is killed.
//
//   'm' makes a block of `value` bytes of the ticket's kind, filled with block_bytes of seed 1
//   'i' imports the block that the message brings
//   'h' the same, mapped by the CPU and not by the GPU (host memory only)
//   'r' reads it: `value` in the answer is 1 if it holds block_bytes of that seed
//   'l' looks at the ticket's bytes from the block's byte `value` on: `value` is 1 if they hold
//       block_bytes of the seed that is the first byte of the ticket's handle
//   'w' lets a kernel write to it: `value` is 1 if that failed; the context is lost then
//
// An answer with a text is an error.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>

#include "backends.hpp"
#include "device.hpp"
#include "peer.hpp"
#include "plan.hpp"
#include "reference.hpp"

namespace rollring::test {
namespace {

class Holder {
  public:
    Received answer(Received asked);
    [[nodiscard]] int fd() const { return block_ == nullptr ? -1 : block_->fd(); }

  private:
    [[nodiscard]] bool holds(std::uint64_t seed) const;
    [[nodiscard]] bool write_fails() const;

    bool on_gpu_ = true;
    std::unique_ptr<device::Memory> memory_;
    std::unique_ptr<device::SharedBlock> block_;
};

bool Holder::holds(std::uint64_t seed) const {
    const std::uint64_t bytes = block_->ticket().bytes;
    Bytes seen(bytes);
    if (on_gpu_) {
        seen = from_device(block_->data(), bytes);
    } else {
        std::memcpy(seen.data(), block_->data(), bytes);
    }
    return seen == block_bytes(bytes, seed);
}

// Unpacks a slot of zeros into the block, as if it were a tensor.
bool Holder::write_fails() const {
    const DeviceBytes zeros(Bytes(4096));
    const auto plan = need(
        cuda::make_plan(gpu(), {{.tensor = block_->data(), .elements = 4096, .element_bytes = 1}}));
    const auto queued = plan->unpack(zeros.data(), {});
    const cuda::Context::Scope scope(gpu()->context());
    return !queued || api().cuStreamSynchronize(gpu()->stream({})) != CUDA_SUCCESS;
}

Received Holder::answer(Received asked) {
    Received given;
    given.message.what = asked.message.what;
    const device::BlockTicket& ticket = asked.message.ticket;
    switch (asked.message.what) {
        case 'm':
            memory_ = need(cuda::make_backend(Device::cuda(0), ticket.memory)).memory;
            block_ = need(memory_->make(asked.message.value));
            to_device(block_->data(), block_bytes(block_->ticket().bytes, 1));
            given.message.ticket = block_->ticket();
            break;
        case 'i':
        case 'h':
            on_gpu_ = asked.message.what == 'i';
            memory_ = on_gpu_ ? need(cuda::make_backend(Device::cuda(0), ticket.memory)).memory
                              : device::make_host_backend().memory;
            block_ = need(memory_->import(ticket, std::move(asked.fd)));
            break;
        case 'r':
            given.message.value = holds(asked.message.value) ? 1 : 0;
            break;
        case 'l': {
            const auto at = need(block_->distance(asked.message.value, ticket.bytes));
            const Bytes seen = from_device(block_->data() + at, ticket.bytes);
            const auto seed = static_cast<std::uint64_t>(ticket.handle[0]);
            given.message.value = seen == block_bytes(ticket.bytes, seed) ? 1 : 0;
            break;
        }
        case 'w':
            given.message.value = write_fails() ? 1 : 0;
            break;
        default:
            throw Failure("an unknown message");
    }
    return given;
}

}  // namespace

int run_role(const std::string& role) {
    if (role != "holder") return 2;
    const Wire wire{Fd(role_socket)};
    Holder holder;
    for (;;) {
        Received given;
        try {
            Received asked = wire.receive();
            const char what = asked.message.what;
            given = holder.answer(std::move(asked));
            // Of a block that we made, the descriptor goes with the answer.
            wire.send(given.message, what == 'm' ? holder.fd() : -1);
        } catch (const std::exception& failure) {
            const std::string_view text = failure.what();
            given.message.text = {};
            std::ranges::copy(text.substr(0, given.message.text.size() - 1),
                              given.message.text.begin());
            try {
                wire.send(given.message);
            } catch (const std::exception&) {
                return 0;  // the test is over
            }
        }
    }
}

}  // namespace rollring::test
