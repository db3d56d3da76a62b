// Clients of a publisher's socket that lie, hang or belong to another user: they are refused, the
// channel goes on, and nothing of theirs stays.

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <random>

#include "channel_names.hpp"
#include "hostile_channel.hpp"

namespace rollring::test {
namespace {

using namespace weights;

void send_raw(int socket, const void* bytes, std::size_t count, std::span<const int> fds = {}) {
    iovec data{const_cast<void*>(bytes), count};
    alignas(cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    static_cast<void>(sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT));
}

// The other end has closed, or says something.
Result<Received> answer_of(const Fd& socket) {
    return receive_message(socket.get(), patience());
}

// Another name of the socket, open to everyone, where only the check of the uid blocks the way.
class OpenDoor {
  public:
    explicit OpenDoor(const std::string& file) : path_("/dev/shm/" + file + ".door") {
        const std::string socket = directory() + "/" + file;
        REQUIRE(link(socket.c_str(), path_.c_str()) == 0);
        REQUIRE(chmod(path_.c_str(), 0666) == 0);
    }
    OpenDoor(const OpenDoor&) = delete;
    ~OpenDoor() { unlink(path_.c_str()); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

// In a child: connects under the uid of `nobody`, says hello, and exits with the code that it is
// refused with.
int say_hello_as_nobody(const std::string& path, const Message& hello) {
    if (setgid(65534) != 0 || setuid(65534) != 0) return 101;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return 102;
    std::memcpy(address.sun_path, path.data(), path.size());
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (socket < 0) return 104;
    if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        return 103;
    }
    static_cast<void>(send_message(socket, hello));
    const auto answer = receive_message(socket, patience());
    if (!answer) return answer.error().code == Errc::peer_gone ? 104 : 105;
    if (answer->message.kind != MessageKind::refusal || !answer->fds.empty()) return 106;
    return static_cast<int>(answer->message.code);
}

}  // namespace

TEST_CASE("another user is refused at the socket, and gets no descriptor") {
    if (geteuid() != 0) {
        MESSAGE("skipped: only root can become somebody else");
        return;
    }
    Channel channel;
    const Message hello = channel.hello();
    const OpenDoor door(channel.ring.name() + "@0");
    const pid_t child = fork();
    if (child == 0) _exit(say_hello_as_nobody(door.path(), hello));
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    // Refused with a word, or closed on before it was read.
    const bool refused = WEXITSTATUS(status) == static_cast<int>(Errc::permission_denied) ||
                         WEXITSTATUS(status) == 104;
    CHECK_MESSAGE(refused, "the child ended with ", WEXITSTATUS(status));
    CHECK(channel.publisher.handles_passed() == 4);
    channel.works();
}

TEST_CASE("a directory that others could write, or made, is not ours") {
    if (geteuid() != 0) {
        MESSAGE("skipped: only root can become somebody else");
        return;
    }
    constexpr const char* theirs = "/dev/shm/rollring-weights.65534";
    const auto denied = [] {
        const auto socket = connect_to("ring", 0);
        const auto listener = Listener::open("ring", 0);
        return !socket && socket.error().code == Errc::permission_denied && !listener &&
               listener.error().code == Errc::permission_denied;
    };
    for (const mode_t mode : {0700, 0711, 0777}) {
        CAPTURE(mode);
        const bool ours = mode != 0700;  // else root made it
        REQUIRE(mkdir(theirs, mode) == 0);
        const bool made = chmod(theirs, mode) == 0 && (!ours || chown(theirs, 65534, 65534) == 0);
        const pid_t child = fork();
        if (child == 0) {
            if (setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
            _exit(denied() ? 0 : 1);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(made);
        CHECK(status == 0);
        CHECK(rmdir(theirs) == 0);
    }
}

TEST_CASE("a wrong token or ring is refused by name") {
    Channel channel;
    const std::size_t before = open_descriptors();
    for (int round = 0; round < 4; round++) {
        Message hello =
            channel.hello(round < 2 ? MessageKind::hello_subscriber : MessageKind::hello_observer);
        (round % 2 == 0 ? hello.token : hello.ring_id) ^= 1;
        const Fd socket = channel.connect();
        REQUIRE_OK(send_message(socket.get(), hello));
        const auto answer = answer_of(socket);
        REQUIRE_OK(answer);
        CHECK(answer->message.kind == MessageKind::refusal);
        CHECK(static_cast<Errc>(answer->message.code) == Errc::permission_denied);
        CHECK(text_of(answer->message).contains("token"));
        CHECK(answer->fds.empty());
        CHECK(!answer_of(socket));
    }
    Channel::await_descriptors(before);
    channel.works();
}

TEST_CASE("garbage, and hellos out of order, end their connection and nothing else") {
    Channel channel;
    channel.works();
    const std::size_t before = open_descriptors();
    std::mt19937_64 dice(3);
    std::vector<char> noise(20'000);
    for (char& byte : noise) byte = static_cast<char>(dice());
    for (const std::size_t count : {std::size_t{1}, std::size_t{8}, sizeof(Message) - 1,
                                    sizeof(Message), sizeof(Message) + 1, noise.size()}) {
        const Fd socket = channel.connect();
        send_raw(socket.get(), noise.data(), count);
        CHECK(!answer_of(socket));
        const Fd other = channel.connect();  // a good beginning, cut short or too long
        std::vector<char> bytes = noise;
        const Message hello = channel.hello();
        std::memcpy(bytes.data(), &hello, sizeof hello);
        if (count == sizeof(Message)) continue;
        send_raw(other.get(), bytes.data(), count);
        CHECK(!answer_of(other));
    }
    for (std::uint32_t kind = 0; kind < 32; kind++) {
        const Fd socket = channel.connect();
        Message message = channel.hello(static_cast<MessageKind>(kind));
        message.slot = 0xffffffff;
        message.seat = 0xffffffff;
        message.rank = 0xffffffff;
        REQUIRE_OK(send_message(socket.get(), message));
        static_cast<void>(send_message(socket.get(), message));  // and again
        shutdown(socket.get(), SHUT_WR);  // a connection that would stay for more ends here
        for (auto answer = answer_of(socket); answer; answer = answer_of(socket)) {
        }
    }
    for (const std::uint32_t abi : {0U, control_abi + 1, 0xffffffffU}) {
        const Fd socket = channel.connect();
        Message message = channel.hello();
        message.abi = abi;
        REQUIRE_OK(send_message(socket.get(), message));
        CHECK(!answer_of(socket));
    }
    Channel::await_descriptors(before);
    channel.works();
}

TEST_CASE("descriptors that nobody asked for are closed") {
    Channel channel;
    const std::size_t before = open_descriptors();
    const std::vector<int> fds(253, 0);
    const Message hello = channel.hello();
    for (const std::size_t count : {1, 34, 35, 100, 253}) {
        const Fd socket = channel.connect();
        send_raw(socket.get(), &hello, sizeof hello, std::span(fds).first(count));
        const auto answer = answer_of(socket);
        if (count > 34) CHECK(!answer);
    }
    Channel::await_descriptors(before);
    channel.works();
}

TEST_CASE("who connects and says nothing, or stops after the welcome, holds nobody up") {
    Channel channel;
    const std::size_t before = open_descriptors();
    {
        const Fd silent = channel.connect();
        const Fd halfway = channel.connect();
        REQUIRE_OK(send_message(halfway.get(), channel.hello()));
        const auto welcome = answer_of(halfway);
        REQUIRE_OK(welcome);
        CHECK(welcome->message.kind == MessageKind::welcome);
        const Fd same_name = channel.connect();
        REQUIRE_OK(send_message(same_name.get(), channel.hello()));
        const auto busy = answer_of(same_name);
        REQUIRE_OK(busy);
        CHECK(static_cast<Errc>(busy->message.code) == Errc::busy);
        for (int i = 0; i < 5; i++) channel.works();
        Message request = make_message(MessageKind::want_slot);  // before it is ready
        REQUIRE_OK(send_message(halfway.get(), request));
        const auto refusal = answer_of(halfway);
        REQUIRE_OK(refusal);
        CHECK(refusal->message.kind == MessageKind::refusal);
    }
    Channel::await_descriptors(before);
    Tensors engine = small_model();
    REQUIRE(
        Subscriber::attach(channel.ring.name(), engine.list(), {.name = "stranger"}, patience()));
}

TEST_CASE("a flood of connections passes") {
    Channel channel;
    const std::size_t before = open_descriptors();
    {
        std::vector<Fd> sockets;
        for (int i = 0; i < 300; i++) {
            auto socket = connect_to(channel.ring.name(), 0);
            // A full backlog is told at once; the publisher empties it.
            for (const Deadline deadline = patience(); !socket && !deadline.passed();) {
                nap();
                socket = connect_to(channel.ring.name(), 0);
            }
            REQUIRE_OK(socket);
            sockets.push_back(std::move(*socket));
        }
        const auto closed = [&] {
            return std::ranges::count_if(sockets, [](const Fd& socket) {
                pollfd look{.fd = socket.get(), .events = POLLIN, .revents = 0};
                return poll(&look, 1, 0) == 1;
            });
        };
        for (const Deadline deadline = patience(); closed() < 236 && !deadline.passed();) nap();
        CHECK(closed() == 236);  // 64 silent ones are borne
        channel.works();
        Tensors engine = small_model();
        REQUIRE(
            Subscriber::attach(channel.ring.name(), engine.list(), {.name = "late"}, patience()));
    }
    Channel::await_descriptors(before);
    channel.works();
}

TEST_CASE("a publisher without descriptors to spare waits for some at rest") {
    Channel channel;
    const std::size_t before = open_descriptors();
    rlimit old{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &old) == 0);
    int connected[2];
    int leave[2];
    REQUIRE(pipe2(connected, O_CLOEXEC) == 0);
    REQUIRE(pipe2(leave, O_CLOEXEC) == 0);
    rlimit tight = old;
    tight.rlim_cur = static_cast<rlim_t>(leave[1]) + 4;
    const pid_t child = fork();
    if (child == 0) {
        close(leave[1]);
        std::vector<Fd> sockets;
        char byte = 0;
        static_cast<void>(read(leave[0], &byte, 1));  // until the limit is set
        for (int i = 0; i < 20; i++) {
            auto socket = connect_to(channel.ring.name(), 0);
            if (!socket) _exit(1);
            sockets.push_back(std::move(*socket));
        }
        static_cast<void>(write(connected[1], "c", 1));
        static_cast<void>(read(leave[0], &byte, 1));
        _exit(0);
    }
    close(leave[0]);
    // No word of doctest's until the end: sanitizers look at its objects by way of a pipe.
    bool fine = setrlimit(RLIMIT_NOFILE, &tight) == 0 && write(leave[1], "l", 1) == 1;
    char byte = 0;
    fine = fine && read(connected[0], &byte, 1) == 1;
    timespec start{};
    timespec end{};
    fine = fine && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start) == 0;
    pollfd never{.fd = connected[0], .events = POLLIN, .revents = 0};
    poll(&never, 1, 300);
    fine = fine && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end) == 0;
    const auto used_ns = (end.tv_sec - start.tv_sec) * 1'000'000'000 + end.tv_nsec - start.tv_nsec;
    fine = setrlimit(RLIMIT_NOFILE, &old) == 0 && fine;
    CHECK(fine);
    CHECK_MESSAGE(used_ns < 100'000'000, "it spent ", used_ns / 1000, " us of 300 ms");
    for (const int fd : {leave[1], connected[0], connected[1]}) close(fd);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    Channel::await_descriptors(before);
    channel.works();
}

TEST_CASE("a process stopped with the directory in hand costs its patience, not more") {
    const TestRing ring;
    Tensors trainer = small_model();
    const Publisher before = publisher_on(ring, trainer, {});  // so that the directory is there
    const Fd held(open(directory().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(flock(held.get(), LOCK_EX) == 0);
    const TestRing other;
    const auto listener = Listener::open(other.name(), 0);
    REQUIRE(!listener);
    CHECK(listener.error().code == Errc::timed_out);
    CHECK(listener.error().message.contains("holds the lock"));
    CHECK(remove_dead_channels("") == 0);
    REQUIRE(flock(held.get(), LOCK_UN) == 0);
    CHECK(Listener::open(other.name(), 0));
}

TEST_CASE("a publisher that does not accept costs its deadline, not more") {
    const TestRing ring;
    const auto listener = Listener::open(ring.name(), 0);  // and no thread that accepts
    REQUIRE_OK(listener);
    std::vector<Fd> sockets;
    for (int i = 0; i < 300; i++) {
        auto socket = connect_to(ring.name(), 0);
        if (!socket) break;
        sockets.push_back(std::move(*socket));
    }
    CHECK(sockets.size() < 300);
    Tensors engine = small_model();
    const auto subscriber =
        Subscriber::attach(ring.name(), engine.list(), {}, Deadline::after_ms(100));
    REQUIRE(!subscriber);
    CHECK(subscriber.error().code == Errc::timed_out);
    const auto rival = Listener::open(ring.name(), 0);
    REQUIRE(!rival);
    CHECK(rival.error().code == Errc::busy);
}

TEST_CASE("a forked child's end of a publisher and of a subscriber is nobody's end") {
    Channel channel;
    channel.works();
    const pid_t child = fork();
    if (child == 0) {
        {
            const Publisher gone = std::move(channel.publisher);
        }
        channel.subscriber.reset();
        _exit(7);
    }
    int status = 0;
    const Deadline deadline = patience();
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (deadline.passed()) kill(child, SIGKILL);
        nap();
    }
    CHECK(WIFEXITED(status));
    CHECK(rollring::channel::ranks_of(channel.ring.name()).size() == 1);
    channel.works();
}

TEST_CASE("a worker that outlives its killed trainer does not stand for it") {
    const TestRing ring;
    Tensors trainer = small_model();
    int ready[2];
    int end[2];
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
    REQUIRE(pipe2(end, O_CLOEXEC) == 0);
    const pid_t killed = fork();
    if (killed == 0) {
        const auto publisher = Publisher::create(ring.name(), trainer.list());
        char byte = publisher ? 'y' : 'n';
        if (fork() == 0) {  // a worker, as multiprocessing makes them
            close(end[1]);
            if (write(ready[1], &byte, 1) == 1) static_cast<void>(read(end[0], &byte, 1));
            _exit(0);
        }
        for (;;) pause();
    }
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    CHECK(byte == 'y');
    REQUIRE(rollring::channel::ranks_of(ring.name()).size() == 1);
    kill(killed, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(killed, &status, 0) == killed);
    const auto stat = stat_weights(ring.name());
    REQUIRE_OK(stat);
    CHECK(stat->empty());
    const auto successor = Publisher::create(ring.name(), trainer.list());
    CHECK_MESSAGE(successor.has_value(), (successor ? "" : successor.error().to_string()));
    for (const int fd : {ready[0], ready[1], end[0], end[1]}) close(fd);
}

}  // namespace rollring::test
