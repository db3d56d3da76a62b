#pragma once
// Names of weight channels: sockets /dev/shm/rollring-weights.<uid>/<ring>@<rank>, in a directory
// of mode 0700 that exists as long as one of them does. This file finds and connects them, and
// detects those of dead publishers. lib/weights defines the messages on them.

#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fd.hpp"
#include "rollring/error.hpp"

namespace rollring::channel {

std::string directory_path();
// not_found if it is missing and `make` is false; permission_denied if others may access it.
Result<Fd> open_directory(bool make);

// The name in the directory. A long ring name is cut, and made unique by a hash, so that every ring
// can have a channel.
std::string file_name(std::string_view ring, std::uint32_t rank);
// Reaches a name through the directory's descriptor.
Result<sockaddr_un> address_of(const Fd& directory, std::string_view file);

// A non-blocking socket: a connection may wait in the queue of a stopped publisher, and this
// process does not wait with it.
Fd make_socket();
// 0, or the errno.
int try_connect(int socket, const sockaddr_un& address);

// Only the holder makes or removes names in the directory. It is held for microseconds, but a
// process that is stopped meanwhile keeps it: taking it gives up after two seconds.
class DirectoryLock {
  public:
    explicit DirectoryLock(const Fd& directory);
    DirectoryLock(const DirectoryLock&) = delete;
    DirectoryLock& operator=(const DirectoryLock&) = delete;
    ~DirectoryLock();
    [[nodiscard]] bool held() const { return held_; }

  private:
    int fd_;
    bool held_ = false;
};

// The ranks with a socket of this ring, dead ones included, ascending.
std::vector<std::uint32_t> ranks_of(std::string_view ring);

// Counts the sockets of dead publishers on this ring (empty: on any), and removes them.
std::uint32_t sweep(std::string_view ring, bool remove);

}  // namespace rollring::channel
