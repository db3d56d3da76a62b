// A publisher that lies: subscribers get an error by their deadline, and never crash.

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "channel.hpp"
#include "control_map.hpp"
#include "control_socket.hpp"
#include "liveness.hpp"
#include "manifest.hpp"
#include "ring_link.hpp"
#include "seats.hpp"

namespace rollring::test {
namespace {

using namespace weights;

// The fake's messages; the truth, until a test changes it.
struct Story {
    Message welcome{};
    std::vector<int> fds;
    std::vector<std::shared_ptr<Fd>> own;  // descriptors of the test's making
    bool says_nothing = false;
    Message slot_reply = make_message(MessageKind::refusal);
    std::vector<int> slot_fds;
    std::shared_ptr<std::atomic<bool>> slot_go;  // no slot is given before it is true
};

class Fake {
  public:
    Fake() : link_(*RingLink::attach(ring.name(), patience(), true)) {
        REQUIRE(link_.make_token());
        auto packing = pack_tensors(engine.list(), 4096);
        REQUIRE_OK(packing);
        manifest.packing = std::move(*packing);
        manifest.slots = 2;
        const auto bytes = write_manifest(manifest);
        auto memory = Sealed::make("manifest", bytes.size());
        REQUIRE_OK(memory);
        {
            const auto mapping = memory->map(0, bytes.size(), true);
            std::memcpy(mapping->data(), bytes.data(), bytes.size());
        }
        REQUIRE(memory->seal_contents());
        manifest_memory_ = std::move(*memory);
        manifest_bytes_ = bytes.size();
        for (auto& block : blocks_) {
            block = std::move(*backend_.memory->make(manifest.packing.slot_bytes));
        }
        new_control();
    }
    // Control memory as a publisher makes it.
    void new_control() {
        auto made = OwnControl::make({.ring_id = link_.ring_id(),
                                      .created_ns = 1,
                                      .subscribers_max = 4,
                                      .rank = 0,
                                      .ranks = 1,
                                      .pid = 1});
        REQUIRE_OK(made);
        control.emplace(std::move(*made));
        life_.reset();
        life_.emplace(std::move(**LifeLock::take(control->memory().fd(), LifeByte::publisher())));
        poke(control->admission(0).epoch, std::uint64_t{1});
    }
    [[nodiscard]] Story truth() const {
        Story story;
        story.welcome = make_message(MessageKind::welcome);
        story.welcome.epoch = 1;
        story.welcome.ranks = 1;
        story.welcome.control_bytes = control->bytes();
        story.welcome.manifest_bytes = manifest_bytes_;
        story.fds = {control->memory().fd(), manifest_memory_.fd()};
        for (const auto& block : blocks_) {
            story.welcome.tickets[story.welcome.tickets_used++] = to_wire(*block);
            story.fds.push_back(block->fd());
        }
        return story;
    }
    // A whole version in the slots, or one that claims to be.
    void publish_version() {
        PublisherPage& page = control->publisher_to_write();
        PublicationLine& line = page.publications[1];
        poke(line.version, std::int64_t{5});
        poke(line.first_part_number, std::uint64_t{0});
        poke(line.put, 1U);
        poke(line.outcome, static_cast<std::uint32_t>(Outcome::committed));
        for (std::uint32_t i = 0; i < parts_kept; i++) {
            poke(page.parts[i].number, std::uint64_t{i});
            poke(page.parts[i].part, i);
            poke(page.parts[i].slot, i % 2);
        }
        store_release(page.filled, std::uint64_t{manifest.packing.parts.size()});
        store_release(line.id, std::uint64_t{1});
        store_release(control->admission(0).reads, std::uint64_t{1});
    }
    // A subscriber's answer to the story.
    Result<Subscriber> attach(const Story& story, std::int64_t ms = 2000) {
        auto listener = Listener::open(ring.name(), 0);
        REQUIRE_OK(listener);
        listener_.emplace(std::move(*listener));
        story_ = story;
        stop_ = false;
        serving_ = std::thread([this] { serve(); });
        auto made = Subscriber::attach(ring.name(), engine.list(), {}, Deadline::after_ms(ms));
        if (!made) end();
        return made;
    }
    void end() {
        stop_ = true;
        if (serving_.joinable()) serving_.join();
        listener_.reset();
    }
    ~Fake() { end(); }
    Fake(const Fake&) = delete;

    TestRing ring;
    Tensors engine = small_model();
    Manifest manifest;
    std::optional<OwnControl> control;

  private:
    void serve() {
        std::vector<Fd> sockets;
        while (!stop_) {
            std::vector<pollfd> waits{{.fd = listener_->fd(), .events = POLLIN, .revents = 0}};
            for (const Fd& socket : sockets) waits.push_back({socket.get(), POLLIN, 0});
            poll(waits.data(), waits.size(), 5);
            for (std::size_t i = 1; i < waits.size(); i++) {
                if (waits[i].revents != 0 && !answer(sockets[i - 1], story_)) sockets[i - 1] = Fd();
            }
            std::erase_if(sockets, [](const Fd& socket) { return !socket; });
            if (waits[0].revents != 0) {
                sockets.emplace_back(accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC));
            }
        }
    }
    static bool answer(const Fd& socket, const Story& story) {
        const auto heard = receive_message(socket.get(), Deadline::now());
        if (!heard) return false;
        if (story.says_nothing) return true;
        if (heard->message.kind == MessageKind::ready) {
            return send_message(socket.get(), make_message(MessageKind::admitted)).has_value();
        }
        if (heard->message.kind == MessageKind::confirmed) return true;
        if (heard->message.kind == MessageKind::want_slot) {
            while (story.slot_go && !*story.slot_go) std::this_thread::yield();
            Message reply = story.slot_reply;
            if (reply.slot == 0) reply.slot = heard->message.slot;
            return send_message(socket.get(), reply, story.slot_fds).has_value();
        }
        return send_message(socket.get(), story.welcome, story.fds).has_value();
    }

    RingLink link_;
    device::Backend backend_ = device::make_host_backend();
    std::unique_ptr<SharedBlock> blocks_[2];
    Sealed manifest_memory_;
    std::uint64_t manifest_bytes_ = 0;
    std::optional<LifeLock> life_;
    std::optional<Listener> listener_;
    Story story_;
    std::atomic<bool> stop_ = false;
    std::thread serving_;
};

// An error by the deadline; which one. Nothing if it was attached.
std::optional<Errc> refusal_of(Fake& fake, const Story& story, std::int64_t ms = 2000) {
    const auto made = fake.attach(story, ms);
    fake.end();
    if (made) return std::nullopt;
    CHECK(!made.error().message.empty());
    return made.error().code;
}

int plain_memfd(std::uint64_t bytes, unsigned seals, Story& story) {
    story.own.push_back(
        std::make_shared<Fd>(memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
    const int fd = story.own.back()->get();
    std::vector<char> zeros(bytes);
    REQUIRE(write(fd, zeros.data(), bytes) == static_cast<ssize_t>(bytes));
    fcntl(fd, F_ADD_SEALS, seals);
    return fd;
}

}  // namespace

TEST_CASE("the truth is believed") {
    Fake fake;
    auto subscriber = fake.attach(fake.truth());
    REQUIRE_OK(subscriber);
    fake.publish_version();
    const auto taken = take(*subscriber);
    REQUIRE_OK(taken);
    CHECK(*taken == 5);
}

TEST_CASE("a seat whose last holder is still dying is waited for") {
    Fake fake;
    auto held = LifeLock::take(fake.control->memory().fd(), LifeByte::subscriber(0));
    REQUIRE_OK(held);
    // A machine with much to do may come to the seat later than the first of these deadlines.
    std::optional<Errc> told = Errc::timed_out;
    for (int ms = 50; told == Errc::timed_out && ms < 100'000; ms *= 2) {
        told = refusal_of(fake, fake.truth(), ms);
    }
    CHECK(told == Errc::busy);
    std::atomic<bool> attaching = false;
    std::thread dying([&] {
        while (!attaching) nap();
        for (int i = 0; i < 10; i++) nap();
        const LifeLock last = std::move(**held);
    });
    attaching = true;
    const auto subscriber = fake.attach(fake.truth(), 30'000);
    dying.join();
    REQUIRE_OK(subscriber);
}

TEST_CASE("descriptors that are not what they are called") {
    Fake fake;
    for (std::size_t which = 0; which < 4; which++) {
        CAPTURE(which);
        Story unsealed = fake.truth();
        unsealed.fds[which] = plain_memfd(1 << 20, 0, unsealed);
        CHECK(refusal_of(fake, unsealed) == Errc::bad_manifest);
        Story shrinks = fake.truth();
        shrinks.fds[which] = plain_memfd(1 << 20, F_SEAL_GROW | F_SEAL_WRITE, shrinks);
        CHECK(refusal_of(fake, shrinks) == Errc::bad_manifest);
        Story brief = fake.truth();
        brief.fds[which] = plain_memfd(64, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE, brief);
        CHECK(refusal_of(fake, brief) == Errc::bad_manifest);
        Story zeros = fake.truth();
        zeros.fds[which] =
            plain_memfd(1 << 20, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, zeros);
        // A slot of zeros is a slot.
        const std::optional<Errc> told = refusal_of(fake, zeros);
        CHECK((told == Errc::bad_manifest || (which > 1 && !told)));
        Story no_memory = fake.truth();
        no_memory.fds[which] = 0;
        CHECK(refusal_of(fake, no_memory) == Errc::bad_manifest);
        Story fewer = fake.truth();
        fewer.fds.resize(which);
        CHECK(refusal_of(fake, fewer) == Errc::bad_manifest);
    }
    Story more = fake.truth();
    more.fds.resize(34, more.fds[0]);
    CHECK_FALSE(refusal_of(fake, more));  // closed again
}

TEST_CASE("tickets and sizes that do not fit") {
    Fake fake;
    const auto refused = [&](const std::function<void(Message&)>& lie) {
        Story story = fake.truth();
        lie(story.welcome);
        return refusal_of(fake, story);
    };
    for (const std::uint32_t memory : {0U, 1U, 2U, 4U, 99U, 0xffffffffU}) {
        CHECK(refused([&](Message& welcome) { welcome.tickets[1].memory = memory; }) ==
              Errc::bad_manifest);
    }
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{512}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
        CHECK(refused([&](Message& welcome) { welcome.tickets[0].bytes = bytes; }) ==
              Errc::bad_manifest);
        for (const auto field : {&Message::control_bytes, &Message::manifest_bytes}) {
            const std::optional<Errc> told =
                refused([&](Message& welcome) { welcome.*field = bytes; });
            CHECK((told == Errc::bad_manifest || told == Errc::invalid_argument));
        }
    }
    CHECK(refused([](Message& welcome) { welcome.tickets[0].has_fd = 0; }) == Errc::bad_manifest);
    CHECK(refused([](Message& welcome) { welcome.tickets_used = 3; }) == Errc::bad_manifest);
    CHECK(refused([](Message& welcome) { welcome.tickets_used = 33; }) == Errc::bad_manifest);
    CHECK(refused([](Message& welcome) { welcome.tickets_used = ~0U; }) == Errc::bad_manifest);
    CHECK(refused([](Message& welcome) { welcome.seat = ~0U; }) == Errc::bad_manifest);
    CHECK(refused([](Message& welcome) { welcome.kind = MessageKind::slot; }) ==
          Errc::bad_manifest);
    CHECK(refused([](Message& welcome) { welcome.abi = 9; }) == Errc::abi_mismatch);
    for (const std::uint32_t code : {0U, 3U, 0xffffU, ~0U}) {
        const std::optional<Errc> told = refused([&](Message& welcome) {
            welcome.kind = MessageKind::refusal;
            welcome.code = code;
            std::memset(welcome.text, 'x', sizeof welcome.text);  // no end
        });
        REQUIRE(told);
        CHECK(!name(*told).empty());
    }
    Story silent = fake.truth();
    silent.says_nothing = true;
    CHECK(refusal_of(fake, silent, 100) == Errc::timed_out);
}

TEST_CASE("control memory with any word of its header changed") {
    Fake fake;
    std::uint64_t refused = 0;
    for (std::size_t word = 0; word < sizeof(ControlHeader) / 4; word++) {
        for (const std::uint32_t value : {0U, 1U, 0x7fffffffU, 0xffffffffU}) {
            fake.new_control();
            const auto mapping = fake.control->memory().map(0, page_bytes, true);
            REQUIRE_OK(mapping);
            std::memcpy(mapping->data() + word * 4, &value, 4);
            const std::optional<Errc> told = refusal_of(fake, fake.truth());
            CAPTURE(word);
            CHECK((told == Errc::bad_manifest || !told));
            refused += told == Errc::bad_manifest ? 1 : 0;
        }
    }
    CHECK(refused >= 4 * 4);
}

TEST_CASE("lies about what is published") {
    using Lie = std::function<void(PublisherPage&, AdmissionLine&)>;
    const std::uint64_t most = ~std::uint64_t{0};
    const std::vector<std::pair<Lie, bool>> lies = {
        // and whether it must be found out
        {[](auto& page, auto&) { poke(page.parts[2].slot, ~0U); }, true},
        {[](auto& page, auto&) { poke(page.parts[0].slot, slots_limit); }, true},
        {[](auto& page, auto&) { poke(page.parts[1].slot, 31U); }, true},  // the fake has none
        {[](auto& page, auto&) { poke(page.parts[1].number, std::uint64_t{7}); }, true},
        {[&](auto& page, auto&) { poke(page.parts[0].number, most); }, true},
        {[](auto& page, auto&) { poke(page.parts[1].part, 0U); }, true},
        {[&](auto& page, auto&) { poke(page.filled, most); }, false},
        {[&](auto& page, auto&) { poke(page.publications[1].first_part_number, most); }, true},
        {[&](auto& page, auto&) { poke(page.publications[1].first_part_number, most - 2); }, true},
        {[](auto& page, auto&) { poke(page.publications[1].version, std::int64_t{-7}); }, true},
        {[](auto& page, auto&) { poke(page.publications[1].outcome, 77U); }, true},
        {[](auto& page, auto&) { poke(page.publications[1].outcome, 2U); }, true},
        {[](auto& page, auto&) { poke(page.publications[1].id, std::uint64_t{9}); }, true},
        {[&](auto&, auto& line) { poke(line.reads, most); }, true},
        {[](auto&, auto& line) { poke(line.epoch, std::uint64_t{2}); }, true},
        {[](auto& page, auto&) { poke(page.closed, 1U); }, false},
        {[](auto& page, auto&) { poke(page.filled, std::uint64_t{1}); }, true},
        {[](auto& page, auto&) { std::memset(&page.parts, 0xff, sizeof page.parts); }, true},
        {[](auto& page, auto&) { std::memset(&page.publications, 0xff, sizeof page.publications); },
         true},
    };
    for (std::size_t i = 0; i < lies.size(); i++) {
        CAPTURE(i);
        Fake fake;
        auto subscriber = fake.attach(fake.truth());
        REQUIRE_OK(subscriber);
        fake.publish_version();
        lies[i].first(fake.control->publisher_to_write(), fake.control->admission(0));
        const auto taken = take(*subscriber, Deadline::after_ms(150));
        CHECK((!taken || !lies[i].second));
        if (!taken) CHECK(!taken.error().message.empty());
    }
}

TEST_CASE("a slot that is fetched later is checked as well") {
    for (int lie = 0; lie < 6; lie++) {
        CAPTURE(lie);
        Fake fake;
        Story story = fake.truth();
        story.slot_reply = make_message(MessageKind::slot);
        story.slot_reply.tickets_used = 1;
        story.slot_reply.tickets[0] = story.welcome.tickets[0];
        story.slot_fds = {story.fds[2]};
        if (lie == 1) story.slot_fds = {};
        if (lie == 2) story.slot_fds = {plain_memfd(1 << 20, 0, story)};
        if (lie == 3) story.slot_reply.slot = 30;
        if (lie == 4) story.slot_reply.tickets[0].bytes = 1;
        if (lie == 5) story.slot_reply.kind = MessageKind::welcome;
        auto subscriber = fake.attach(story);
        REQUIRE_OK(subscriber);
        fake.publish_version();
        poke(fake.control->publisher_to_write().parts[0].slot, 31U);
        const auto taken = take(*subscriber, Deadline::after_ms(2000));
        CHECK(taken.has_value() == (lie == 0));
        if (!taken) CHECK(taken.error().code == Errc::bad_manifest);
    }
}

TEST_CASE("a slot that is not given by the deadline can be waited for again") {
    Fake fake;
    Story story = fake.truth();
    story.slot_reply = make_message(MessageKind::slot);
    story.slot_reply.tickets_used = 1;
    story.slot_reply.tickets[0] = story.welcome.tickets[0];
    story.slot_fds = {story.fds[2]};
    story.slot_go = std::make_shared<std::atomic<bool>>(false);
    auto subscriber = fake.attach(story);
    REQUIRE_OK(subscriber);
    fake.publish_version();
    poke(fake.control->publisher_to_write().parts[0].slot, 31U);
    auto update = subscriber->next(patience());
    REQUIRE_OK(update);
    for (int i = 0; i < 3; i++) {
        const auto late = update->load(Deadline::after_ms(1));
        CHECK(!late);
        if (!late) CHECK(late.error().code == Errc::timed_out);
    }
    CHECK(subscriber->state() == SubscriberState::reading);
    *story.slot_go = true;
    CHECK(update->load(patience()).has_value());
    CHECK(update->stage(patience()).has_value());
    CHECK(update->adopt(patience()).has_value());
    CHECK(subscriber->live_version() == 5);
}

}  // namespace rollring::test
