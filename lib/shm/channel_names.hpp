#pragma once
// Names of weight channels: sockets /dev/shm/rollring-weights.<uid>/<ring>@<rank>, in a directory
// 0700 that is there as long as one of them is. Their location, access to them, and leftovers of
// dead publishers. The protocol on them is in lib/weights.

#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fd.hpp"
#include "rollring/error.hpp"

namespace rollring::channel {

std::string directory_path();
// not_found if it is not there and is not to be made; permission_denied if it is not ours alone.
Result<Fd> open_directory(bool make);

// The name in the directory. That of a ring with a long name is cut, and made one of a kind by a
// hash: any name that a ring may have is good for a channel.
std::string file_name(std::string_view ring, std::uint32_t rank);
// Reaches a name through the directory's descriptor.
Result<sockaddr_un> address_of(const Fd& directory, std::string_view file);

// A socket that does not block: the connection to a publisher that is stopped may wait in its
// queue, but not us.
Fd make_socket();
// 0, or the errno.
int try_connect(int socket, const sockaddr_un& address);

// While a process holds it, no other one makes or removes names in the directory. It is held for
// microseconds, but a process that is stopped keeps it: waiting for it ends after two seconds.
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

// Ranks that have a socket of this ring, dead ones included, ascending.
std::vector<std::uint32_t> ranks_of(std::string_view ring);

// Counts the sockets of dead publishers on this ring (empty: on any), and removes them.
std::uint32_t sweep(std::string_view ring, bool remove);

}  // namespace rollring::channel
